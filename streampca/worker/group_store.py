"""Compares the worker's store with the stores of the other members of its group."""

import contextlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

import structlog

from streampca.consumer_group.committed import format_store_metadata, marks_start, parse_store_metadata
from streampca.errors import ForeignStoreError, list_causes
from streampca.sources.base import Committed, Source
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.identity import NAME, StoreIdentity, format_file

log = structlog.get_logger()


def refuse_other_store(checkpoints: Checkpoints, committed: Mapping[int, Committed], ours: StoreIdentity) -> None:
    """Raise `ForeignStoreError` if a worker with another store than `ours` has committed an offset of the group."""
    for partition, offset in committed.items():
        theirs = parse_store_metadata(offset.metadata)
        if theirs is not None and theirs.id != ours.id:
            is_perhaps_ours = _has_checkpoint_at_offset(checkpoints, committed, theirs)
            difference = (
                f"the consumer group's worker of partition {partition} of {checkpoints.topic} saved to the store "
                f"{theirs} (id {theirs.id}), but this worker's is another one, {ours} (id {ours.id})"
            )
            raise ForeignStoreError(f"{difference}{_describe_remedy(theirs, is_perhaps_ours=is_perhaps_ours)}")


def _describe_remedy(theirs: StoreIdentity, *, is_perhaps_ours: bool) -> str:
    """Say what to do if the group has used the store `theirs`, which may be ours if its file with the id was lost."""
    if is_perhaps_ours:
        return (
            f", with checkpoints at the group's offsets: if it is the group's, {NAME} was deleted or replaced, so "
            f"write this text back into it: {format_file(theirs.id)}; otherwise set store to the group's"
        )
    return (
        ": mount the volume or set store to the group's, or use another group_id; to continue from this worker's "
        "store, stop all workers of the group and run `streampca reset`"
    )


def _has_checkpoint_at_offset(
    checkpoints: Checkpoints, committed: Mapping[int, Committed], theirs: StoreIdentity
) -> bool:
    """Return whether our store has a checkpoint at an offset that a worker with the store `theirs` has committed."""
    for partition, (offset, metadata) in committed.items():
        store = parse_store_metadata(metadata)
        is_theirs = store is not None and store.id == theirs.id
        if is_theirs and offset in checkpoints.offsets(partition):
            return True
    return False


class ComparedOffsets(NamedTuple):
    """Committed offsets that differ from the newest checkpoints."""

    set_by_other_tools: dict[int, int]
    """Offsets, by partition, that another tool than streampca has set, and that differ from the newest checkpoint's."""
    committed_ahead: dict[int, str]
    """Why a partition cannot continue: its worker has committed an offset that no checkpoint has reached."""
    committed_starts: dict[int, int]
    """Offsets, by partition, at which partitions without a checkpoint begin: an earlier owner has committed them."""


def compare_offsets(
    topic: str, checkpoint_offsets: Mapping[int, int], committed: Mapping[int, Committed]
) -> ComparedOffsets:
    """Compare the group's committed offsets with the offsets of the newest checkpoints.

    Raises `ForeignStoreError` if every partition's worker has committed more than the checkpoints hold.
    """
    set_by_other_tools: dict[int, int] = {}
    committed_ahead: dict[int, str] = {}
    committed_starts: dict[int, int] = {}
    has_any_checkpoint_of_group = False
    for partition, (offset, metadata) in committed.items():
        checkpoint_offset = checkpoint_offsets.get(partition)
        was_set_by_other_tool = parse_store_metadata(metadata) is None  # only workers name their store
        if was_set_by_other_tool:
            # Without a checkpoint, the offset 0 skips no record.
            if offset != (checkpoint_offset or 0):
                set_by_other_tools[partition] = offset
            continue
        if checkpoint_offset is not None and checkpoint_offset >= offset:
            has_any_checkpoint_of_group = True
        elif checkpoint_offset is None and marks_start(metadata):  # a new partition: its owner has saved nothing yet
            committed_starts[partition] = offset
        else:
            committed_ahead[partition] = _describe_ahead(topic, partition, offset, checkpoint_offset)
    if committed_ahead and not has_any_checkpoint_of_group:
        raise ForeignStoreError(
            f"{list_causes(committed_ahead)}: is the volume mounted, is it this group's store, or was it restored from "
            "an older backup? To continue from this store all the same, run `streampca reset`"
        )
    return ComparedOffsets(set_by_other_tools, committed_ahead, committed_starts)


