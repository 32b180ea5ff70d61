"""Listeners that record a worker's events or act on them."""

from collections.abc import Callable
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


class OnEvent(Listener):
    """Calls `act` with every event of one type."""

    def __init__(self, kind: type[E], act: Callable[[E], object]) -> None:
        self._kind, self._act = kind, act

    def notify(self, event: MemberEvent) -> None:
        if isinstance(event, self._kind):
            self._act(event)
