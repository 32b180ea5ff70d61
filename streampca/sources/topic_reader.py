"""Reads a topic without a group: dead letters, records to audit, the newest records, and the last outputs."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from streampca.errors import NoBrokerError, SourceError
from streampca.formats.record import Record
from streampca.process import watchdog
from streampca.sources.base import Source
from streampca.sources.events import OutOfRange, Records

_POLL_S = 0.2
_RECORD_TIMEOUT_S = 60.0  # longest wait for the next record
_SHORT_RECORD_TIMEOUT_S = 5.0  # for the last records, which a person or a member's start waits for
# `find_last` searches the last 100 offsets of a partition, then the 400 before them, and so on: 546,100 in all.
_STEPS = (100, 400, 1600, 6400, 25_600, 102_400, 409_600)
_MOST_FOUND_PER_PARTITION = 100  # the last of the wanted records that `find_last` has read


class _StalledError(NoBrokerError):
    """No new record came for too long."""


class TopicReader:
    """Reads the committed records of a topic, from the earliest to the ends when the reader was opened.

    While a transaction is open, it hides the committed records behind its own, and the reader waits for its end. If
    brokers refuse or do not answer, all methods raise `SourceError`.
    """

    def __init__(self, source: Source, topic: str, log_bounds: Mapping[int, tuple[int, int]]) -> None:
        """`source` has no group. `log_bounds` holds each partition's earliest offset and its high watermark."""
        self._source = source
        self._topic = topic
        self.log_bounds = log_bounds

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def read(self) -> Iterator[tuple[int, Record]]:
        """Yield all records with their partitions; the same ones at every call."""
        ends = {partition: end for partition, (_, end) in self.log_bounds.items()}
        from_earliest: dict[int, int | None] = dict.fromkeys(ends)
        return self._read_to(ends, from_earliest)

    def read_between(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """Yield a partition's records from offset `start` to before `end`. Raises `SourceError` if they are gone."""
        earliest, high_watermark = self.log_bounds.get(partition, (0, 0))
        if not earliest <= start < end <= high_watermark:
            raise SourceError(
                f"partition {partition} of {self._topic} holds offsets {earliest} to {high_watermark}, "
                f"not {start} to {end}"
            )
        return (record for _, record in self._read_to(ends={partition: end}, starts={partition: start}))

    def find_bounds(self) -> dict[int, tuple[int, int]]:
        """Return each partition's earliest offset, and the offset at which its committed records end now."""
        ends = self._source.offsets_at(self.log_bounds, None)  # None: the ends of the committed records
        return {partition: (earliest, ends[partition]) for partition, (earliest, _) in sorted(self.log_bounds.items())}

    def read_newest(self, bounds: Mapping[int, tuple[int, int]], count: int) -> list[tuple[int, Record]]:
        """Return about `count` of the newest records with their partitions, in the order of their timestamps.

        Records that an open transaction blocks are left out.
        """
        per_partition = math.ceil(count / len(bounds))
        ends = {partition: end for partition, (_, end) in bounds.items()}
        starts = {partition: max(end - per_partition, earliest) for partition, (earliest, end) in bounds.items()}
        records: list[tuple[int, Record]] = []
        with suppress(_StalledError):
            for event in self._events(ends, starts, record_timeout_s=_SHORT_RECORD_TIMEOUT_S):
                records += ((event.partition, record) for record in event.records)
        return sorted(records, key=lambda partition_and_record: partition_and_record[1].timestamp)

    def find_last(
        self, partitions: Collection[int], is_wanted: Callable[[Record], bool]
    ) -> Mapping[int, Sequence[Record]]:
        """Return at most 100 of the last wanted records of each partition.

        A partition is searched backwards, in longer and longer steps, until a step finds wanted records. Only about the
        last 500,000 offsets are searched. If they hold no wanted record, but the partition has earlier offsets, the
        partition is left out. While a transaction is open, raises `NoBrokerError`, as for any records that cannot be
        read yet.
        """
        found = {partition: deque[Record](maxlen=_MOST_FOUND_PER_PARTITION) for partition in partitions}
        earliest = {partition: self.log_bounds[partition][0] for partition in partitions}
        # Partition → the offset from which on all records were searched; at first, the end of its records.
        searched_from = dict(self._find_ends_without_open_transactions(partitions))
        # Each step ends where the step before it has begun. It leaves out partitions in which records were found.
        for step in _STEPS:  # 100 offsets, then 400, and so on
            ends = {p: offset for p, offset in searched_from.items() if offset > earliest[p] and not found[p]}
            starts = {p: max(end - step, earliest[p]) for p, end in ends.items()}
            for partition, record in self._read_to(ends, starts, _SHORT_RECORD_TIMEOUT_S):
                if is_wanted(record):
                    found[partition].append(record)
            searched_from |= starts
        # A partition without found records is kept only if it was searched back to its earliest offset.
        return {p: records for p, records in found.items() if records or searched_from[p] <= earliest[p]}

    def _find_ends_without_open_transactions(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Return the ends of the committed records of partitions. If a transaction is open, raise `_StalledError`.

        An open transaction hides the records between this end and the end of the log.
        """
        committed_ends = self._source.offsets_at(partitions, None)  # None: the ends of the committed records
        for partition, committed_end in committed_ends.items():
            high_watermark = self.log_bounds[partition][1]
            is_transaction_open = committed_end < high_watermark
            if is_transaction_open:
                raise self._make_stalled_error(partition)
        return committed_ends

    def _read_to(
        self, ends: Mapping[int, int], starts: Mapping[int, int | None], record_timeout_s: float = _RECORD_TIMEOUT_S
    ) -> Iterator[tuple[int, Record]]:
        """Yield the records of partitions from `starts` to before `ends`, with their partitions.

        A start of None is the earliest record.
        """
        for event in self._events(ends, starts, record_timeout_s):
            end = ends[event.partition]
            yield from ((event.partition, record) for record in event.records if record.offset < end)

    def _events(
        self, ends: Mapping[int, int], starts: Mapping[int, int | None], record_timeout_s: float
    ) -> Iterator[Records]:
        """Yield events with records, from the `starts` of partitions until each has reached its end.

        A start of None is the earliest record. The last event of a partition may also hold records behind the end.
        Raises `SourceError`, or `_StalledError` after `record_timeout_s` without a record.
        """
        # A partition with the end 0 never had a record, so it needs no event. If all records of another partition were
        # deleted, the source returns an event without records, whose `next` is the end.
        unfinished = {partition for partition, end in ends.items() if end > 0}
        self._source.seek({partition: starts[partition] for partition in unfinished})
        deadline = time.monotonic() + record_timeout_s
        while unfinished:
            watchdog.tick()
            for event in self._source.poll(_POLL_S):
                if isinstance(event, OutOfRange):
                    raise SourceError(f"partition {event.partition} of {self._topic} begins at {event.earliest} now")
                if not isinstance(event, Records) or event.partition not in unfinished:
                    continue
                yield event
                deadline = time.monotonic() + record_timeout_s  # the caller may have taken long
                if event.next >= ends[event.partition]:
                    unfinished.remove(event.partition)
            if unfinished and time.monotonic() > deadline:
                raise self._make_stalled_error(min(unfinished))

    def _make_stalled_error(self, partition: int) -> _StalledError:
        return _StalledError(
            f"partition {partition} of {self._topic} cannot be read to its end: no broker answers, or a transaction of "
            "another producer is open; try again later"
        )
