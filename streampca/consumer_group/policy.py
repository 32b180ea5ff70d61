"""Decides what a member does with bad records, first records that are not what was sent, and records that are lost.

A member stops at the first bad record, skips them, or sends them to the dead-letter topic. The first records of a
partition wait until 100 of them were compared, or for a minute: raw bytes of another type are numbers too, and one
vector does not show it. So nothing is learned, sent or rejected before. Formats that name the type of their numbers do
not wait.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from streampca.consumer_group.events import RecordRejected, RecordsSkipped
from streampca.errors import BadRecordError, OffsetGapError, RejectLimitError
from streampca.formats.record import Record, Reject
from streampca.sources.events import OutOfRange, Vectors

FIRST = 100  # records: if none of them has a vector, a setting is wrong
ALL_DELETES = "all are tombstones or null at `field`: correct field if they should have vectors"
_WAIT_S = 60.0

V = TypeVar("V", bound=Vectors)


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


class FirstRecords:
    """Holds back the events of partitions at their start."""

    def __init__(self, topic: str, oddity: Callable[[Sequence[Record]], str | None]) -> None:
        """`oddity` says why records are not what was sent: "" if they may be, None if they name their type."""
        self._topic, self._oddity = topic, oddity
        self._records: dict[int, list[Record]] = {}  # of partitions at their start, the first
        self._waiting: dict[int, list[Any]] = {}
        self._until: dict[int, float] = {}  # from the first `due` on

    def __contains__(self, partition: int) -> bool:
        """Whether a partition's next records are needed. Any thread may ask."""
        return partition in self._records

    def begin(self, partitions: Collection[int]) -> None:
        """The next events of these partitions are their first ones."""
        self._records |= {partition: [] for partition in partitions}

    def forget(self, partitions: Collection[int]) -> None:
        """Drop what waits: it will be read again."""
        for partition in partitions:
            for of_partitions in (self._records, self._waiting, self._until):
                of_partitions.pop(partition, None)

    def after(self, event: V) -> list[V]:
        """The events that may be handled now that this one has come. Raises `RejectLimitError`."""
        if (records := self._records.get(event.partition)) is None:
            return [event]
        unknown = {reject.index for reject in event.decoded.rejects if reject.reason == "unknown_schema"}  # yet
        first = event.records[: FIRST - len(records)]
        records += [record for index, record in enumerate(first) if index not in unknown]
        if odd := self._oddity(records):
            raise RejectLimitError(
                f"partition {event.partition} of {self._topic}: the first records are not what was sent: {odd}"
            )
        ready = [*self._waiting.pop(event.partition, []), event]
        if len(records) >= FIRST:
            self.forget([event.partition])
        elif odd is not None:
            self._waiting[event.partition] = ready
            return []
        return ready

    def due(self, now: float) -> list[Any]:
        """The events that have waited for a minute."""
        over = [partition for partition in self._waiting if now >= self._until.setdefault(partition, now + _WAIT_S)]
        return [event for partition in over for event in self._waiting.pop(partition)]
