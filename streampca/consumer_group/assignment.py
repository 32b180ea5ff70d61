"""The partitions that are assigned to a member, from when they are restored until they are released.

While the store or the brokers do not answer, a partition is assigned but not read. The member keeps polling, so that it
stays in the group.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

from streampca.consumer_group import events
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.policy import FirstRecords, MemberPolicy
from streampca.errors import ForeignStoreError, StoreError
from streampca.formats.record import LastRecord
from streampca.sources.base import Source
from streampca.sources.events import OutOfRange, Records, Undecoded, Vectors

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0  # between attempts to restore
_STORE_DELAY_S = 60.0  # longest time that network file systems may show a folder as it was, by default
_PAUSE_S = 1.0  # of partitions whose records cannot be decoded for now, such as while the schema registry is away


class Progress(Protocol):
    """A member's progress with a partition: a fold, or a position alone."""

    @property
    def position(self) -> int:
        """The next offset to read; -1: the earliest."""

    @property
    def last(self) -> LastRecord | None:
        """The record before the position, if known."""

    @property
    def is_first_start(self) -> bool:
        """Whether nothing of the partition was learned, written or rejected yet."""

    def skip(self, position: int, lost_from: int) -> Self:
        """Continue from a later position, since the offsets from `lost_from` to there are lost."""


P = TypeVar("P", bound=Progress)


