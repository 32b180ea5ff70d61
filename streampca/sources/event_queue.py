"""The decoded events of polls, and the queue in which they wait for the worker."""

from collections import deque
from dataclasses import dataclass, field

from streampca.stream.events import Assigned, Event, Lost, Records, Revoked, Undecoded, Vectors


@dataclass
class Polled:
    """The decoded events of one poll."""

    events: list[Event]
    error: BaseException | None = None
    records: int = field(init=False)
    size: int = field(init=False)  # bytes

    def __post_init__(self) -> None:
        self.records = sum(e.count for e in self.events if isinstance(e, Records | Vectors | Undecoded))
        self.size = sum(e.nbytes for e in self.events if isinstance(e, Records | Vectors))

    @property
    def blocks_polling(self) -> bool:
        """Whether the worker must handle it before the source is polled again."""
        return self.error is not None or any(isinstance(e, Assigned | Revoked | Lost) for e in self.events)

    def released(self) -> frozenset[int]:
        """Partitions that are not ours any more when this has been handled."""
        return frozenset().union(*(e.partitions for e in self.events if isinstance(e, Revoked | Lost)))

    def without(self, partitions: frozenset[int]) -> "Polled":
        """The events of all other partitions, and rebalances."""
        return Polled(
            [e for e in self.events if isinstance(e, Assigned | Revoked | Lost) or e.partition not in partitions]
        )


class EventQueue:
    """Polled events in order, with their total size."""

    def __init__(self) -> None:
        self._waiting: deque[Polled] = deque()
        self.records = self.size = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, polled: Polled) -> None:
        self._waiting.append(polled)
        self.records, self.size = self.records + polled.records, self.size + polled.size

    def take(self) -> Polled:
        polled = self._waiting.popleft()
        self.records, self.size = self.records - polled.records, self.size - polled.size
        return polled

    def drop(self, partitions: frozenset[int]) -> None:
        """Remove the events of these partitions."""
        waiting, self._waiting, self.records, self.size = self._waiting, deque(), 0, 0
        for polled in waiting:
            kept = polled if polled.blocks_polling else polled.without(partitions)
            if kept.events or kept.error:
                self.put(kept)
