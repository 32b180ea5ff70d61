"""`streampca reset`: deletes the group's committed offsets of the topic, and moves where its workers continue."""

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from kafka import TopicPartition
from kafka.errors import GroupIdNotFoundError, GroupSubscribedToTopicError, NoError, NonEmptyGroupError

from streampca.cli.console import console
from streampca.errors import SettingsError, SourceError, StreampcaError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.pca.learning import LearningConfig
from streampca.settings.commands import ResetSettings, milliseconds_of
from streampca.sources.kafka_python.connection import KafkaPythonAdmin
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store

_NOTHING = FoldConfig(LearningConfig(1, 1))  # of a checkpoint that has learned nothing; workers give it theirs


def run(settings: ResetSettings, ask: Callable[[str], bool] | None, to: str | None, partition: int | None) -> None:
    """Delete the offsets and save checkpoints at `to`, if `ask`, which gets a question, agrees.

    Raises `SourceError` if the group has members, and `SettingsError` if records would be learned twice.
    """
    if partition is not None and not to:
        raise SettingsError("--partition needs --to: without it, the offsets of all partitions are deleted")
    with closing(KafkaPythonAdmin(settings, settings.topic)) as admin, admin.explained_errors():
        topic_id = admin.require_topic().id
        moved = _moved(settings, topic_id, _targets(admin, settings.topic, to, partition)) if to else []
        try:
            _reset(admin.client, settings, ask, moved)
        except (GroupSubscribedToTopicError, NonEmptyGroupError):
            raise SourceError(f"group {settings.group_id} has active members: stop its workers, then reset") from None
        for checkpoint in moved:
            Checkpoints(open_store(settings.store), settings.topic).save(checkpoint)
            console().print(f"partition {checkpoint.partition} continues at offset {checkpoint.fold.position}")


def _moved(settings: ResetSettings, topic_id: str, targets: Mapping[int, int]) -> list[Checkpoint]:
    """A checkpoint at the new position of each partition that is not there yet. Raises `SettingsError`."""
    checkpoints, moved = Checkpoints(open_store(settings.store), settings.topic), []
    for partition, target in targets.items():
        before = checkpoints.newest(partition)
        if before and target < before.fold.position:
            raise SettingsError(
                f"partition {partition} has been learned to offset {before.fold.position}: from {target} on, "
                "records would be learned twice; use another store"
            )
        if before is None:
            empty = Fold.empty(_NOTHING.learning).at(target)
            moved.append(Checkpoint(settings.topic, topic_id, partition, empty, _NOTHING.as_dict()))
        elif target > before.fold.position:
            moved.append(replace(before, fold=before.fold.skip(target)))
    return moved


def _targets(admin: KafkaPythonAdmin, topic: str, to: str, partition: int | None) -> Mapping[int, int]:
    """The new position of each partition, or of one."""
    held = admin.log_ends()
    if partition is not None and partition not in held:
        raise SettingsError(f"{topic} has no partition {partition}; the last is {max(held)}")
    firsts, ends = ({n: held[n][i] for n in sorted(held) if partition in (None, n)} for i in range(2))
    if to in ("latest", "earliest"):
        return ends if to == "latest" else firsts
    if to.isdecimal():
        for n, end in ends.items():
            if int(to) > end:
                others = "" if partition is not None else "; move one alone by --partition"
                raise SettingsError(f"--to {to}: partition {n} ends at {end}{others}")
        return dict.fromkeys(ends, int(to))
    try:
        time_ms = milliseconds_of(to)
    except ValueError:
        raise SettingsError(f"--to {to}: must be earliest, latest, an offset, or a time, ISO 8601") from None
    at = admin.client.list_partition_offsets({TopicPartition(topic, n): time_ms for n in ends})
    return {tp.partition: found.offset if found.offset >= 0 else ends[tp.partition] for tp, found in at.items()}


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
