"""The queue in which decoded events wait for the worker."""

from collections import deque

from streampca.sources.events import Assigned, Event, Lost, Records, Revoked, Undecoded, Vectors


class EventQueue:
    """Events in order, with the number and the bytes of their records."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Event, int, int]] = deque()  # with its records and bytes
        self.records = self.size = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: Event) -> None:
        records = event.count if isinstance(event, Records | Vectors | Undecoded) else 0
        size = event.nbytes if isinstance(event, Records | Vectors) else 0
        self._waiting.append((event, records, size))
        self.records, self.size = self.records + records, self.size + size

    def take(self) -> list[Event]:
        """Remove and return the first events: one of a rebalance, or at most one of each partition."""
        events: list[Event] = []
        partitions: set[int | None] = set()
        while self._waiting:
            event, records, size = self._waiting[0]
            partition = partition_of(event)
            if partition in partitions or None in partitions or (partition is None and events):
                break
            self._waiting.popleft()
            self.records, self.size = self.records - records, self.size - size
            events.append(event)
            partitions.add(partition)
        return events

    def drop(self, partitions: frozenset[int]) -> None:
        """Remove the events of these partitions."""
        waiting, self._waiting, self.records, self.size = self._waiting, deque(), 0, 0
        for event, _, _ in waiting:
            if partition_of(event) not in partitions:
                self.put(event)

    def released(self) -> frozenset[int]:
        """Partitions that the source has released, in events that the worker has not taken yet."""
        return frozenset().union(*(e.partitions for e, _, _ in self._waiting if isinstance(e, Revoked | Lost)))


def partition_of(event: Event) -> int | None:
    """The partition of an event; None for events of a rebalance."""
    return None if isinstance(event, Assigned | Revoked | Lost) else event.partition
