"""Compares the worker's store with the other group members' stores."""

import contextlib
from collections.abc import Collection, Mapping

import structlog

from streampca.consumer_group.committed import metadata_of_store, read_store, refuse_other_store
from streampca.process import watchdog
from streampca.sources.base import Committed, Source
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.identity import StoreIdentity

log = structlog.get_logger()


def offsets_of_other_tools(checkpoints: Checkpoints, committed: Mapping[int, Committed]) -> dict[int, int]:
    """The offsets, by partition, that another tool has set, and not to where the newest checkpoint ends.

    Raises `ForeignStoreError` if the group's workers have committed an offset that no checkpoint has reached.
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

    Committed offsets say so: their metadata name the store of the member that has committed them, and if they are ahead
    of our checkpoints, somebody checkpoints elsewhere. Other tools write no such metadata: their offsets say nothing.
    """

    def __init__(self, source: Source, checkpoints: Checkpoints) -> None:
        self._source, self._checkpoints = source, checkpoints
        self._ours: StoreIdentity | None = None  # as of the last assignment
        self._is_new_member = False  # nothing was committed since partitions were assigned
        self._is_check_due = False

    def check_assigned(self, partitions: Collection[int]) -> None:
        """Raise `ForeignStoreError` if the group has another store, or is ahead of ours in one of these partitions.

        Raises `StoreError` or `TimeoutError` when a retry can help.
        """
        committed = self._committed()  # before the checkpoints: the group is never ahead of them
        assigned = {partition: committed[partition] for partition in sorted(committed.keys() & set(partitions))}
        moved = offsets_of_other_tools(self._checkpoints, assigned)
        if moved:
            cause = "set by another tool: reading goes on from the checkpoints; use `streampca reset --to` to move it"
            log.warning("committed offsets ignored", offsets=moved, cause=cause)
        self._ours = self._checkpoints.identity()
        self._is_new_member = True

    def commit(self, positions: Mapping[int, int]) -> None:
        """Commit offsets that are saved, with our store's identity."""
        self._source.commit(positions, metadata_of_store(self._ours) if self._ours else "")
        self._is_check_due |= self._is_new_member
        self._is_new_member = False

    def check_others(self) -> None:
        """Raise `ForeignStoreError` if a member that joined together with us has another store.

        Runs once per assignment, one interval after the first commit: members that joined together cannot see each
        other's store earlier.
        """
        if self._ours and self._is_check_due:
            with contextlib.suppress(TimeoutError):
                self._committed(self._ours)
                self._is_check_due = False

    def _committed(self, ours: StoreIdentity | None = None) -> Mapping[int, Committed]:
        """The group's offsets. Raises `ForeignStoreError` if they name another store than ours."""
        committed = self._source.committed(self._source.partitions())
        watchdog.tick(watchdog.STORE_S)  # which is compared next
        refuse_other_store(self._checkpoints.topic, committed, ours or self._checkpoints.known_identity())
        return committed
