"""Decides what a member does with bad records, first records that are not what was sent, and records that are lost.

A member stops at the first bad record, skips them, or sends them to the dead-letter topic. The first records of a
partition wait until 100 of them were compared, or for a minute: raw bytes of another type are numbers too, and one
vector does not show it. So nothing is learned, sent or rejected before. Records that name the type of their numbers do
not wait.
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

FIRST = 100  # records: if none of them has a vector, a setting is wrong
ALL_DELETES = "all are tombstones or null at `field`: correct field if they should have vectors"
_WAIT_S = 60.0


@dataclass(frozen=True)
class MemberPolicy:
    """Decides what a member does with bad records, and where it resumes if the log has lost the next one."""

    topic: str
    on_bad_record: str = "stop"  # stop, skip, or dead_letter
    on_offset_gap: str = "fail"  # fail, earliest or latest
    suspects: ClassVar[str]  # settings that may be wrong if the first records are all rejected
    start_over: ClassVar[str]  # with these settings, for errors

    def stops_at(self, event: Vectors) -> Reject | None:
        """The reject that ends the member, after the records before it; None if it may continue."""
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
        """The rejects to send to the dead-letter topic, before the position moves behind them.

        Raises `RejectLimitError` if none was accepted before, and 100 records are rejected before the first vector.
        """
        if self.on_bad_record != "dead_letter":
            return []
        rejects, indices = event.decoded.rejects, event.decoded.indices
        first = indices[0] if len(indices) else len(event.records)
        if not accepted_any and len(rejects) >= FIRST and rejects[FIRST - 1].index < first:
            raise self._wrong_settings(event, rejects[:FIRST])
        return rejects

    def _wrong_settings(self, event: Vectors, rejects: Sequence[Reject]) -> RejectLimitError:
        ((reason, count),) = Counter(reject.reason for reject in rejects).most_common(1)
        example = next(reject for reject in rejects if reject.reason == reason)
        offset, at = event.records[0].offset, event.records[example.index].offset
        return RejectLimitError(
            f"partition {event.partition} of {self.topic}: {FIRST} records in a row were rejected, from offset "
            f"{offset} on; {'all' if count == FIRST else f'{count} of them'} as {reason}, such as offset {at}: "
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
    """The events of the rejected and the skipped records of a batch."""
    for reject in event.decoded.rejects:
        yield RecordRejected(event.partition, event.records[reject.index].offset, reject.reason, reject.message)
    if event.decoded.skipped:
        yield RecordsSkipped(len(event.decoded.skipped), accepted_any)


@dataclass
class _Start:
    """What is known of the first records of one partition."""

    numbers: list[Array] = field(default_factory=list)  # of the records that do not name their type
    compared: int = 0  # records
    position: int = 0  # of the first record that was not compared
    is_withheld: bool = False  # records were compared and not handled: they must be read again
    is_overdue: bool = False  # it has waited for a minute: the next records are compared, and handled at once
    due_at: float | None = None  # when the minute is over


class Comparison(Protocol):
    """Compares the numbers of records that do not name their type, as `formats.codec.Codec` does."""

    def untyped(self, records: Sequence[Record]) -> list[Array]:
        """Numbers of those vectors in records whose type is not named: all, or a sample, of each (d,)."""

    def oddity_of(self, numbers: Sequence[Array]) -> str | None:
        """Why these numbers cannot be what was sent; "" if they can, None without numbers."""


class FirstRecords:
    """Compares the first records of partitions before any of them is handled.

    Only their numbers are kept. Records that cannot be handled yet are dropped, and read again later.
    """

    def __init__(self, topic: str, comparison: Comparison) -> None:
        self._topic, self._comparison = topic, comparison
        self._starts: dict[int, _Start] = {}

    def begin(self, partitions: Collection[int]) -> None:
        """The next events of these partitions are their first ones."""
        self._starts |= {partition: _Start() for partition in partitions}

    def forget(self, partitions: Collection[int]) -> None:
        """Compare no more records of these partitions."""
        for partition in partitions:
            self._starts.pop(partition, None)

    def withholds(self, partition: int) -> bool:
        """Whether records of this partition were compared and not handled."""
        return partition in self._starts and self._starts[partition].is_withheld

    def may_handle(self, event: Vectors) -> bool:
        """Compare the records of an event; returns False if it must be dropped. Raises `RejectLimitError`."""
        if (start := self._starts.get(event.partition)) is None:
            return True
        self._compare(start, event)
        if not start.is_withheld and start.compared >= FIRST:
            self.forget([event.partition])
            return True
        start.is_withheld = start.is_withheld or (bool(start.numbers) and not start.is_overdue)
        return not start.is_withheld

    def take_due(self, now: float) -> list[int]:
        """The partitions to be read again from where they began: 100 records were compared, or a minute is over."""
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
        """Compare those of the first 100 records that were not compared yet."""
        unknown = {reject.index for reject in event.decoded.rejects if reject.reason == "unknown_schema"}  # yet
        new = (i for i, record in enumerate(event.records) if record.offset >= start.position)
        first = [event.records[i] for i in islice(new, FIRST - start.compared) if i not in unknown]
        start.compared += len(first)
        start.position = max(start.position, event.next)
        start.numbers += self._comparison.untyped(first)
        if odd := self._comparison.oddity_of(start.numbers):
            raise RejectLimitError(
                f"partition {event.partition} of {self._topic}: the first records are not what was sent: {odd}"
            )
