"""Reads a topic without a group: dead letters, records to audit, and the newest ones."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from streampca.errors import SourceError
from streampca.formats.record import Record
from streampca.sources.base import Source
from streampca.sources.events import OutOfRange, Records

_POLL_S = 0.2
_STALLED_S = 60.0  # without progress
_NEWEST_S = 5.0


class _StalledError(SourceError):
    """No more records come."""


class TopicReader:
    """Reads the committed records of a topic, from the earliest to the ends when the reader was opened.

    All methods raise `SourceError` if brokers refuse or do not answer.
    """

    def __init__(self, source: Source, topic: str, log_ends: Mapping[int, tuple[int, int]]) -> None:
        """With a source without a group, and each partition's earliest offset and high watermark.

        High watermarks, since a mark may be behind an open transaction, where readers of committed records stop.
        """
        self._source, self._topic, self.log_ends, self.close = source, topic, log_ends, source.close

    def read(self) -> Iterator[tuple[int, Record]]:
        """The records with their partitions; the same ones at every call."""
        ends = {partition: end for partition, (_, end) in self.log_ends.items()}
        return self._read_to(ends, dict.fromkeys(ends))

    def between(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """The records of a partition from one offset to before another. Raises `SourceError` if they are gone."""
        first, last = self.log_ends.get(partition, (0, 0))
        if not first <= start < end <= last:
            held = f"holds offsets {first} to {last}, not {start} to {end}"
            raise SourceError(f"partition {partition} of {self._topic} {held}")
        return (record for _, record in self._read_to({partition: end}, {partition: start}))

    def bounds(self) -> dict[int, tuple[int, int]]:
        """The earliest offset of each partition, and where the committed records end."""
        ends = self._source.offsets_at(self.log_ends, None)
        return {partition: (first, ends[partition]) for partition, (first, _) in sorted(self.log_ends.items())}

    def newest_records(self, bounds: Mapping[int, tuple[int, int]], count: int) -> list[tuple[int, Record]]:
        """About `count` of the last records of these partitions, as many of each, the newest last; with its partition.

        They are those that came in time: an open transaction may block others.
        """
        starts = {p: max(end - -(-count // len(bounds)), first) for p, (first, end) in bounds.items()}
        records: list[tuple[int, Record]] = []
        with suppress(_StalledError):
            for event in self._events({p: end for p, (_, end) in bounds.items()}, starts, _NEWEST_S):
                records += ((event.partition, record) for record in event.records)
        return sorted(records, key=lambda found: found[1].timestamp)

    def _read_to(self, ends: Mapping[int, int], starts: Mapping[int, int | None]) -> Iterator[tuple[int, Record]]:
        for event in self._events(ends, starts, _STALLED_S):
            end = ends[event.partition]
            yield from ((event.partition, record) for record in event.records if record.offset < end)

    def _events(
        self, ends: Mapping[int, int], starts: Mapping[int, int | None], patience_s: float
    ) -> Iterator[Records]:
        """The records from `starts` to `ends` at least. Raises `_StalledError` if no more come for `patience_s`."""
        left = {partition for partition, end in ends.items() if end}
        self._source.seek({partition: starts[partition] for partition in left})
        deadline = time.monotonic() + patience_s
        while left:
            for event in self._source.poll(_POLL_S):
                if isinstance(event, OutOfRange):
                    raise SourceError(f"partition {event.partition} of {self._topic} begins at {event.earliest} now")
                if isinstance(event, Records) and event.partition in left:
                    yield event
                    deadline = time.monotonic() + patience_s  # afterwards: the caller may take long
                    if event.next >= ends[event.partition]:
                        left.remove(event.partition)
            if left and time.monotonic() > deadline:
                raise _StalledError(
                    f"partition {min(left)} of {self._topic} cannot be read to its end: no broker answers, or a "
                    "transaction of another producer is open; try again later"
                )
