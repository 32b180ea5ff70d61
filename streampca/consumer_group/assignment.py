"""The partitions that are assigned to a member, from when they are restored until they are released.

Partitions are restored in steps between polls, and each is read as soon as it is restored. So the member stays in the
group, however many they are, and also while the store or the brokers do not answer.
"""

from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from streampca.consumer_group import events
from streampca.consumer_group.countdown import Countdown
from streampca.consumer_group.first_records import FirstRecords
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.policy import MemberPolicy
from streampca.errors import ForeignStoreError, StoreError
from streampca.formats.record import LastRecord, Reject
from streampca.sources.base import Source
from streampca.sources.events import OutOfRange, Records, Undecoded, Vectors

_FIRST_PAUSE_S = 1.0  # between attempts to restore
_LONGEST_PAUSE_S = 10.0
_REFUSE_FOREIGN_STORE_AFTER_S = 60.0  # by default, network file systems may show old contents of a folder for so long
_UNDECODED_PAUSE_S = 1.0  # of partitions whose records cannot be decoded for now, such as while the registry is away


class Progress(Protocol):
    """How far a member has come with a partition: the fold of a worker, or the position of a member of transform."""

    @property
    def position(self) -> int:
        """The next offset to read; -1 stands for the earliest record."""

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
    """Reads each partition from the position of its progress; `progress` holds the restored partitions.

    First records that are held back are dropped from memory, and read again when they may be handled.
    """

    def __init__(
        self,
        policy: MemberPolicy,
        source: Source,
        in_flight: InFlight[Any],
        restore: Callable[[Collection[int]], Generator[Mapping[int, P], None, None]],
        notify: events.Notify,
        first_records: FirstRecords,
    ) -> None:
        """`restore(partitions)` returns a generator, which is one attempt to restore partitions.

        It yields {partition: progress} of restored partitions, and {} to let the loop poll. It may raise `StoreError`,
        `TimeoutError` or `ForeignStoreError`.
        """
        self._policy = policy
        self._source = source
        self._in_flight = in_flight
        self._restore = restore
        self._notify = notify
        self._first_records = first_records
        self.progress: dict[int, P] = {}
        self._to_restore: set[int] = set()
        self._restore_attempt: Generator[Mapping[int, P], None, None] | None = None
        self._retry_pause = Countdown(_FIRST_PAUSE_S)
        self._foreign_store_grace: Countdown | None = None  # None until a retry begins an attempt
        self._refuses_foreign_store = False  # whether `ForeignStoreError` ends the member
        self._undecoded: set[int] = set()
        self._undecoded_pause = Countdown(_UNDECODED_PAUSE_S)

    @property
    def is_restoring(self) -> bool:
        """Whether the next step of restoring need not wait for a pause to end."""
        return self._restore_attempt is not None

    def assign(self, partitions: Collection[int]) -> None:
        """Restore and read these partitions, each as soon as it is possible."""
        self._notify(events.RestoreBegun(len(partitions)))
        self._begin_restore(partitions)
        self._restore_attempt = self._restore(sorted(self._to_restore))
        self._continue_restore(self._restore_attempt)

    def release(self, partitions: Collection[int], *, lost: bool) -> None:
        """Drop partitions that were revoked or lost."""
        self._end_restore_attempt()  # the next retry restores the partitions that are left
        self._to_restore -= set(partitions)
        self._forget(partitions)
        # Partitions that were never restored are named, too: they are no longer reported as stalled.
        self._notify(events.PartitionsReleased(sorted(partitions), lost))

    def restart(self) -> None:
        """Forget the progress of all partitions, and pause them until they are restored again at the next retry."""
        partitions = frozenset(self.progress)
        self._source.pause(partitions)
        self._forget(partitions)
        self._begin_restore(partitions)

    def resume(self, partitions: Collection[int]) -> None:
        """Begin or resume reading partitions from their positions on."""
        # Only the first records of a partition are compared with the configured type.
        at_first_start = [partition for partition in partitions if self.progress[partition].is_first_start]
        self._first_records.forget(partitions)
        self._first_records.begin(at_first_start)
        self._seek(partitions)

    def decode(self, records: Records, handle: Callable[[Vectors], object]) -> None:
        """Decode records in a thread, and let `handle` get their vectors in the loop.

        `handle` is not called if the records must be read again later. The loop raises `BadRecordError` or
        `RejectLimitError`.
        """
        self._in_flight.decode(records, partial(self._handle_decoded, handle))

    def _handle_decoded(self, handle: Callable[[Vectors], object], decoded: Vectors | Undecoded) -> None:
        """Let `handle` get the vectors of a batch, unless its records must be read again later."""
        if isinstance(decoded, Undecoded):  # for example, the schema registry does not answer
            self._pause_undecoded(decoded)
            return
        if not self._first_records.may_handle(decoded):  # held back
            return
        stopping_reject = self._policy.find_stopping_reject(decoded)
        if stopping_reject is None:
            handle(decoded)
        else:  # a bad record ends the member
            self._stop_at(stopping_reject, decoded, handle)

    def _stop_at(self, reject: Reject, batch: Vectors, handle: Callable[[Vectors], object]) -> NoReturn:
        """Handle all records of the partition before a rejected one, and raise `BadRecordError`."""
        self._in_flight.drop_decodings(batch.partition)
        self._in_flight.finish(batch.partition)  # earlier batches
        handle(batch.before(reject.index))  # may submit work
        self._in_flight.finish(batch.partition)
        bad_record_error = self._policy.describe_stop(batch, reject)
        raise bad_record_error

    def _pause_undecoded(self, event: Undecoded) -> None:
        """Pause a partition whose records cannot be decoded for now; `retry_when_due` resumes it."""
        partition = event.partition
        self._in_flight.drop_decodings(partition)
        # Otherwise the retry would read earlier records again.
        self._in_flight.finish(partition)
        self._source.pause(frozenset({partition}))
        self._undecoded.add(partition)
        lag = event.end - event.position
        self._notify(events.PartitionStalled(partition, lag, event.cause))

    def skip_lost_records(self, event: OutOfRange) -> None:
        """Resume a partition behind the records that its log has lost. Raises `OffsetGapError`."""
        partition = event.partition
        if not self._needs_lost_records(event):
            self.resume([partition])
            return
        progress = self.progress[partition]
        lost_from = progress.position
        if event.diverged is not None:  # a truncated log has lost records that we have handled
            lost_from = event.diverged
        # No offset may be handled twice.
        resume_at = max(self._policy.choose_resume_offset(event), progress.position)
        self.progress[partition] = progress.skip(position=resume_at, lost_from=lost_from)
        self.resume([partition])
        is_truncated = event.diverged is not None
        self._notify(events.OffsetsSkipped(partition, lost_from, to=resume_at, truncated=is_truncated))

    def _needs_lost_records(self, event: OutOfRange) -> bool:
        """Return whether records that the log has lost leave a gap between handled records and those to come."""
        our_position = self.progress[event.partition].position
        if our_position < 0 or self._first_records.holds_back(event.partition):  # no record was handled
            return False
        # The source may have asked for an earlier offset than ours.
        log_has_our_position = event.position < event.earliest <= our_position
        return not log_has_our_position

    def retry_when_due(self, now: float) -> None:
        """Continue to restore partitions, and read paused partitions and held-back records again when it is time.

        Raises `ForeignStoreError` if the store has been another group's for a minute.
        """
        self._retry_restore(now)
        self._resume_undecoded(now)
        partitions_to_reread = self._first_records.take_due(now)
        if partitions_to_reread:
            self._seek(partitions_to_reread)

    def _begin_restore(self, partitions: Collection[int]) -> None:
        """Note that partitions must be restored, and forget the failures of earlier attempts."""
        self._end_restore_attempt()
        self._to_restore |= set(partitions)
        self._retry_pause = Countdown(_FIRST_PAUSE_S)
        self._tolerate_foreign_store()

    def _tolerate_foreign_store(self) -> None:
        """Refuse a foreign store only after a minute: a network folder may show old contents for so long."""
        self._foreign_store_grace = None
        self._refuses_foreign_store = False

    def _retry_restore(self, now: float) -> None:
        """Do the next step of the attempt to restore, or begin an attempt when it is time."""
        if self._restore_attempt is None and self._to_restore:
            self._begin_attempt_when_due(now)
        grace = self._foreign_store_grace
        self._refuses_foreign_store = grace is not None and grace.is_over(now)
        if self._restore_attempt is not None:
            self._continue_restore(self._restore_attempt)

    def _begin_attempt_when_due(self, now: float) -> None:
        """Begin the next attempt to restore the remaining partitions if the pause after the last one is over."""
        if self._foreign_store_grace is None:
            self._foreign_store_grace = Countdown(_REFUSE_FOREIGN_STORE_AFTER_S)
        if self._retry_pause.is_over(now):
            self._retry_pause = Countdown(min(2 * self._retry_pause.seconds, _LONGEST_PAUSE_S))
            self._restore_attempt = self._restore(sorted(self._to_restore))

    def _continue_restore(self, attempt: Generator[Mapping[int, P], None, None]) -> None:
        """Do one step of an attempt, and begin to read the partitions that it has restored. Report a failure."""
        try:
            restored = next(attempt)
        except StopIteration:
            self._restore_attempt = None
            return
        except (StoreError, ForeignStoreError, TimeoutError) as error:
            if self._refuses_foreign_store and isinstance(error, ForeignStoreError):
                raise
            self._restore_attempt = None
            self._notify(events.RestoreFailed(str(error)))
            return
        if restored:
            self._tolerate_foreign_store()  # a restored partition shows that the store is the group's own
            self._to_restore -= restored.keys()
            self._start_reading(restored)

    def _end_restore_attempt(self) -> None:
        """Drop the attempt to restore."""
        if self._restore_attempt is not None:
            self._restore_attempt.close()
            self._restore_attempt = None

    def _seek(self, partitions: Collection[int]) -> None:
        """Drop what is in flight of these partitions, and read them from their positions on."""
        self._in_flight.drop(partitions)
        offsets: dict[int, int | None] = {}  # None: the earliest record
        last_records: dict[int, LastRecord] = {}
        for partition in partitions:
            progress = self.progress[partition]
            offsets[partition] = progress.position if progress.position >= 0 else None
            if progress.last:  # the source notices by this record if the log is truncated
                last_records[partition] = progress.last
        self._source.seek(offsets, last_records)

    def _resume_undecoded(self, now: float) -> None:
        """Resume partitions whose records could not be decoded when their pause is over."""
        if self._undecoded and self._undecoded_pause.is_over(now):
            self._undecoded_pause = Countdown(_UNDECODED_PAUSE_S)
            self.resume(self._undecoded)
            self._undecoded = set()

    def _start_reading(self, restored: Mapping[int, P]) -> None:
        """Begin to read restored partitions, and report the positions at which they begin."""
        self.progress |= restored
        self.resume(restored.keys())
        self._notify(events.PartitionsAssigned({p: progress.position for p, progress in restored.items()}))

    def _forget(self, partitions: Collection[int]) -> None:
        """Drop the progress of partitions, and all of their records."""
        self._undecoded -= set(partitions)
        self._in_flight.drop(partitions)
        self._first_records.forget(partitions)
        for partition in partitions:
            self.progress.pop(partition, None)
