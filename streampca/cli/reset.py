"""`streampca reset`: deletes the group's committed offsets of the topic, and moves the position of its workers."""

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

_NOTHING_LEARNED = FoldConfig(LearningConfig(1, 1))  # of a checkpoint without messages; workers put theirs in its place


def run(settings: ResetSettings, ask: Callable[[str], bool] | None, to: str | None, partition: int | None) -> None:
    """Delete the committed offsets, and with `to` save checkpoints at the new positions.

    `ask` gets a question and returns whether to go on; None: nobody is asked. Raises `SourceError` if the group has
    members, and `SettingsError` if records would be learned twice.
    """
    if partition is not None and not to:
        raise SettingsError("--partition needs --to: without it, the offsets of all partitions are deleted")
    with closing(KafkaPythonAdmin(settings, settings.topic)) as admin, admin.explained_errors():
        topic_id = admin.require_topic().id
        moved = list[Checkpoint]()
        if to:
            targets = _find_targets(admin, settings.topic, to, partition)
            moved = _make_checkpoints(settings, topic_id, targets)
        try:
            _reset(admin.client, settings, ask, moved)
        except (GroupSubscribedToTopicError, NonEmptyGroupError):
            raise SourceError(f"group {settings.group_id} has active members: stop its workers, then reset") from None
        for checkpoint in moved:
            Checkpoints(open_store(settings.store), settings.topic).save(checkpoint)
            console().print(f"partition {checkpoint.partition} continues at offset {checkpoint.fold.position}")


def _make_checkpoints(settings: ResetSettings, topic_id: str, targets: Mapping[int, int]) -> list[Checkpoint]:
    """Make a checkpoint for each partition whose position is not the target yet.

    `targets` holds the new position of each partition. If records would be learned twice, raises `SettingsError`.
    """
    checkpoints = Checkpoints(open_store(settings.store), settings.topic)
    moved = []
    for partition, target in targets.items():
        before = checkpoints.newest(partition)
        if before and target < before.fold.position:
            raise SettingsError(
                f"partition {partition} has been learned to offset {before.fold.position}: from {target} on, "
                "records would be learned twice; use another store"
            )
        if before is None:
            empty = Fold.empty(_NOTHING_LEARNED.learning).at(target)
            moved.append(Checkpoint(settings.topic, topic_id, partition, empty, _NOTHING_LEARNED.as_dict()))
        elif target > before.fold.position:
            moved.append(replace(before, fold=before.fold.skip(target)))
    return moved


def _find_targets(admin: KafkaPythonAdmin, topic: str, to: str, partition: int | None) -> Mapping[int, int]:
    """Return the position that `to` means in each partition, or only in `partition`."""
    held = admin.log_ends()  # the first and the end offset of each partition
    if partition is not None and partition not in held:
        raise SettingsError(f"{topic} has no partition {partition}; the last is {max(held)}")
    chosen = sorted(held) if partition is None else [partition]
    ends = {n: held[n][1] for n in chosen}
    if to == "latest":
        return ends
    if to == "earliest":
        return {n: held[n][0] for n in chosen}
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
    # The offset is negative if no record of the partition is as late as this time.
    return {tp.partition: found.offset if found.offset >= 0 else ends[tp.partition] for tp, found in at.items()}


def _reset(admin: Any, settings: ResetSettings, ask: Callable[[str], bool] | None, moved: list[Checkpoint]) -> None:
    """Print the committed offsets, ask, and delete them. If no checkpoint is `moved` either, nobody is asked."""
    out = console()
    offsets = dict[TopicPartition, int]()
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
    if offsets:
        for tp, error in admin.delete_group_offsets(settings.group_id, list(offsets)).items():
            if error is not NoError:
                raise error(f"partition {tp.partition}")
    out.print(f"deleted {len(offsets)} committed offsets")
