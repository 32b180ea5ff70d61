"""Compares the worker's store with the stores of the other members of its group."""

import contextlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

import structlog

from streampca.consumer_group.committed import format_store_metadata, marks_start, parse_store_metadata
from streampca.errors import ForeignStoreError, list_causes
from streampca.sources.base import Committed, Source
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.identity import NAME as IDENTITY_FILE, StoreIdentity, format_file

log = structlog.get_logger()


def refuse_other_store(checkpoints: Checkpoints, committed: Mapping[int, Committed], own: StoreIdentity) -> None:
    """Raise `ForeignStoreError` if a worker of the group has committed an offset with another store's identity.

    `own` is the identity of this worker's store, which holds `checkpoints`.
    """
    for partition, commit in committed.items():
        other = parse_store_metadata(commit.metadata)  # None: another tool has committed
        if other is not None and other.id != own.id:
            # The store may be the same, but with a new id, because its identity file was deleted and written anew. A
            # checkpoint at an offset that was committed with the old id suggests this, and the error then says so.
            is_perhaps_same_store = _has_checkpoint_at_committed_offset(checkpoints, committed, store=other)
            difference = (
                f"the consumer group's worker of partition {partition} of {checkpoints.topic} saved to the store "
                f"{other} (id {other.id}), but this worker's is another one, {own} (id {own.id})"
            )
            remedy = _describe_remedy(other.id, is_perhaps_same_store=is_perhaps_same_store)
            raise ForeignStoreError(f"{difference}{remedy}")


def _describe_remedy(committed_id: str, *, is_perhaps_same_store: bool) -> str:
    """Return the end of the error "… this worker's store is another one", which says what to do.

    `committed_id` is the id of the store that the group uses. This worker's store is perhaps the same if it has
    checkpoints at the group's offsets: then its file with this id was deleted or replaced, and the user can write the
    id back.
    """
    if is_perhaps_same_store:
        return (
            f", with checkpoints at the group's offsets: if this store is the group's, {IDENTITY_FILE} was deleted or "
            f"replaced, so write this text back into {IDENTITY_FILE}: {format_file(committed_id)}; otherwise set store "
            "to the group's"
        )
    return (
        ": mount the volume or set store to the group's, or use another group_id; to continue from this worker's "
        "store, stop all workers of the group and run `streampca reset`"
    )


def _has_checkpoint_at_committed_offset(
    checkpoints: Checkpoints, committed: Mapping[int, Committed], store: StoreIdentity
) -> bool:
    """Return whether one of the checkpoints is at an offset that was committed with the identity `store`."""
    for partition, (offset, metadata) in committed.items():
        identity = parse_store_metadata(metadata)  # None: another tool has committed
        was_committed_for_store = identity is not None and identity.id == store.id
        if was_committed_for_store and offset in checkpoints.offsets(partition):
            return True
    return False


class OffsetDifferences(NamedTuple):
    """How the group's committed offsets differ from the offsets of the newest checkpoints."""

    set_by_other_tools: dict[int, int]
    """Offsets, by partition, that another tool than streampca has set. They differ from the newest checkpoint's."""
    why_ahead_of_store: dict[int, str]
    """For each partition whose committed offset no checkpoint has reached, the reason why it cannot continue."""
    committed_starts: dict[int, int]
    """Offsets at which partitions without a checkpoint begin, by partition: an earlier owner has committed them."""


def compare_offsets(
    topic: str, checkpoint_offsets: Mapping[int, int], committed: Mapping[int, Committed]
) -> OffsetDifferences:
    """Compare the group's committed offset of each partition with the offset of its newest checkpoint.

    A worker commits an offset after its checkpoint is saved. So if a committed offset is ahead of the checkpoint, a
    checkpoint is missing. If checkpoints are missing, and no other checkpoint has reached its committed offset, this is
    not the group's store: raises `ForeignStoreError`.
    """
    set_by_other_tools: dict[int, int] = {}
    why_ahead_of_store: dict[int, str] = {}
    committed_starts: dict[int, int] = {}
    has_reached_any = False
    for partition, (offset, metadata) in committed.items():
        checkpoint_offset = checkpoint_offsets.get(partition)  # None: the partition has no checkpoint
        was_set_by_other_tool = parse_store_metadata(metadata) is None  # only workers name their store
        if was_set_by_other_tool:
            # Without a checkpoint, an offset 0 is not reported: it skips no record.
            offset_in_store = 0 if checkpoint_offset is None else checkpoint_offset
            if offset != offset_in_store:
                set_by_other_tools[partition] = offset
            continue
        has_reached = checkpoint_offset is not None and checkpoint_offset >= offset
        is_new_partition = checkpoint_offset is None and marks_start(metadata)
        if has_reached:  # the checkpoint of this commit is in this store, or was replaced by a later one
            has_reached_any = True
        elif is_new_partition:  # its owner has committed where it begins, and has saved no checkpoint yet
            committed_starts[partition] = offset
        else:  # the checkpoint of this commit is missing
            why_ahead_of_store[partition] = _describe_ahead(topic, partition, offset, checkpoint_offset)
    if why_ahead_of_store and not has_reached_any:
        raise ForeignStoreError(
            f"{list_causes(why_ahead_of_store)}: is the volume mounted, is it this group's store, or was it restored "
            "from an older backup? To continue from this store all the same, run `streampca reset`"
        )
    return OffsetDifferences(set_by_other_tools, why_ahead_of_store, committed_starts)


