"""Decides what a member does with bad records, with first records of another type than configured, and with lost ones.

A member stops at the first bad record, skips bad records, or sends them to the dead-letter topic. Raw bytes of another
type are numbers too, and a single vector does not show that. So the first records of a partition are held back until
100 of them have been compared with the configured type, or for a minute; nothing is learned, sent or rejected before.
Records that name the type of their numbers are not held back.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, Protocol

from streampca.consumer_group.events import RecordRejected, RecordsSkipped
from streampca.errors import BadRecordError, OffsetGapError, RejectLimitError
from streampca.formats.record import Record, Reject
from streampca.pca.arrays import Array
from streampca.sources.events import OutOfRange, Vectors

FIRST = 100  # records of a partition: if none of them has a vector, a setting is wrong
ALL_DELETES = "all are tombstones or null at `field`: correct field if they should have vectors"
_WAIT_S = 60.0  # for which records are held back if fewer than `FIRST` come


@dataclass(frozen=True)
class MemberPolicy:
    """Decides what a member does with bad records, and where it resumes if the log has lost the next one."""

    topic: str
    on_bad_record: str = "stop"  # stop, skip, or dead_letter
    on_offset_gap: str = "fail"  # fail, earliest or latest
    suspects: ClassVar[str]  # settings that may be wrong if the first records are all rejected
    start_over: ClassVar[str]  # with these settings, for errors

    def stops_at(self, event: Vectors) -> Reject | None:
        """The rejected record at which the member stops, after it has handled those before; None if it may continue."""
        rejects = event.decoded.rejects
        return rejects[0] if rejects and self.on_bad_record == "stop" else None

    def error(self, event: Vectors, reject: Reject) -> BadRecordError:
        """The error of a member that stops at a rejected record."""
        return BadRecordError(
            f"partition {event.partition} of {self.topic}, offset {event.records[reject.index].offset}: "
            f"{reject.message} ({reject.reason}); set dead_letter_topic to send such records there, or "
            "on_bad_record=skip; if all records are like this, correct format, field or dimensions"
        )

    def dead_letters(self, event: Vectors, *, accepted_any: bool) -> Sequence[Reject]:
        """The rejected records to send to the dead-letter topic, before the position moves behind them.

        Raises `RejectLimitError` if no record was accepted yet and 100 are rejected before the first vector.
        """
        if self.on_bad_record != "dead_letter":
            return []
        rejects, indices = event.decoded.rejects, event.decoded.indices
        first = indices[0] if len(indices) else len(event.records)
        if not accepted_any and len(rejects) >= FIRST and rejects[FIRST - 1].index < first:
            raise self._wrong_settings(event, rejects[:FIRST])
        return rejects

    def _wrong_settings(self, event: Vectors, rejects: Sequence[Reject]) -> RejectLimitError:
        """The error of records that are all rejected; it names the most frequent reason, with an example."""
        reason, count = Counter(reject.reason for reject in rejects).most_common(1)[0]
        example = next(reject for reject in rejects if reject.reason == reason)
        first_offset, example_offset = event.records[0].offset, event.records[example.index].offset
        return RejectLimitError(
            f"partition {event.partition} of {self.topic}: {FIRST} records in a row were rejected, from offset "
            f"{first_offset} on; {'all' if count == FIRST else f'{count} of them'} as {reason}, such as offset "
            f"{example_offset}: "
            f"{example.message}; correct the settings ({self.suspects}) or the producer and start again, which reads "
            "all of them again; or leave such records out: on_bad_record=skip, without a dead_letter_topic"
        )

    def resume_at(self, event: OutOfRange) -> int:
        """The offset to resume at when the log does not hold the next record. Raises `OffsetGapError`."""
        where = f"partition {event.partition} of {self.topic}: offset {event.position}"
        if event.diverged is not None:
            if self.on_offset_gap == "fail":
                raise OffsetGapError(
                    f"{where} follows records that are not in the log any more: it was cut at offset {event.diverged} "
                    "or before and has grown again, so records that were read are gone and others were not read; start "
                    f"over with {self.start_over}, or set on_offset_gap to earliest or latest to continue"
                )
            return event.position if self.on_offset_gap == "earliest" else event.latest
        if event.position >= event.earliest:  # it was beyond the end of the log, which may have grown since
            raise OffsetGapError(
                f"{where} is beyond the end of the log (it holds {event.earliest} to {event.latest}): records that "
                f"were read are gone from the broker (it lost data); start over with {self.start_over}"
            )
        if self.on_offset_gap == "fail":
            raise OffsetGapError(
                f"{where} was removed by retention, the log starts at {event.earliest}; set on_offset_gap to earliest "
                "or latest to resume without the records between"
            )
        return event.earliest if self.on_offset_gap == "earliest" else event.latest


def without_vectors(event: Vectors, *, accepted_any: bool) -> Iterator[RecordRejected | RecordsSkipped]:
    """The events that report the rejected and the skipped records of a batch."""
    for reject in event.decoded.rejects:
        yield RecordRejected(event.partition, event.records[reject.index].offset, reject.reason, reject.message)
    if event.decoded.skipped:
        yield RecordsSkipped(len(event.decoded.skipped), accepted_any)


@dataclass
class _Start:
    """What is known of the first records of one partition."""

    numbers: list[Array] = field(default_factory=list)  # of the records that do not name their type
    compared: int = 0  # records that were compared
    position: int = 0  # of the first record that was not compared
    is_withheld: bool = False  # records were compared and not handled: they must be read again
    is_overdue: bool = False  # records were held back for a minute: the next ones are handled once they are compared
    due_at: float | None = None  # when the minute is over; None: it has not begun


class Comparison(Protocol):
    """Compares the numbers of records that do not name their type, as `formats.codec.Codec` does."""

    def sample_untyped(self, records: Sequence[Record]) -> list[Array]:
        """Numbers of those vectors in records whose type is not named: all, or a sample, of each (d,)."""

    def explain_wrong_type(self, samples: Sequence[Array]) -> str:
        """Why these numbers cannot be what was sent; "" if they can."""


class FirstRecords:
    """Compares the first records of partitions with the configured type, before any of them is handled.

    Only their numbers are kept. Records that cannot be handled yet are dropped, and read again later.
    """

    def __init__(self, topic: str, comparison: Comparison) -> None:
        self._topic = topic
        self._comparison = comparison
        self._starts: dict[int, _Start] = {}  # of the partitions whose first records are compared

    def begin(self, partitions: Collection[int]) -> None:
        """Compare the next records of these partitions, which are their first ones."""
        self._starts |= {partition: _Start() for partition in partitions}

    def forget(self, partitions: Collection[int]) -> None:
        """Compare no more records of these partitions."""
        for partition in partitions:
            self._starts.pop(partition, None)

    def withholds(self, partition: int) -> bool:
        """Whether records of this partition were compared and not handled."""
        return partition in self._starts and self._starts[partition].is_withheld

    def may_handle(self, event: Vectors) -> bool:
        """Compare the records of an event, if they are among the first, and return whether they may be handled.

        If not, the event must be dropped: its records are read again later. Raises `RejectLimitError` if the records
        cannot be of the configured type.
        """
        start = self._starts.get(event.partition)
        if start is None:
            return True
        self._compare(start, event)
        if not start.is_withheld and start.compared >= FIRST:
            self.forget([event.partition])
            return True
        needs_more = bool(start.numbers) and not start.is_overdue  # without numbers, all records name their type
        start.is_withheld = start.is_withheld or needs_more
        return not start.is_withheld

    def take_due(self, now: float) -> list[int]:
        """The partitions whose first records must now be read again: 100 were compared, or a minute is over.

        The minute begins with the first call after records were held back.
        """
        due = []
        for partition, start in self._starts.items():
            if start.is_withheld and start.due_at is None:
                start.due_at = now + _WAIT_S
            start.is_overdue = start.due_at is not None and now >= start.due_at
            if start.is_withheld and (start.is_overdue or start.compared >= FIRST):
                start.is_withheld = False
                due.append(partition)
        return due

    def _compare(self, start: _Start, event: Vectors) -> None:
        """Compare the event's records with the configured type, up to the first 100, and each only once."""
        rejects = event.decoded.rejects
        # A schema that is not known yet may be registered later: such a record is read again, and compared then.
        unknown_schema = {reject.index for reject in rejects if reject.reason == "unknown_schema"}
        new = (index for index, record in enumerate(event.records) if record.offset >= start.position)
        indices = islice(new, FIRST - start.compared)
        compared = [event.records[index] for index in indices if index not in unknown_schema]
        start.compared += len(compared)
        start.position = max(start.position, event.next)
        start.numbers += self._comparison.sample_untyped(compared)
        odd = self._comparison.explain_wrong_type(start.numbers)
        if odd:
            raise RejectLimitError(
                f"partition {event.partition} of {self._topic}: the first records are not what was sent: {odd}"
            )
