"""Compares the worker's store with the stores of the other members of its group."""

import contextlib
from collections.abc import Collection, Mapping

import structlog

from streampca.consumer_group.committed import metadata_of_store, read_store, refuse_other_store
from streampca.process import watchdog
from streampca.sources.base import Committed, Source
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.identity import StoreIdentity

log = structlog.get_logger()


def find_moved_offsets(checkpoints: Checkpoints, committed: Mapping[int, Committed]) -> dict[int, int]:
    """Return the offsets, by partition, that another tool has set to another position than the newest checkpoint's.

    If the group's workers have committed an offset that no checkpoint has reached, raises `ForeignStoreError`.
    """
    moved: dict[int, int] = {}
    for partition, (offset, metadata) in committed.items():
        watchdog.tick(watchdog.STORE_S)
        if read_store(metadata):
            checkpoints.refuse_group_ahead(partition, offset)
        elif offset != max(checkpoints.offsets(partition), default=0):
            moved[partition] = offset
    return moved


class GroupStore:
    """Refuses to learn if other members of the group save to another store than this worker.

    The metadata of a committed offset name the store of the worker that has committed it. If that offset is ahead of
    our checkpoints, another worker saves its checkpoints elsewhere. Offsets without such metadata, which other tools
    have set, prove nothing.
    """

    def __init__(self, source: Source, checkpoints: Checkpoints) -> None:
        self._source = source
        self._checkpoints = checkpoints
        self._ours: StoreIdentity | None = None  # read at the last assignment; None before the first one
        self._is_newly_assigned = False  # partitions were assigned, and nothing was committed since
        self._is_check_due = False  # of the other members

    def check_assigned(self, partitions: Collection[int]) -> None:
        """Raise `ForeignStoreError` if the group has another store, or is ahead of ours in one of these partitions.

        Raises `StoreError` or `TimeoutError` when a retry can help.
        """
        # Read before the checkpoints: an offset that is committed later may be ahead of those that we read.
        committed = self._read_committed()
        assigned = {partition: committed[partition] for partition in sorted(committed.keys() & set(partitions))}
        moved = find_moved_offsets(self._checkpoints, assigned)
        if moved:
            cause = "set by another tool: reading goes on from the checkpoints; use `streampca reset --to` to move it"
            log.warning("committed offsets ignored", offsets=moved, cause=cause)
        self._ours = self._checkpoints.identity()
        self._is_newly_assigned = True

    def commit(self, positions: Mapping[int, int]) -> None:
        """Commit offsets that are saved, with our store's identity."""
        metadata = metadata_of_store(self._ours) if self._ours else ""
        self._source.commit(positions, metadata)
        if self._is_newly_assigned:
            self._is_check_due = True
        self._is_newly_assigned = False

    def check_others(self) -> None:
        """If a member that joined together with us has another store, raise `ForeignStoreError`.

        Checks once per assignment, at the save after the first commit: members that joined together see each other's
        store only when all of them have committed.
        """
        if self._ours and self._is_check_due:
            with contextlib.suppress(TimeoutError):  # the next save checks again
                self._read_committed(self._ours)
                self._is_check_due = False

    def _read_committed(self, ours: StoreIdentity | None = None) -> Mapping[int, Committed]:
        """Return the group's offsets. Raises `ForeignStoreError` if they name another store than ours."""
        committed = self._source.committed(self._source.partitions())
        watchdog.tick(watchdog.STORE_S)  # reading the identity may take long
        refuse_other_store(self._checkpoints.topic, committed, ours or self._checkpoints.known_identity())
        return committed