def _describe_ahead(topic: str, partition: int, offset: int, checkpoint_offset: int | None) -> str:
    """Say that the group has committed an offset that is ahead of the partition's newest checkpoint.

    If the partition has no checkpoint, also say what to do.
    """
    committed = f"the consumer group has committed offset {offset} of partition {partition} of {topic}, but the store"
    if checkpoint_offset is None:
        return (
            f"{committed} holds no checkpoint of it (restore its checkpoints from a backup, or do without what was "
            f"learned of it: `streampca reset --drop {partition}`)"
        )
    return f"{committed} holds no checkpoint beyond offset {checkpoint_offset} of it"


class StoreComparison(NamedTuple):
    """What the store holds when partitions are assigned, compared with the offsets of the group."""

    stored: Checkpoints  # as they were listed
    newest_offsets: Mapping[int, int]  # of the newest checkpoints, by partition
    committed: Mapping[int, Committed]  # offsets of the group, by partition
    offset_differences: OffsetDifferences
    identity: StoreIdentity  # of the store


def compare_store(checkpoints: Checkpoints, committed: Mapping[int, Committed]) -> StoreComparison:
    """Compare the store with the group's committed offsets; create its identity if it has none.

    The caller reads `committed`, and then this function lists the store. Since a checkpoint is saved before its offset
    is committed, the listing contains the checkpoints of all these offsets. Raises `ForeignStoreError`, and
    `StoreError` when a retry can help.
    """
    # Another group's store is refused before it gets an identity.
    existing_identity = checkpoints.find_identity()
    refuse_other_store(checkpoints, committed, existing_identity)
    stored = checkpoints.snapshot()
    newest_offsets = stored.newest_offsets()
    offset_differences = compare_offsets(checkpoints.topic, newest_offsets, committed)
    identity = checkpoints.ensure_identity(existing_identity)
    return StoreComparison(
        stored=stored,
        newest_offsets=newest_offsets,
        committed=committed,
        offset_differences=offset_differences,
        identity=identity,
    )


class GroupStore:
    """Refuses to learn if other members of the group save to another store than this worker.

    The metadata of a committed offset name the store of the worker that has committed it. If the offset is ahead of
    this store's checkpoints, its worker saves elsewhere. Offsets without such metadata, which other tools have set,
    prove nothing.
    """

    _own_identity: StoreIdentity
    """Of this worker's store. `note_assignment` sets it, before anything is committed."""

    def __init__(self, source: Source, checkpoints: Checkpoints) -> None:
        self._source = source
        self._checkpoints = checkpoints
        self._is_newly_assigned = False  # True from an assignment until the next commit
        # Whether the next save compares the identity of this store with those that other members have committed.
        self._must_check_other_members = False

    def read_committed(self) -> Mapping[int, Committed]:
        """Return the offsets that the group has committed, by partition. Raises `TimeoutError`."""
        return self._source.committed()

    def note_assignment(self, comparison: StoreComparison, partitions: Collection[int]) -> None:
        """Note the store's identity, and warn of offsets of these partitions that other tools have set."""
        set_by_other_tools = comparison.offset_differences.set_by_other_tools
        ignored = {p: offset for p, offset in set_by_other_tools.items() if p in partitions}
        if ignored:
            cause = (
                "set by another tool: reading goes on from the checkpoints; to read from other offsets, use "
                "`streampca reset --to`"
            )
            log.warning("committed offsets ignored", offsets=ignored, cause=cause)
        self._own_identity = comparison.identity
        self._is_newly_assigned = True

    def agree_on_starts(self, start_offsets: Mapping[int, int]) -> dict[int, int]:
        """Commit the offsets at which new partitions begin, marked as starts. Return what the group then has as starts.

        If another member has taken a partition meanwhile, the brokers refuse our commit. Then the result has the start
        that the other member has committed, if it has committed one. Raises `TimeoutError`.
        """
        self._source.commit(start_offsets, format_store_metadata(self._own_identity, is_start=True))
        committed = self.read_committed()  # may be without our offsets: `commit` raises nothing if it was refused
        starts: dict[int, int] = {}
        for partition in start_offsets:
            # An offset without the mark is no start: it was committed after a checkpoint, or by another tool.
            if partition in committed and marks_start(committed[partition].metadata):
                starts[partition] = committed[partition].offset
        return starts

    def commit(self, positions: Mapping[int, int]) -> None:
        """Commit the next offsets of partitions whose checkpoints are saved, with the identity of this store."""
        if not positions:
            return
        self._source.commit(positions, format_store_metadata(self._own_identity))
        if self._is_newly_assigned:
            # This was the first commit after an assignment. A rebalance assigns partitions to all members at once. By
            # our next save, the others have committed the identities of their stores, too: compare the stores then.
            self._must_check_other_members = True
            self._is_newly_assigned = False

    def check_other_members(self) -> None:
        """Raise `ForeignStoreError` if another member of the group saves to another store.

        Compares the stores once after each assignment.
        """
        if self._must_check_other_members:
            with contextlib.suppress(TimeoutError):  # the next save checks again
                refuse_other_store(self._checkpoints, self.read_committed(), self._own_identity)
                self._must_check_other_members = False
