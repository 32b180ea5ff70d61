"""The partitions that are assigned to a member, from when they are restored until they are released."""

from collections.abc import Callable, Collection, Mapping
from typing import Generic, Protocol, Self, TypeVar

from streampca.consumer_group.listener import Listener, OffsetsSkipped, PartitionsAssigned, PartitionsReleased
from streampca.consumer_group.offset_gap import OffsetGapPolicy
from streampca.consumer_group.paused import PausedPartitions
from streampca.consumer_group.restorer import Restorer
from streampca.sources.base import Source
from streampca.stream.events import OutOfRange, Undecoded
from streampca.stream.record import LastRecord


class Progress(Protocol):
    """How far a member has come with a partition: a fold, or a position alone."""

    @property
    def position(self) -> int:
        """The next offset to read; -1: the earliest."""

    @property
    def last(self) -> LastRecord | None:
        """The record before the position, if known."""

    def skip(self, position: int, lost_from: int) -> Self:
        """Continue from a later position, since the offsets from `lost_from` to there are lost."""


P = TypeVar("P", bound=Progress)


class Assignment(Generic[P]):
    """Reads each partition from where its progress ends; `progress` is that of the partitions that are restored."""

    def __init__(
        self,
        gaps: OffsetGapPolicy,
        source: Source,
        restore: Callable[[Collection[int]], Mapping[int, P]],
        listener: Listener,
    ) -> None:
        """With `restore` a member looks up where it resumes.

        It raises `StoreError` or `TimeoutError` when a retry can help, and `ForeignStoreError` if the store is not the
        group's.
        """
        self._gaps, self._source, self._listener = gaps, source, listener
        self._restorer = Restorer(restore, self._start_reading, listener)
        self._paused = PausedPartitions(source, self.read, listener)
        self.progress: dict[int, P] = {}

    def assign(self, partitions: Collection[int]) -> None:
        """Restore and read these partitions, now or as soon as it is possible."""
        self._restorer.begin(partitions)

    def release(self, partitions: Collection[int], *, lost: bool) -> list[int]:
        """Drop partitions that were revoked or lost; returns those that were restored."""
        self._restorer.forget(partitions)
        restored = [p for p in partitions if p in self.progress]
        self._forget(partitions)
        self._listener.notify(PartitionsReleased(restored, lost))
        return restored

    def restart(self) -> None:
        """Restore all partitions again, after a pause."""
        partitions = frozenset(self.progress)
        self._source.pause(partitions)
        self._forget(partitions)
        self._restorer.begin(partitions, wait=True)

    def read(self, partitions: Collection[int]) -> None:
        """Read partitions from where their progress ends, if the log still holds the last records of these."""
        found = {p: self.progress[p] for p in partitions}
        last = {p: each.last for p, each in found.items() if each.last}
        self._source.seek({p: each.position if each.position >= 0 else None for p, each in found.items()}, last)

    def pause(self, event: Undecoded) -> None:
        """Read no more records of a partition until it is time to retry, since they cannot be decoded for now."""
        self._paused.pause(event.partition, event.end - event.position, event.cause)

    def decoded(self, partition: int) -> None:
        """Records of the partition have been decoded."""
        self._paused.decoded(partition)

    def skip_gap(self, event: OutOfRange) -> None:
        """Continue behind records that are lost, if the policy allows it. Raises `OffsetGapError`."""
        partition, progress = event.partition, self.progress[event.partition]
        before = progress.position
        if before < 0 or event.position < event.earliest <= before:
            self.read([partition])  # nothing is lost: no record was read yet, or none was between these offsets
            return
        position = max(self._gaps.resolve(event), before)
        lost_from = before if event.diverged is None else event.diverged
        self.progress[partition] = progress.skip(position, lost_from)
        self.read([partition])
        self._listener.notify(OffsetsSkipped(partition, lost_from, position, event.diverged is not None))

    def retry_when_due(self, now: float) -> None:
        """Restore what could not be restored, and read what could not be decoded, when their pauses are over.

        Raises `ForeignStoreError` if the group is still ahead of the store after a minute.
        """
        self._restorer.retry_when_due(now)
        self._paused.retry_when_due(now)

    def _start_reading(self, progress: Mapping[int, P]) -> None:
        self.progress |= progress
        self.read(progress.keys())
        self._listener.notify(PartitionsAssigned({p: restored.position for p, restored in progress.items()}))

    def _forget(self, partitions: Collection[int]) -> None:
        self._paused.forget(partitions)
        for partition in partitions:
            self.progress.pop(partition, None)
