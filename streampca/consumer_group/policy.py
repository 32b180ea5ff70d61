"""Decides what a member does with bad records, with lost records, and with numbers of another type than configured.

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
_HOLD_BACK_S = 60.0  # longest time for which first records are held back, if fewer than `FIRST` come


@dataclass(frozen=True)
class MemberPolicy:
    """Decides what a member does with bad records, and where it resumes if the log has lost the next one."""

    topic: str
    on_bad_record: str = "stop"  # stop, skip, or dead_letter
    on_offset_gap: str = "fail"  # fail, earliest or latest
    suspects: ClassVar[str]  # for errors: settings that may be wrong if the first records are all rejected
    start_over: ClassVar[str]  # for errors: the settings to change to read all records again

    def find_stop(self, event: Vectors) -> Reject | None:
        """Return the rejected record at which the member must stop, or None if it may continue."""
        rejects = event.decoded.rejects
        return rejects[0] if rejects and self.on_bad_record == "stop" else None

    def describe_stop(self, event: Vectors, reject: Reject) -> BadRecordError:
        """Return the error of a member that stops at a rejected record."""
        offset = event.records[reject.index].offset
        return BadRecordError(
            f"partition {event.partition} of {self.topic}, offset {offset}: "
            f"{reject.message} ({reject.reason}); set dead_letter_topic to send such records there, or "
            "on_bad_record=skip; if all records are like this, correct format, field or dimensions"
        )

    def find_dead_letters(self, event: Vectors, *, accepted_any: bool) -> Sequence[Reject]:
        """Return the rejected records to send to the dead-letter topic, before the position moves behind them.

        If the member has accepted no vector yet, and 100 records are rejected before the first one of this batch,
        raises `RejectLimitError`.
        """
        if self.on_bad_record != "dead_letter":
            return []
        rejects = event.decoded.rejects
        indices = event.decoded.indices
        first_vector = indices[0] if len(indices) else len(event.records)
        if not accepted_any and len(rejects) >= FIRST and rejects[FIRST - 1].index < first_vector:
            raise self._describe_wrong_settings(event, rejects[:FIRST])
        return rejects

    def _describe_wrong_settings(self, event: Vectors, rejects: Sequence[Reject]) -> RejectLimitError:
        """Return the error of records that are all rejected; it names the most frequent reason, with an example."""
        reason, count = Counter(reject.reason for reject in rejects).most_common(1)[0]
        how_many = "all" if count == len(rejects) else f"{count} of them"
        example = next(reject for reject in rejects if reject.reason == reason)
        first_offset = event.records[0].offset
        example_offset = event.records[example.index].offset
        return RejectLimitError(
            f"partition {event.partition} of {self.topic}: {len(rejects)} records in a row were rejected, from offset "
            f"{first_offset} on; {how_many} as {reason}, such as offset {example_offset}: "
            f"{example.message}; correct the settings ({self.suspects}) or the producer and start again, which reads "
            "all of them again; or leave such records out: on_bad_record=skip, without a dead_letter_topic"
        )

    def resume_at(self, event: OutOfRange) -> int:
        """Return the offset to resume at when the log does not hold the next record. Raises `OffsetGapError`."""
        where = f"partition {event.partition} of {self.topic}: offset {event.position}"
        if event.diverged is not None:
            if self.on_offset_gap == "fail":
                raise OffsetGapError(
                    f"{where} follows records that are not in the log any more: it was cut at offset {event.diverged} "
                    "or before and has grown again, so records that were read are gone and others were not read; start "
                    f"over with {self.start_over}, or set on_offset_gap to earliest or latest to continue"
                )
            return event.position if self.on_offset_gap == "earliest" else event.latest
        if event.position >= event.earliest:  # the position was beyond the end of the log, which may have grown since
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


def report_rejected_and_skipped(event: Vectors, *, accepted_any: bool) -> Iterator[RecordRejected | RecordsSkipped]:
    """Yield the events that report the rejected and the skipped records of a batch."""
    for reject in event.decoded.rejects:
        yield RecordRejected(event.partition, event.records[reject.index].offset, reject.reason, reject.message)
    if event.decoded.skipped:
        yield RecordsSkipped(len(event.decoded.skipped), accepted_any)


@dataclass
class _FirstOfPartition:
    """What is known of the first records of one partition."""

    numbers: list[Array] = field(default_factory=list)  # samples of the records that do not name their type
    compared: int = 0  # number of records that were compared
    position: int = 0  # the next offset to compare
    is_held_back: bool = False  # records were compared and not handled: they must be read again
    is_overdue: bool = False  # the minute is over: the next records are handled once they are compared
    due_at: float | None = None  # monotonic seconds, when the minute is over; None: it has not begun


class Comparison(Protocol):
    """Compares the numbers of records that do not name their type, as `formats.codec.Codec` does."""

    def sample_untyped(self, records: Sequence[Record]) -> list[Array]:
        """Return numbers of each vector whose record does not name their type: all (d,), or a sample."""

    def explain_wrong_type(self, samples: Sequence[Array]) -> str:
        """Return why these numbers cannot be what was sent; "" if they can."""


class FirstRecords:
    """Compares the first records of partitions with the configured type, before any of them is handled.

    Only their numbers are kept. Records that cannot be handled yet are dropped, and read again later.
    """

    def __init__(self, topic: str, comparison: Comparison) -> None:
        self._topic = topic
        self._comparison = comparison
        self._partitions: dict[int, _FirstOfPartition] = {}  # those whose first records are being compared

    def begin(self, partitions: Collection[int]) -> None:
        """Compare the next records of these partitions, which are their first ones."""
        self._partitions |= {partition: _FirstOfPartition() for partition in partitions}

    def forget(self, partitions: Collection[int]) -> None:
        """Compare no more records of these partitions."""
        for partition in partitions:
            self._partitions.pop(partition, None)

    def holds_back(self, partition: int) -> bool:
        """Whether records of this partition were compared and not handled."""
        return partition in self._partitions and self._partitions[partition].is_held_back

    def may_handle(self, event: Vectors) -> bool:
        """Compare the records of an event, if they are among the first, and return whether they may be handled.

        If not, the event must be dropped: its records are read again later. Raises `RejectLimitError` if the records
        cannot be of the configured type.
        """
        first = self._partitions.get(event.partition)
        if first is None:
            return True
        self._compare(first, event)
        if not first.is_held_back and first.compared >= FIRST:
            self.forget([event.partition])
            return True
        any_without_type = bool(first.numbers)  # otherwise all records name the type of their numbers
        if any_without_type and not first.is_overdue:
            first.is_held_back = True
        return not first.is_held_back

    def take_due(self, now: float) -> list[int]:
        """Return the partitions whose first records must be read again now, to be handled.

        They must if 100 records were compared, or a minute is over. The minute begins with the first call after records
        were held back.
        """
        due = []
        for partition, first in self._partitions.items():
            if first.is_held_back and first.due_at is None:
                first.due_at = now + _HOLD_BACK_S
            first.is_overdue = first.due_at is not None and now >= first.due_at
            if first.is_held_back and (first.is_overdue or first.compared >= FIRST):
                first.is_held_back = False
                due.append(partition)
        return due

    def _compare(self, first: _FirstOfPartition, event: Vectors) -> None:
        """Compare the event's records with the configured type, up to the first 100, and each only once."""
        rejects = event.decoded.rejects
        # A schema that is not known yet may be registered later: its records do not count among the 100.
        unknown_schema = {reject.index for reject in rejects if reject.reason == "unknown_schema"}
        new = (index for index, record in enumerate(event.records) if record.offset >= first.position)
        indices = islice(new, FIRST - first.compared)
        compared = [event.records[index] for index in indices if index not in unknown_schema]
        first.compared += len(compared)
        first.position = max(first.position, event.next)
        first.numbers += self._comparison.sample_untyped(compared)
        why_wrong_type = self._comparison.explain_wrong_type(first.numbers)
        if why_wrong_type:
            raise RejectLimitError(
                f"partition {event.partition} of {self._topic}: the first records are not what was sent: "
                f"{why_wrong_type}"
            )
