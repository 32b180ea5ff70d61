"""`streampca reset`: deletes the group's committed offsets of the topic, and moves the position of its workers."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from kafka import TopicPartition
from kafka.errors import GroupIdNotFoundError, NoError
from kafka.structs import OffsetAndMetadata

from streampca.cli.console import Confirm, ask, console, format_by_partition, print_warning
from streampca.cli.drop import drop as drop_learned
from streampca.errors import DamagedFileError, SettingsError, SourceError, list_names
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.partitions import parse_offsets, parse_partition, partition_name
from streampca.pca.learning import LearningConfig
from streampca.settings.commands import ResetSettings, parse_iso_time_ms
from streampca.settings.process import StoreSettings
from streampca.sources.kafka_python.connection import KafkaPythonAdmin
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.process_status import ProcessStatuses

# The configuration in a checkpoint without messages. A worker that continues from the checkpoint puts in its own.
_NOTHING_LEARNED = FoldConfig(LearningConfig(1, 1))


def run(
    settings: ResetSettings, confirm: Confirm, to: str | None, partition: int | None, drop: str | None = None
) -> None:
    """Delete what was learned of the partition that `drop` names; without `drop`, reset the offsets of the group.

    Raises `SettingsError` if the options do not go together.
    """
    if drop is not None:
        if to or partition is not None:
            raise SettingsError("--drop goes with neither --to nor --partition")
        _drop_partition(settings, confirm, drop)
        return
    if partition is not None and not to:
        raise SettingsError("--partition needs --to: without it, the offsets of all partitions are deleted")
    _reset_offsets(settings, confirm, to, partition)


def _reset_offsets(settings: ResetSettings, confirm: Confirm, to: str | None, partition: int | None) -> None:
    """Delete the group's committed offsets. With `to`, also save a checkpoint at the new position of each partition.

    Workers continue at their checkpoints, so only a new checkpoint moves them. `to` is the option --to: "earliest",
    "latest", offsets such as "0:120,1:90", or a time. With `partition`, only this partition gets a new checkpoint,
    although all committed offsets are deleted.
    """
    if to:
        _parse_time_ms(to)  # refuses a wrong text before brokers are asked
    checkpoints = Checkpoints(open_store(settings.store), settings.topic)
    with closing(KafkaPythonAdmin(settings, settings.topic)) as admin, admin.translate_errors():
        topic_id = admin.require_topic().id
        require_no_members(admin, settings.group_id)
        for checkpoint in read_newest_checkpoints(checkpoints):
            checkpoint.refuse_other_topic(topic_id)
        new_checkpoints: list[Checkpoint] = []
        if to:
            positions = find_positions(admin, to, partition)
            # Raises if records would be learned twice.
            new_checkpoints = _make_checkpoints(checkpoints, topic_id, positions)
        committed = find_committed_offsets(admin, settings.group_id)
        console().print(f"group {settings.group_id}, topic {settings.topic}, {_describe_committed(committed)}")
        if not committed and not new_checkpoints:
            return
        ask(confirm, f"Delete the committed offsets? Workers then continue {_describe_positions(new_checkpoints)}")
        delete_committed_offsets(admin, settings.group_id)
        for checkpoint in new_checkpoints:
            checkpoints.save(checkpoint)
            console().print(f"partition {checkpoint.partition} continues at offset {checkpoint.fold.position}")


def _describe_committed(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> str:
    """Return the committed offsets by partition as text."""
    if not committed:
        return "no committed offsets"
    offsets = {tp.partition: entry.offset for tp, entry in committed.items()}
    return f"committed offsets by partition: {format_by_partition(offsets)}"


def _describe_positions(new_checkpoints: Sequence[Checkpoint]) -> str:
    """Say where workers continue after a reset that saves these checkpoints.

    Without the option --to, a reset saves none, and workers continue from the checkpoints that the store has.
    """
    if not new_checkpoints:
        return "from the checkpoints of their store"
    positions = {checkpoint.partition: checkpoint.fold.position for checkpoint in new_checkpoints}
    return f"at these offsets, without the records before them: {format_by_partition(positions)}"


def require_no_members(admin: KafkaPythonAdmin, group_id: str) -> None:
    """Raise `SourceError` if the group has members, because they would continue from what they hold in memory."""
    group = admin.client.describe_groups([group_id])[group_id]
    state = group["group_state"]  # "Dead": the brokers do not know the group; "": they do not tell its state
    has_no_members = state in ("Empty", "Dead")
    if not has_no_members:
        raise SourceError(f"group {group_id} has active members ({state or group['error']}): stop them, then reset")


def warn_of_running_processes(settings: StoreSettings) -> None:
    """Warn of workers and members of transform that have reported within the last minute.

    The reports in the store also show members that use another cluster, which the brokers of this cluster do not know.
    """
    reports = ProcessStatuses(open_store(settings.store), settings.topic).all()
    running = [report.name for report in reports if report.is_running(time.time())]
    if running:
        print_warning(f"{list_names(running)} reported within the last minute: stop workers and transform first")


def read_newest_checkpoints(checkpoints: Checkpoints) -> Iterator[Checkpoint]:
    """Yield the newest checkpoint of each partition and of each backfill.

    Raises `DamagedFileError` if the newest file cannot be read, because an older file lacks records.
    """
    for partition, newest_offset in checkpoints.newest_offsets().items():
        checkpoint = checkpoints.newest(partition)  # of the newest file that is not damaged
        if checkpoint is None:  # deleted meanwhile
            continue
        is_newest_file_damaged = checkpoint.fold.position < newest_offset
        if is_newest_file_damaged:
            raise DamagedFileError(
                f"the checkpoint of partition {partition_name(partition)} at offset {newest_offset} cannot be read: "
                f"restore it from a backup, or delete it to continue from the one at offset {checkpoint.fold.position}"
            )
        yield checkpoint


def _drop_partition(settings: ResetSettings, confirm: Confirm, name: str) -> None:
    """Delete what was learned of the partition or backfill with this name, and its committed offset."""
    partition = parse_partition(name)
    if partition is None:
        raise SettingsError(f"--drop {name}: must be the number of a partition, or backfill-0 for the first backfill")

    with closing(KafkaPythonAdmin(settings, settings.topic)) as admin, admin.translate_errors():
        require_no_members(admin, settings.group_id)
        forget_offset = partial(delete_committed_offsets, admin, settings.group_id, partition)
        # `drop_learned` calls `forget_offset` after the confirmation, and before it deletes files.
        drop_learned(settings, partition, confirm, forget_offset)


def find_positions(admin: KafkaPythonAdmin, to: str, partition: int | None = None) -> Mapping[int, int]:
    """Return the offset that the option --to means in each partition; only in `partition` if it is not None.

    Raises `SettingsError` if there is no such offset.
    """
    log_bounds = admin.log_bounds()
    if partition is not None and partition not in log_bounds:
        raise SettingsError(f"{admin.topic} has no partition {partition}; the last is {max(log_bounds)}")
    partitions = sorted(log_bounds) if partition is None else [partition]
    if to == "earliest":
        return {p: log_bounds[p][0] for p in partitions}
    latest = {p: log_bounds[p][1] for p in partitions}
    if to == "latest":
        return latest
    time_ms = _parse_time_ms(to)
    if time_ms is not None:
        return _find_offsets_at(admin, time_ms, latest)
    # If the text is not offsets of partitions, it is a single number, which is the offset of every partition.
    offsets = parse_offsets(to) or dict.fromkeys(partitions, int(to))
    _refuse_wrong_offsets(admin.topic, to, offsets, latest)
    return offsets


def _parse_time_ms(to: str) -> int | None:
    """Return the time that the option --to names, in milliseconds since 1970; None for a word or offsets.

    Raises `SettingsError` for any other text.
    """
    is_word = to in ("earliest", "latest")
    is_offsets = to.isdecimal() or parse_offsets(to) is not None
    if is_word or is_offsets:
        return None
    try:
        return parse_iso_time_ms(to)
    except ValueError as error:
        raise SettingsError(f"--to: neither earliest, latest nor offsets (0:1200,1:1177), and {error}") from None


def _find_offsets_at(admin: KafkaPythonAdmin, time_ms: int, latest: Mapping[int, int]) -> Mapping[int, int]:
    """Return in each partition the offset of the first record at or after a time; without such a record, its end.

    `latest` has the end of each partition.
    """
    answer = admin.client.list_partition_offsets({TopicPartition(admin.topic, p): time_ms for p in latest})
    positions = {}
    for partition, end in latest.items():
        offset = answer[TopicPartition(admin.topic, partition)].offset  # -1: no such record
        positions[partition] = offset if offset >= 0 else end
    return positions


def _refuse_wrong_offsets(topic: str, to: str, offsets: Mapping[int, int], end_offsets: Mapping[int, int]) -> None:
    """Raise `SettingsError` if a partition has no offset in `offsets`, or one beyond the partition's end."""
    if offsets.keys() != end_offsets.keys():
        partitions = list_names([str(partition) for partition in end_offsets])
        raise SettingsError(f"--to {to}: must name an offset of each of these partitions of {topic}: {partitions}")
    for partition, end in end_offsets.items():
        if offsets[partition] > end:
            raise SettingsError(f"--to {to}: partition {partition} ends at {end}; name its offset, as in 0:1200,1:1177")


