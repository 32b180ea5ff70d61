"""`streampca reset`: deletes the group's committed offsets of the topic, and moves where its workers continue."""

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import GroupIdNotFoundError, GroupSubscribedToTopicError, NoError, NonEmptyGroupError

from streampca.cli.console import console
from streampca.errors import SettingsError, SourceError, StreampcaError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.pca.learning import LearningConfig
from streampca.settings.commands import ResetSettings, milliseconds_of
from streampca.sources.kafka_python.connection import Connection, admin_client
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store

_ANSWER_MS = 5000
_NOTHING = FoldConfig(LearningConfig(1, 1))  # of a checkpoint that has learned nothing; workers give it theirs


def run(settings: ResetSettings, ask: Callable[[str], bool] | None, to: str | None, partition: int | None) -> None:
    """Delete the offsets and save checkpoints at `to`, if `ask`, which gets a question, agrees.

    Raises `SourceError` if the group has members, and `SettingsError` if records would be learned twice.
    """
    if partition is not None and not to:
        raise SettingsError("--partition needs --to: without it, the offsets of all partitions are deleted")
    connection = Connection(settings, settings.topic)
    admin = connection.start(admin_client)
    with closing(admin), connection.answers():
        moved = _moved(settings, connection, to, partition) if to else []
        try:
            _reset(admin, settings, ask, moved)
        except (GroupSubscribedToTopicError, NonEmptyGroupError):
            raise SourceError(f"group {settings.group_id} has active members: stop its workers, then reset") from None
        for checkpoint in moved:
            Checkpoints(open_store(settings.store), settings.topic).save(checkpoint)
            console().print(f"partition {checkpoint.partition} continues at offset {checkpoint.fold.position}")


def _moved(settings: ResetSettings, connection: Connection, to: str, partition: int | None) -> list[Checkpoint]:
    """A checkpoint at the new position of each partition that is not there yet. Raises `SettingsError`."""
    checkpoints, moved = Checkpoints(open_store(settings.store), settings.topic), []
    for tp, target in _targets(settings, connection, to, partition).items():
        before = checkpoints.newest(tp.partition)
        if before and target < before.fold.position:
            raise SettingsError(
                f"partition {tp.partition} has been learned to offset {before.fold.position}: from {target} on, "
                "records would be learned twice; use another store"
            )
        if before is None:
            empty = Fold.empty(_NOTHING.learning).at(target)
            moved.append(Checkpoint(settings.topic, connection.topic_id(), tp.partition, empty, _NOTHING.as_dict()))
        elif target > before.fold.position:
            moved.append(replace(before, fold=before.fold.skip(target)))
    return moved


def _targets(
    settings: ResetSettings, connection: Connection, to: str, partition: int | None
) -> Mapping[TopicPartition, int]:
    numbers = connection.partitions()
    if partition is not None and partition not in numbers:
        raise SettingsError(f"{settings.topic} has no partition {partition}; the last is {max(numbers)}")
    tps = [TopicPartition(settings.topic, n) for n in sorted(numbers) if partition in (None, n)]
    with closing(Connection(settings, settings.topic).start(KafkaConsumer)) as consumer:
        ends: dict[TopicPartition, int] = consumer.end_offsets(tps, timeout_ms=_ANSWER_MS)
        if to == "latest":
            return ends
        if to.isdecimal():
            for tp, end in ends.items():
                if int(to) > end:
                    others = "" if partition is not None else "; move one alone by --partition"
                    raise SettingsError(f"--to {to}: partition {tp.partition} ends at {end}{others}")
            return dict.fromkeys(tps, int(to))
        if to == "earliest":
            return dict(consumer.beginning_offsets(tps, timeout_ms=_ANSWER_MS))
        try:
            time_ms = milliseconds_of(to)
        except ValueError:
            raise SettingsError(f"--to {to}: must be earliest, latest, an offset, or a time, ISO 8601") from None
        at = consumer.offsets_for_times(dict.fromkeys(tps, time_ms))
        return {tp: at[tp].offset if at.get(tp) else ends[tp] for tp in tps}


def _reset(admin: Any, settings: ResetSettings, ask: Callable[[str], bool] | None, moved: list[Checkpoint]) -> None:
    """Delete the committed offsets, unless there is nothing to do."""
    out, offsets = console(), dict[TopicPartition, int]()
    with suppress(GroupIdNotFoundError):
        committed = admin.list_group_offsets({settings.group_id: None}).get(settings.group_id, {})
        offsets = {tp: at.offset for tp, at in committed.items() if tp.topic == settings.topic and at.offset >= 0}
    if offsets:
        listed = ", ".join(f"{tp.partition}: {offset}" for tp, offset in sorted(offsets.items()))
        out.print(f"group {settings.group_id}, topic {settings.topic}, committed offsets by partition: {listed}")
    else:
        out.print(f"group {settings.group_id} has no committed offsets of {settings.topic}")
    if not offsets and not moved:
        return
    then = "from the checkpoints of their store"
    if moved:
        positions = ", ".join(f"{checkpoint.partition}: {checkpoint.fold.position}" for checkpoint in moved)
        then = f"at these offsets, without the records before them: {positions}"
    if ask and not ask(f"Delete the committed offsets? Workers then continue {then}"):
        raise StreampcaError("nothing was changed")
    for tp, error in (admin.delete_group_offsets(settings.group_id, list(offsets)) if offsets else {}).items():
        if error is not NoError:
            raise error(f"partition {tp.partition}")
    out.print(f"deleted {len(offsets)} committed offsets")
