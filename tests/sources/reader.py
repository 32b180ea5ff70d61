"""Polls a source as a worker would."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streampca.formats.record import NO_RECORDS, LastRecord, Record
from streampca.sources.base import Source
from streampca.sources.events import Assigned, Event, Lost, Records, Revoked
from tests.waiting import PATIENCE_S, wait_until


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
        """Poll that often."""
        for _ in range(times):
            self.poll(timeout_s)

    def read_from(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        """Forget the events so far, and read from these positions."""
        self.events = []
        self.source.seek(positions, last)

    def until(self, condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
        """Poll until the condition holds."""
        wait_until(lambda: condition() or (self.poll() and False) or condition(), timeout_s, str(self.events[-5:]))

    def of(self, kind: Any) -> list[Any]:
        """The events of one kind, or of several, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that the events leave to the source."""
        changes = [event for event in self.events if isinstance(event, Assigned | Revoked | Lost)]
        return changes[-1].partitions if changes and isinstance(changes[-1], Assigned) else frozenset()

    def assigned(self, timeout_s: float = PATIENCE_S) -> frozenset[int]:
        """Wait for the next assignment."""
        before = len(self.of(Assigned))
        self.until(lambda: len(self.of(Assigned)) > before, timeout_s)
        return self.of(Assigned)[-1].partitions

    def read_to(self, ends: dict[int, int], timeout_s: float = PATIENCE_S) -> None:
        """Poll until these positions are reached."""
        self.until(lambda: all(self.next(p) == end for p, end in ends.items()), timeout_s)

    def next(self, partition: int) -> int | None:
        """The position after the last records."""
        nexts = [event.next for event in self.of(Records) if event.partition == partition]
        return nexts[-1] if nexts else None

    def records(self, partition: int) -> list[Record]:
        """All records of a partition, including repeated ones."""
        return [record for event in self.of(Records) if event.partition == partition for record in event.records]

    def values(self, partition: int) -> list[bytes | None]:
        return [record.value for record in self.records(partition)]

    def offsets(self, partition: int) -> list[int]:
        return [record.offset for record in self.records(partition)]


def values(start: int, stop: int) -> list[bytes]:
    return [b"%d" % i for i in range(start, stop)]


def joined(source: Source) -> Reader:
    """A reader that was assigned its partitions."""
    reader = Reader(source)
    reader.assigned()
    return reader


def reading(source: Source, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> Reader:
    """A reader that was assigned its partitions, and reads from these positions."""
    reader = joined(source)
    source.seek(positions, last)
    return reader
