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

_FIRST_PAUSE_S = 1.0  # between attempts to restore
_LONGEST_PAUSE_S = 10.0
_REFUSE_AFTER_S = 60.0  # network file systems show an old folder for so long by default: it seems behind the group
_UNDECODED_PAUSE_S = 1.0  # of partitions whose records cannot be decoded for now, such as while the registry is away


class Progress(Protocol):
    """How far a member has come with a partition: the fold of a worker, or the position of a member of transform."""

    @property
    def position(self) -> int:
        """The next offset to read; -1: the earliest record's."""

    @property
    def last(self) -> LastRecord | None:
        """The last record before the position; None if it is not known."""

    @property
    def is_first_start(self) -> bool:
        """Whether no record of the partition was learned, written or rejected yet."""

    def skip(self, position: int, lost_from: int) -> Self:
        """Return the progress at a later position, to which the offsets from `lost_from` on are lost."""


P = TypeVar("P", bound=Progress)


class Assignment(Generic[P]):
    """Reads each partition from the position of its progress; `progress` holds the restored partitions."""

    def __init__(
        self,
        policy: MemberPolicy,
        source: Source,
        in_flight: InFlight[Any],
        restore: Callable[[Collection[int]], Mapping[int, P]],
        listener: events.Listener,
        first_records: FirstRecords,
    ) -> None:
        """`restore` returns the progress at which partitions continue.

        It raises `StoreError` or `TimeoutError` when a retry can help, `ForeignStoreError` for another group's store.
        """
        self._policy = policy
        self._source = source
        self._in_flight = in_flight
        self._restore = restore
        self._listener = listener
        self._first_records = first_records
        self.progress: dict[int, P] = {}
        # The times are set by the first call of `retry_when_due` after a failure; None before.
        self._to_restore: set[int] = set()
        self._retry_pause_s = _FIRST_PAUSE_S
        self._retry_at: float | None = None
        self._refuse_at: float | None = None  # from then on, `ForeignStoreError` ends the member
        self._undecoded: set[int] = set()  # paused, since their records cannot be decoded for now
        self._read_undecoded_at: float | None = None

    def assign(self, partitions: Collection[int]) -> None:
        """Restore and read these partitions, now or as soon as it is possible."""
        self._begin_restore(partitions)
        self._try_restore(refuse=False)

    def release(self, partitions: Collection[int], *, lost: bool) -> list[int]:
        """Drop partitions that were revoked or lost, and return those of them that were restored."""
        self._to_restore -= set(partitions)
        restored = [p for p in partitions if p in self.progress]
        self._forget(partitions)
        # Also partitions that wait to be restored: one that was reported as stalled would stay stalled otherwise.
        self._listener.notify(events.PartitionsReleased(sorted(partitions), lost))
        return restored

    def restart(self) -> None:
        """Forget the progress of all partitions, and pause them until they are restored again at the next retry."""
        partitions = frozenset(self.progress)
        self._source.pause(partitions)
        self._forget(partitions)
        self._begin_restore(partitions)

    def read(self, partitions: Collection[int]) -> None:
        """Read partitions from their positions on, if the log still holds the last record before each position."""
        self._first_records.forget(partitions)
        self._first_records.begin([p for p in partitions if self.progress[p].is_first_start])
        self._seek(partitions)

    def decode(
        self, records: Records, handle: Callable[[Vectors], object], before_stop: Callable[[], object] = lambda: None
    ) -> None:
        """Decode records in a thread; `handle` gets the vectors in the loop, unless the records must be read again.

        If a rejected record stops the member, the loop hands the vectors before it to `handle`, calls `before_stop`
        when their results were handled, and raises `BadRecordError`. If the first records of the partition cannot be
        of the configured type, the loop raises `RejectLimitError`.
        """
        self._in_flight.decode(records, partial(self._handle_decoded, handle, before_stop))

    def _handle_decoded(
        self, handle: Callable[[Vectors], object], before_stop: Callable[[], object], decoded: Vectors | Undecoded
    ) -> None:
        partition = decoded.partition
        if isinstance(decoded, Undecoded):
            self._pause_undecoded(decoded)
            return
        if not self._first_records.may_handle(decoded):
            return
        reject = self._policy.find_stop(decoded)
        if reject is None:
            handle(decoded)
            return
        self._in_flight.drop_decodings([partition])
        self._in_flight.finish(partition)
        handle(decoded.before(reject.index))
        self._in_flight.finish(partition)
        before_stop()
        raise self._policy.describe_stop(decoded, reject)

    def _pause_undecoded(self, event: Undecoded) -> None:
        """Pause a partition until it is time to retry, since its records cannot be decoded for now."""
        self._in_flight.drop_decodings([event.partition])
        self._in_flight.finish(event.partition)  # earlier records are still in work; the retry begins behind them
        self._source.pause(frozenset({event.partition}))
        self._undecoded.add(event.partition)
        lag = event.end - event.position
        self._listener.notify(events.PartitionStalled(event.partition, lag, event.cause))

    def skip_lost_records(self, event: OutOfRange) -> None:
        """Continue behind records that the log has lost, if the policy allows it. Raises `OffsetGapError`."""
        partition = event.partition
        progress = self.progress[partition]
        before = progress.position
        log_has_our_position = event.position < event.earliest <= before
        is_nothing_handled = before < 0 or self._first_records.holds_back(partition)
        if is_nothing_handled or log_has_our_position:  # so no record that we have handled or need is lost
            self.read([partition])
            return
        position = max(self._policy.resume_at(event), before)
        is_truncated = event.diverged is not None
        lost_from = before if event.diverged is None else event.diverged
        self.progress[partition] = progress.skip(position, lost_from)
        self.read([partition])
        self._listener.notify(events.OffsetsSkipped(partition, lost_from, position, is_truncated))

    def retry_when_due(self, now: float) -> None:
        """When it is time, restore partitions that could not be restored, and read records again.

        Records are read again that could not be decoded, or that were held back as first records. Raises
        `ForeignStoreError` if the group is still ahead of the store after a minute.
        """
        self._retry_restore(now)
        self._read_undecoded(now)
        held_back = self._first_records.take_due(now)
        if held_back:
            self._seek(held_back)

    def _begin_restore(self, partitions: Collection[int]) -> None:
        self._to_restore |= set(partitions)
        self._retry_pause_s = _FIRST_PAUSE_S
        self._retry_at = None
        self._refuse_at = None

    def _retry_restore(self, now: float) -> None:
        """Try to restore again if the pause is over; it starts with the first call after a failure."""
        if not self._to_restore:
            return
        if self._refuse_at is None:
            self._refuse_at = now + _REFUSE_AFTER_S
        if self._retry_at is None:
            self._retry_at = now + self._retry_pause_s
        if now >= self._retry_at:
            self._retry_pause_s = min(2 * self._retry_pause_s, _LONGEST_PAUSE_S)
            self._retry_at = None
            self._try_restore(refuse=now >= self._refuse_at)

    def _try_restore(self, *, refuse: bool) -> None:
        """Restore partitions and read them, or report the failure; with `refuse`, raise `ForeignStoreError`."""
        try:
            progress = self._restore(self._to_restore)
        except (StoreError, ForeignStoreError, TimeoutError) as error:
            if refuse and isinstance(error, ForeignStoreError):
                raise
            self._listener.notify(events.RestoreFailed(str(error)))
        else:
            self._to_restore = set()
            self._start_reading(progress)

    def _seek(self, partitions: Collection[int]) -> None:
        """Drop what is in flight of these partitions, and read them from their positions on."""
        self._in_flight.drop(partitions)
        progress = {p: self.progress[p] for p in partitions}
        offsets = {p: reached.position if reached.position >= 0 else None for p, reached in progress.items()}
        last = {p: reached.last for p, reached in progress.items() if reached.last}
        self._source.seek(offsets, last)

    def _read_undecoded(self, now: float) -> None:
        """Read the partitions that could not be decoded if the pause is over; the first call starts the pause."""
        if not self._undecoded:
            return
        if self._read_undecoded_at is None:
            self._read_undecoded_at = now + _UNDECODED_PAUSE_S
        elif now >= self._read_undecoded_at:
            self.read(self._undecoded)
            self._undecoded = set()
            self._read_undecoded_at = None

    def _start_reading(self, progress: Mapping[int, P]) -> None:
        self.progress |= progress
        self.read(progress.keys())
        self._listener.notify(events.PartitionsAssigned({p: restored.position for p, restored in progress.items()}))

    def _forget(self, partitions: Collection[int]) -> None:
        self._undecoded -= set(partitions)
        self._in_flight.drop(partitions)
        self._first_records.forget(partitions)
        for partition in partitions:
            self.progress.pop(partition, None)