def make_empty_checkpoint(topic: str, topic_id: str, partition: int, position: int) -> Checkpoint:
    """Make the checkpoint of a partition that begins at a position, and has learned nothing."""
    empty = Fold.empty(_NOTHING_LEARNED.learning).at(position)
    return Checkpoint(topic, topic_id, partition, empty, _NOTHING_LEARNED.as_dict())


def _make_checkpoints(checkpoints: Checkpoints, topic_id: str, positions: Mapping[int, int]) -> list[Checkpoint]:
    """Make a checkpoint for each partition whose position is after that of its newest checkpoint.

    Raises `SettingsError` if a position is before it, because records would be learned twice.
    """
    new_checkpoints = []
    for partition, position in positions.items():
        newest = checkpoints.newest(partition)
        if newest is None:
            new_checkpoints.append(make_empty_checkpoint(checkpoints.topic, topic_id, partition, position))
            continue
        learned_to = newest.fold.position
        if position < learned_to:
            raise SettingsError(
                f"partition {partition} has been learned to offset {learned_to}: from {position} on, "
                "records would be learned twice; use another store"
            )
        if position > learned_to:
            new_checkpoints.append(replace(newest, fold=newest.fold.skip(position)))
    return new_checkpoints


def find_committed_offsets(admin: KafkaPythonAdmin, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of the topic that the group has committed."""
    try:
        # None: of all partitions of all topics.
        committed = admin.client.list_group_offsets({group_id: None}).get(group_id, {})
    except GroupIdNotFoundError:
        return {}
    return {tp: entry for tp, entry in committed.items() if tp.topic == admin.topic and entry.offset >= 0}


def delete_committed_offsets(admin: KafkaPythonAdmin, group_id: str, partition: int | None = None) -> None:
    """Delete the offsets of the topic that a group has committed, or that of one partition; print how many."""
    committed = find_committed_offsets(admin, group_id)
    partitions = [tp for tp in committed if partition in (None, tp.partition)]
    if partitions:
        raise_first_error(admin.client.delete_group_offsets(group_id, partitions))
    console().print(f"deleted {len(partitions)} committed offsets of group {group_id}")


def raise_first_error(errors: Mapping[TopicPartition, type[Exception]]) -> None:
    """If brokers have refused a change for a partition, raise their error."""
    for tp, error in errors.items():
        if error is not NoError:
            raise error(f"partition {tp.partition}")