def _describe_ahead(topic: str, partition: int, offset: int, checkpoint_offset: int | None) -> str:
    """Say that the group has committed an offset that is ahead of the newest checkpoint, and what to do."""
    committed = f"the consumer group has committed offset {offset} of partition {partition} of {topic}, but the store"
    if checkpoint_offset is None:
        return (
            f"{committed} holds no checkpoint of it (restore its checkpoints from a backup, or do without what was "
            f"learned of it: `streampca reset --drop {partition}`)"
        )
    return f"{committed} holds no checkpoint beyond offset {checkpoint_offset} of it"


class Examined(NamedTuple):
    """What the store holds when partitions are assigned, compared with the offsets of the group."""

    stored: Checkpoints  # as they were listed
    offsets: Mapping[int, int]  # of the newest checkpoints, by partition
    committed: Mapping[int, Committed]  # offsets of the group, by partition
    compared: ComparedOffsets
    identity: StoreIdentity  # of the store


def examine_store(checkpoints: Checkpoints, committed: Mapping[int, Committed]) -> Examined:
    """Compare the store with the group's committed offsets; create its identity if it has none.

    Read `committed` first. Raises `ForeignStoreError`, and `StoreError` when a retry can help.
    """
    # Another group's store is refused before it gets an identity.
    found = checkpoints.find_identity()
    refuse_other_store(checkpoints, committed, found)
    stored = checkpoints.snapshot()
    offsets = stored.newest_offsets()
    compared = compare_offsets(checkpoints.topic, offsets, committed)
    return Examined(
        stored=stored,
        offsets=offsets,
        committed=committed,
        compared=compared,
        identity=checkpoints.ensure_identity(found),
    )


class GroupStore:
    """Refuses to learn if other members of the group save to another store than this worker.

    The metadata of a committed offset name the store of the worker that has committed it. If that offset is ahead of
    our checkpoints, another worker saves its checkpoints elsewhere. Offsets without such metadata, which other tools
    have set, prove nothing.
    """

    def __init__(self, source: Source, checkpoints: Checkpoints) -> None:
        self._source = source
        self._checkpoints = checkpoints
        # The identity of this worker's store; None before the first assignment.
        self._ours: StoreIdentity | None = None
        # True from an assignment until the next commit.
        self._is_newly_assigned = False
        self._is_comparison_due = False

    def read_committed(self) -> Mapping[int, Committed]:
        """Return the offsets that the group has committed, by partition. Raises `TimeoutError`."""
        return self._source.committed(self._source.partitions())

    def note_assignment(self, examined: Examined, partitions: Collection[int]) -> None:
        """Note the store's identity, and warn of offsets of these partitions that other tools have set."""
        ignored = {p: offset for p, offset in examined.compared.set_by_other_tools.items() if p in partitions}
        if ignored:
            cause = "set by another tool: reading goes on from the checkpoints; use `streampca reset --to` to move it"
            log.warning("committed offsets ignored", offsets=ignored, cause=cause)
        self._ours = examined.identity
        self._is_newly_assigned = True

    def agree_on_starts(self, start_offsets: Mapping[int, int]) -> dict[int, int]:
        """Commit the offsets at which new partitions begin, and return the starts that the group has then.

        A partition that another member has taken is absent, or has that member's start. Raises `TimeoutError`.
        """
        if self._ours is None:
            raise RuntimeError("the store is examined first")
        self._source.commit(start_offsets, format_store_metadata(self._ours, is_start=True))
        committed = self.read_committed()
        return {p: committed[p].offset for p in start_offsets if p in committed and marks_start(committed[p].metadata)}

    def commit(self, positions: Mapping[int, int]) -> None:
        """Commit the next offsets of partitions whose checkpoints are saved, with our store's identity."""
        if not positions:
            return
        metadata = format_store_metadata(self._ours) if self._ours else ""
        self._source.commit(positions, metadata)
        if self._is_newly_assigned:
            # Members that were assigned partitions at the same time have committed by now.
            self._is_comparison_due = True
            self._is_newly_assigned = False

    def check_other_members(self) -> None:
        """Raise `ForeignStoreError` if another member of the group saves to another store.

        Compares the stores once after each assignment.
        """
        if self._ours and self._is_comparison_due:
            with contextlib.suppress(TimeoutError):  # the next save checks again
                refuse_other_store(self._checkpoints, self.read_committed(), self._ours)
                self._is_comparison_due = False
