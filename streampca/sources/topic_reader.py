"""Reads a topic without a group: dead letters, records to audit, and the newest records."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from streampca.errors import SourceError
from streampca.formats.record import Record
from streampca.sources.base import Source
from streampca.sources.events import OutOfRange, Records

_POLL_S = 0.2
_STALLED_AFTER_S = 60.0  # without a new record; a reader of the newest records waits shorter
_NEWEST_STALLED_AFTER_S = 5.0


class _StalledError(SourceError):
    """No new record came for too long."""


class TopicReader:
    """Reads the committed records of a topic, from the earliest to the ends when the reader was opened.

    If brokers refuse or do not answer, all methods raise `SourceError`.
    """

    def __init__(self, source: Source, topic: str, log_ends: Mapping[int, tuple[int, int]]) -> None:
        """`source` has no group. `log_ends` holds each partition's earliest offset and its high watermark.

        If a transaction is open, committed records end before the high watermark. The reader waits for the rest, since
        a replay note may be in it.
        """
        self._source = source
        self._topic = topic
        self.log_ends = log_ends

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def read(self) -> Iterator[tuple[int, Record]]:
        """Read the records with their partitions; the same ones at every call."""
        ends = {partition: end for partition, (_, end) in self.log_ends.items()}
        from_earliest: dict[int, int | None] = dict.fromkeys(ends)  # None, see `Source.seek`
        return self._read_to(ends, from_earliest)

    def between(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """Read a partition's records from offset `start` to before `end`. Raises `SourceError` if they are gone."""
        earliest, high_watermark = self.log_ends.get(partition, (0, 0))
        if not earliest <= start < end <= high_watermark:
            held = f"holds offsets {earliest} to {high_watermark}, not {start} to {end}"
            raise SourceError(f"partition {partition} of {self._topic} {held}")
        return (record for _, record in self._read_to({partition: end}, {partition: start}))

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return each partition's earliest offset, and where its committed records end now."""
        ends = self._source.offsets_at(self.log_ends, None)
        return {partition: (earliest, ends[partition]) for partition, (earliest, _) in sorted(self.log_ends.items())}

    def newest_records(self, bounds: Mapping[int, tuple[int, int]], count: int) -> list[tuple[int, Record]]:
        """Read about `count` of the last records, equally many of each partition in `bounds`, with their partitions.

        The newest comes last. If an open transaction blocks records, they are left out after some seconds.
        """
        per_partition = math.ceil(count / len(bounds))
        starts = {p: max(end - per_partition, earliest) for p, (earliest, end) in bounds.items()}
        ends = {p: end for p, (_, end) in bounds.items()}
        records: list[tuple[int, Record]] = []
        with suppress(_StalledError):
            for event in self._events(ends, starts, stalled_after_s=_NEWEST_STALLED_AFTER_S):
                records += ((event.partition, record) for record in event.records)
        return sorted(records, key=lambda partition_and_record: partition_and_record[1].timestamp)

    def _read_to(self, ends: Mapping[int, int], starts: Mapping[int, int | None]) -> Iterator[tuple[int, Record]]:
        for event in self._events(ends, starts, stalled_after_s=_STALLED_AFTER_S):
            end = ends[event.partition]
            yield from ((event.partition, record) for record in event.records if record.offset < end)

    def _events(
        self, ends: Mapping[int, int], starts: Mapping[int, int | None], stalled_after_s: float
    ) -> Iterator[Records]:
        """Read the records from `starts` to `ends`, and maybe some more.

        Raises `_StalledError` if no new record comes for `stalled_after_s`.
        """
        left = {partition for partition, end in ends.items() if end}  # not read to their ends yet
        self._source.seek({partition: starts[partition] for partition in left})
        deadline = time.monotonic() + stalled_after_s
        while left:
            for event in self._source.poll(_POLL_S):
                if isinstance(event, OutOfRange):
                    raise SourceError(f"partition {event.partition} of {self._topic} begins at {event.earliest} now")
                if isinstance(event, Records) and event.partition in left:
                    yield event
                    deadline = time.monotonic() + stalled_after_s  # after `yield`: the caller may have taken long
                    if event.next >= ends[event.partition]:
                        left.remove(event.partition)
            if left and time.monotonic() > deadline:
                raise _StalledError(
                    f"partition {min(left)} of {self._topic} cannot be read to its end: no broker answers, or a "
                    "transaction of another producer is open; try again later"
                )