class Assignment(Generic[P]):
    """Reads each partition from where its progress ends; `progress` holds the restored partitions."""

    def __init__(
        self,
        policy: MemberPolicy,
        source: Source,
        in_flight: InFlight[Any],
        restore: Callable[[Collection[int]], Mapping[int, P]],
        listener: events.Listener,
        first_records: FirstRecords,
    ) -> None:
        """With `restore` a member looks up where it resumes.

        It raises `StoreError` or `TimeoutError` when a retry can help, `ForeignStoreError` for another group's store.
        """
        self._policy, self._source, self._listener = policy, source, listener
        self._in_flight = in_flight
        self._restore, self._first_records = restore, first_records
        self._waiting: set[int] = set()  # to be restored
        self._retry_pause_s = _FIRST_PAUSE_S
        self._retry_at: float | None = None
        self._refuse_at: float | None = None
        self._paused: set[int] = set()
        self._read_at: float | None = None  # the paused ones
        self.progress: dict[int, P] = {}

    def assign(self, partitions: Collection[int]) -> None:
        """Restore and read these partitions, now or as soon as it is possible."""
        self._begin(partitions)
        self._attempt(refuse=False)

    def release(self, partitions: Collection[int], *, lost: bool) -> list[int]:
        """Drop partitions that were revoked or lost; returns those that were restored."""
        self._waiting -= set(partitions)
        restored = [p for p in partitions if p in self.progress]
        self._forget(partitions)
        # All of them: a partition that waits to be restored again has been reported as assigned before, or as stalled.
        self._listener.notify(events.PartitionsReleased(sorted(partitions), lost))
        return restored

    def restart(self) -> None:
        """Restore all partitions again, after a pause."""
        partitions = frozenset(self.progress)
        self._source.pause(partitions)
        self._forget(partitions)
        self._begin(partitions)

    def read(self, partitions: Collection[int]) -> None:
        """Read partitions from where their progress ends, if the log still holds the last records of these."""
        self._first_records.forget(partitions)
        self._first_records.begin([p for p in partitions if self.progress[p].is_first_start])
        self._seek(partitions)

    def decode(
        self, records: Records, handle: Callable[[Vectors], object], before_stop: Callable[[], object] = lambda: None
    ) -> None:
        """Decode records in a thread; `handle` gets them in the loop, unless they must come again later.

        If the member stops at one of them, `handle` gets those before it, and `before_stop` is called when they are
        handled. Then handling raises `BadRecordError`. It raises `RejectLimitError` if the first records of the
        partition are not what was sent.
        """
        self._in_flight.read(records, partial(self._decoded, handle, before_stop))

    def _decoded(
        self, handle: Callable[[Vectors], object], before_stop: Callable[[], object], decoded: Vectors | Undecoded
    ) -> None:
        partition = decoded.partition
        if isinstance(decoded, Undecoded):
            self._pause(decoded)
            return
        if not self._first_records.may_handle(decoded):
            return
        reject = self._policy.stops_at(decoded)
        if reject is None:
            handle(decoded)
            return
        self._in_flight.stop_reading([partition])
        self._in_flight.finish(partition)
        handle(decoded.before(reject.index))
        self._in_flight.finish(partition)
        before_stop()
        raise self._policy.error(decoded, reject)

    def _pause(self, event: Undecoded) -> None:
        """Read no more records of a partition until it is time to retry, since they cannot be decoded for now."""
        self._in_flight.stop_reading([event.partition])
        self._in_flight.finish(event.partition)  # earlier records that are worked on need not be read again
        self._source.pause(frozenset({event.partition}))
        self._paused.add(event.partition)
        self._listener.notify(events.PartitionStalled(event.partition, event.end - event.position, event.cause))

    def skip_gap(self, event: OutOfRange) -> None:
        """Continue behind records that are lost, if the policy allows it. Raises `OffsetGapError`."""
        partition, progress = event.partition, self.progress[event.partition]
        before = progress.position
        is_nothing_lost = before < 0 or event.position < event.earliest <= before  # no record, or none between these
        if is_nothing_lost or self._first_records.withholds(partition):  # the source has read on from `before`
            self.read([partition])
            return
        position = max(self._policy.resume_at(event), before)
        lost_from = before if event.diverged is None else event.diverged
        self.progress[partition] = progress.skip(position, lost_from)
        self.read([partition])
        self._listener.notify(events.OffsetsSkipped(partition, lost_from, position, event.diverged is not None))

    def retry_when_due(self, now: float) -> None:
        """Restore what could not be restored, and read what could not be decoded or handled, when it is time.

        Raises `ForeignStoreError` if the group is still ahead of the store after a minute.
        """
        self._retry_restore(now)
        self._read_paused(now)
        if compared := self._first_records.take_due(now):
            self._seek(compared)

    def _begin(self, partitions: Collection[int]) -> None:
        self._waiting |= set(partitions)
        self._retry_pause_s, self._retry_at, self._refuse_at = _FIRST_PAUSE_S, None, None

    def _retry_restore(self, now: float) -> None:
        """Try again if the pause is over, which starts with the first call after a failure."""
        if not self._waiting:
            return
        self._refuse_at = now + _STORE_DELAY_S if self._refuse_at is None else self._refuse_at
        if self._retry_at is None:
            self._retry_at = now + self._retry_pause_s
        if now >= self._retry_at:
            self._retry_pause_s, self._retry_at = min(2 * self._retry_pause_s, _LONGEST_PAUSE_S), None
            self._attempt(refuse=now >= self._refuse_at)

    def _attempt(self, *, refuse: bool) -> None:
        try:
            progress = self._restore(self._waiting)
        except (StoreError, ForeignStoreError, TimeoutError) as error:
            if refuse and isinstance(error, ForeignStoreError):
                raise
            self._listener.notify(events.RestoreFailed(str(error)))
        else:
            self._waiting = set()
            self._start_reading(progress)

    def _seek(self, partitions: Collection[int]) -> None:
        self._in_flight.drop(partitions)
        progress = {p: self.progress[p] for p in partitions}
        last = {p: reached.last for p, reached in progress.items() if reached.last}
        self._source.seek({p: at.position if at.position >= 0 else None for p, at in progress.items()}, last)

    def _read_paused(self, now: float) -> None:
        """Read all paused partitions when the pause is over, which starts with the first call after `pause`."""
        if self._paused and self._read_at is None:
            self._read_at = now + _PAUSE_S
        elif self._paused and self._read_at is not None and now >= self._read_at:
            self.read(self._paused)
            self._paused, self._read_at = set(), None

    def _start_reading(self, progress: Mapping[int, P]) -> None:
        self.progress |= progress
        self.read(progress.keys())
        self._listener.notify(events.PartitionsAssigned({p: restored.position for p, restored in progress.items()}))

    def _forget(self, partitions: Collection[int]) -> None:
        self._paused -= set(partitions)
        self._in_flight.drop(partitions)
        self._first_records.forget(partitions)
        for partition in partitions:
            self.progress.pop(partition, None)
