"""Listeners that record a worker's events or act on them."""

from dataclasses import dataclass, field
from typing import TypeVar

from streampca.consumer_group.listener import (
    BatchLearned,
    Listener,
    LoopTicked,
    MemberEvent,
    PartitionsAssigned,
    SourcePolled,
)

E = TypeVar("E", bound=MemberEvent)


@dataclass
class EventRecorder(Listener):
    """Records the events of a worker, except its ticks and polls."""

    events: list[MemberEvent] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)  # partition → position of its fold

    def of_type(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def notify(self, event: MemberEvent) -> None:
        if isinstance(event, LoopTicked | SourcePolled):
            return
        self.events.append(event)
        if isinstance(event, PartitionsAssigned):
            self.positions |= event.positions
        elif isinstance(event, BatchLearned):
            self.positions[event.partition] = event.fold.position
