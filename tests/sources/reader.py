"""Polls a source as a worker would."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streampca.formats.record import NO_RECORDS, LastRecord, Record
from streampca.sources.base import Source
from streampca.sources.events import Assigned, Event, Lost, Records, Revoked
from tests.waiting import PATIENCE_S


class Reader:
    """Records the events of a source."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.events: list[Event] = []

    def poll(self, timeout_s: float = 0.1) -> Sequence[Event]:
        events = self.source.poll(timeout_s)
        self.events += events
        return events

    def poll_times(self, times: int, timeout_s: float = 0.1) -> None:
        """Poll this many times."""
        for _ in range(times):
            self.poll(timeout_s)

    def read_from(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        """Forget the events so far, and read from these positions."""
        self.events = []
        self.source.seek(positions, last)

    def poll_until(self, condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
        """Poll until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.events[-5:]
            self.poll()

    def events_of_type(self, kind: Any) -> list[Any]:
        """Return the events of one type, or of several, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that belong to the source after the last event."""
        changes = self.events_of_type(Assigned | Revoked | Lost)
        return changes[-1].partitions if changes and isinstance(changes[-1], Assigned) else frozenset()

    def wait_for_assignment(self, timeout_s: float = PATIENCE_S) -> frozenset[int]:
        """Wait for the next assignment."""
        before = len(self.events_of_type(Assigned))
        self.poll_until(lambda: len(self.events_of_type(Assigned)) > before, timeout_s)
        return self.events_of_type(Assigned)[-1].partitions

    def read_to(self, ends: dict[int, int], timeout_s: float = PATIENCE_S) -> None:
        """Poll until these positions are reached."""
        self.poll_until(lambda: all(self.next_position(p) == end for p, end in ends.items()), timeout_s)

    def next_position(self, partition: int) -> int | None:
        """Return the position after the last records of a partition; None if there was no event of it."""
        nexts = [event.next for event in self.events_of_type(Records) if event.partition == partition]
        return nexts[-1] if nexts else None

    def records(self, partition: int) -> list[Record]:
        """Return all records of a partition, also those that were read twice."""
        events = [event for event in self.events_of_type(Records) if event.partition == partition]
        return [record for event in events for record in event.records]

    def values(self, partition: int) -> list[bytes | None]:
        return [record.value for record in self.records(partition)]

    def offsets(self, partition: int) -> list[int]:
        return [record.offset for record in self.records(partition)]


def values(start: int, stop: int) -> list[bytes]:
    return [b"%d" % i for i in range(start, stop)]


def join_group(source: Source) -> Reader:
    """Poll until the source is assigned its partitions, and return its reader."""
    reader = Reader(source)
    reader.wait_for_assignment()
    return reader


def start_reading(
    source: Source, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS
) -> Reader:
    """Poll until the source is assigned its partitions, seek these positions, and return its reader."""
    reader = join_group(source)
    source.seek(positions, last)
    return reader


def poll_all_until(readers: Sequence[Reader], condition: Callable[[], Any]) -> None:
    """Poll the readers in turn until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [reader.events[-5:] for reader in readers]
        for reader in readers:
            reader.poll()
