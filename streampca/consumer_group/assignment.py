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
    def has_handled_none(self) -> bool:
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
        self._restore_in_steps = restore
        self._notify = notify
        self._first_records = first_records
        self.progress: dict[int, P] = {}
        self._to_restore: set[int] = set()
        self._restore_attempt: Generator[Mapping[int, P], None, None] | None = None
        self._retry_pause = Countdown(_FIRST_PAUSE_S)
        # A store is foreign if the group's workers have saved to another store. A network folder may show old contents
        # for a minute. So until this countdown is over, a foreign store is reported, and restoring is retried. It
        # begins with the first retry, whatever has failed; None before.
        self._foreign_store_countdown: Countdown | None = None
        self._undecoded_partitions: set[int] = set()  # paused, since their records cannot be decoded for now
        self._undecoded_pause = Countdown(_UNDECODED_PAUSE_S)

    @property
    def is_restoring(self) -> bool:
        """Whether the next step of restoring need not wait for a pause to end."""
        return self._restore_attempt is not None

    def assign(self, partitions: Collection[int]) -> None:
        """Restore and read these partitions, each as soon as it is possible.

        A new attempt begins, also for partitions that an earlier attempt has not restored yet. Only its first step is
        done now. `retry_when_due` does the next steps, between polls.
        """
        self._notify(events.RestoreBegun(len(partitions)))
        self._add_to_restore(partitions)
        self._restore_attempt = self._restore_in_steps(sorted(self._to_restore))
        self._do_restore_step(must_refuse_foreign_store=False)

    def release(self, partitions: Collection[int], *, lost: bool) -> None:
        """Drop partitions that were revoked or lost."""
        self._end_restore_attempt()  # the next retry restores the partitions that are left
        self._to_restore -= set(partitions)
        self._forget(partitions)
        # The event names all partitions, also those that are not restored now: observers drop what they know of them.
        # Otherwise, they would go on to report a partition as stalled that another member reads.
        self._notify(events.PartitionsReleased(sorted(partitions), lost))

    def restart(self) -> None:
        """Forget the progress of all partitions, and pause them until they are restored again at the next retry."""
        partitions = frozenset(self.progress)
        self._source.pause(partitions)
        self._forget(partitions)
        self._add_to_restore(partitions)

    def resume(self, partitions: Collection[int]) -> None:
        """Begin or resume reading partitions from their positions on."""
        # End the running checks of first records, since these records are read again. A partition of which no record
        # was handled yet gets a new check; the other partitions need none.
        self._first_records.forget(partitions)
        to_check = [partition for partition in partitions if self.progress[partition].has_handled_none]
        self._first_records.begin_checks(to_check)
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
        may_handle = self._first_records.check(decoded)
        if not may_handle:  # the records are dropped now, and read again later
            return
        stopping_reject = self._policy.find_stopping_reject(decoded)
        if stopping_reject is None:
            handle(decoded)
        else:  # a bad record ends the member, after the records before it were handled
            self._stop_at(stopping_reject, decoded, handle)

    def _stop_at(self, reject: Reject, batch: Vectors, handle: Callable[[Vectors], object]) -> NoReturn:
        """Handle all records of the partition before a rejected one, and raise `BadRecordError`."""
        self._in_flight.drop_decodings(batch.partition)  # later batches must not be handled
        self._in_flight.finish(batch.partition)  # handles earlier batches
        handle(batch.before(reject.index))  # may let a thread work on them
        self._in_flight.finish(batch.partition)  # waits for this thread
        raise self._policy.make_stop_error(batch, reject)

    def _pause_undecoded(self, undecoded: Undecoded) -> None:
        """Pause a partition whose records cannot be decoded for now; `retry_when_due` resumes it."""
        partition = undecoded.partition
        self._in_flight.drop_decodings(partition)  # later records must not be handled before these
        # Earlier records may be in flight, already decoded. Handle them now, so that the position is past them: the
        # retry reads from the position on.
        self._in_flight.finish(partition)
        self._source.pause(frozenset({partition}))
        self._undecoded_partitions.add(partition)
        lag = undecoded.end - undecoded.position
        self._notify(events.PartitionStalled(partition, lag, undecoded.cause))

    def skip_lost_records(self, event: OutOfRange) -> None:
        """Resume a partition after the records that its log has lost. Raises `OffsetGapError`."""
        partition = event.partition
        if self._needs_no_lost_record(event):
            self.resume([partition])
            return
        progress = self.progress[partition]
        # If the log was truncated and has grown again, it holds new records from the offset `diverged` on. The records
        # that were handled there are gone, so the loss begins at `diverged`. In all other cases, `diverged` is None,
        # and the loss begins at our position.
        diverged = event.diverged
        lost_from = progress.position if diverged is None else diverged
        # Resume at our position or later, so that no offset is handled twice. New records before it are skipped.
        resume_at = max(self._policy.choose_resume_offset(event), progress.position)
        self.progress[partition] = progress.skip(position=resume_at, lost_from=lost_from)
        self.resume([partition])
        self._notify(events.OffsetsSkipped(partition, lost_from, to=resume_at, truncated=diverged is not None))

    def _needs_no_lost_record(self, event: OutOfRange) -> bool:
        """Return whether this member needs none of the records that the log has lost. There are two cases:

        1. This member has handled no record of the partition yet.
        2. Retention has deleted only records before our position.
        """
        our_position = self.progress[event.partition].position
        # 1. The position is -1 if no record was read. First records that are held back were read, but not handled.
        has_handled_none = our_position < 0 or self._first_records.holds_back(event.partition)
        # 2. The source reports `event.position`, which the log no longer holds. If our position is later, and the log
        # still holds it, all deleted records are before our position.
        has_deleted_only_earlier_records = event.position < event.earliest <= our_position
        return has_handled_none or has_deleted_only_earlier_records

    def retry_when_due(self, now: float) -> None:
        """Continue to restore partitions. When it is time, read again the records that could not be handled.

        Raises `ForeignStoreError` if the store is still another group's after a minute of retries.
        """
        self._continue_restore(now)  # raises `ForeignStoreError`
        self._resume_undecoded(now)  # partitions that were paused, since their records could not be decoded
        partitions_to_reread = self._first_records.take_due(now)  # their first records were held back until now
        if partitions_to_reread:
            self._seek(partitions_to_reread)

    def _add_to_restore(self, partitions: Collection[int]) -> None:
        """Add partitions to those that must be restored, and end the running attempt.

        The next retry comes after a short pause again. For another minute of retries, a foreign store is only reported.
        """
        self._end_restore_attempt()
        self._to_restore |= set(partitions)
        self._retry_pause = Countdown(_FIRST_PAUSE_S)
        self._foreign_store_countdown = None

    def _continue_restore(self, now: float) -> None:
        """Do the next step of the attempt to restore the progress of the assigned partitions from the store.

        If the last attempt has ended before all partitions were restored, another begins when it is time. For the first
        minute of retries, a foreign store, to which the group does not save, is only reported. Then raises
        `ForeignStoreError`.
        """
        must_retry = self._restore_attempt is None and len(self._to_restore) > 0
        if must_retry:
            is_first_retry = self._foreign_store_countdown is None
            if is_first_retry:  # after any error; the countdown matters only if the store is foreign
                self._foreign_store_countdown = Countdown(_REFUSE_FOREIGN_STORE_AFTER_S)
            self._begin_attempt_when_due(now)
        countdown = self._foreign_store_countdown
        is_countdown_over = countdown is not None and countdown.is_over(now)
        self._do_restore_step(must_refuse_foreign_store=is_countdown_over)

    def _begin_attempt_when_due(self, now: float) -> None:
        """Begin another attempt to restore the remaining partitions if the pause after the last attempt is over.

        Each pause is twice as long as the one before, up to ten seconds.
        """
        if self._retry_pause.is_over(now):
            next_pause_s = min(2 * self._retry_pause.seconds, _LONGEST_PAUSE_S)
            self._retry_pause = Countdown(next_pause_s)
            self._restore_attempt = self._restore_in_steps(sorted(self._to_restore))

    def _do_restore_step(self, *, must_refuse_foreign_store: bool) -> None:
        """Do one step of the running attempt, if there is one, and begin to read the partitions that it has restored.

        If the step fails, report its error and end the attempt; `_begin_attempt_when_due` begins the next one. With
        `must_refuse_foreign_store`, raise `ForeignStoreError` if it fails because the group saves to another store.
        """
        if self._restore_attempt is None:
            return
        try:
            restored = next(self._restore_attempt)
        except StopIteration:
            self._restore_attempt = None
            return
        except (StoreError, ForeignStoreError, TimeoutError) as error:
            is_foreign_store = isinstance(error, ForeignStoreError)
            if is_foreign_store and must_refuse_foreign_store:
                raise
            self._restore_attempt = None
            self._notify(events.RestoreFailed(str(error)))
            return
        if restored:
            self._foreign_store_countdown = None  # a partition was restored, so the store is not foreign
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
        """When their pause is over, resume the partitions whose records could not be decoded."""
        if self._undecoded_partitions and self._undecoded_pause.is_over(now):
            self._undecoded_pause = Countdown(_UNDECODED_PAUSE_S)
            self.resume(self._undecoded_partitions)
            self._undecoded_partitions = set()

    def _start_reading(self, restored: Mapping[int, P]) -> None:
        """Begin to read restored partitions, and report the positions at which they begin."""
        self.progress |= restored
        self.resume(restored.keys())
        self._notify(events.PartitionsAssigned({p: progress.position for p, progress in restored.items()}))

    def _forget(self, partitions: Collection[int]) -> None:
        """Drop the progress of partitions, and all of their records."""
        self._undecoded_partitions -= set(partitions)
        self._in_flight.drop(partitions)
        self._first_records.forget(partitions)
        for partition in partitions:
            self.progress.pop(partition, None)
