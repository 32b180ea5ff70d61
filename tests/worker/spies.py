"""A source, dead letters and a store that record and check the calls of a worker, and a listener.

Two invariants are checked at every call in every test: the committed offset never exceeds the position of the newest
checkpoint, and no checkpoint passes a bad record whose dead letter is not acknowledged.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from streampca.consumer_group.listener import (
    BatchLearned,
    Listener,
    LoopTicked,
    MemberEvent,
    PartitionsAssigned,
    SourcePolled,
)
from streampca.fold.events import Event, Records
from streampca.fold.record import NO_RECORDS, LastRecord, Record
from streampca.sources.memory import MemoryDeadLetters, MemorySource, Step
from tests.worker.environment import POISON, TOPIC, Environment

E = TypeVar("E", bound=MemberEvent)
Hook = Callable[[str], None]  # receives the name of every call before it is made, and may raise


class SpySource(MemorySource):
    """Records and checks every call; stops its worker when polls return nothing any more.

    With `decode` it returns decoded records, each decoded when the worker reaches it, in the worker's thread, so that
    the order of all calls is the same in every run.
    """

    def __init__(
        self,
        env: Environment,
        hook: Hook,
        script: Iterable[Step],
        batch: int,
        decode: Callable[[Records], Event] | None = None,
    ) -> None:
        self._env, self._hook, self._decode = env, hook, decode
        self._steps = iter(script)
        self._idle_polls = 0
        self.stop: Callable[[str], None] | None = None
        super().__init__(env.topic, self._steps_left(), batch)

    def _steps_left(self) -> Iterable[Step]:
        yield 0  # the poll that returns the assignment
        for step in self._steps:
            if callable(step):
                step()
            else:
                yield step
        while True:
            self._idle_polls += 1
            yield self._batch

    def poll(self, timeout_s: float) -> Any:
        self._hook("poll")
        events = super().poll(timeout_s)
        if events:
            self._idle_polls = 0
        elif self._idle_polls > 3 and self.stop:
            self.stop("idle")
        self._hook("polled")
        return events if self._decode is None else map(self._decoded, events)

    def _decoded(self, event: Event) -> Event:
        return self._decode(event) if self._decode and isinstance(event, Records) else event

    def topic_id(self) -> str:
        self._hook("topic_id")
        self._env.journal.append(("topic id",))
        return super().topic_id()

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        self._hook("seek")
        super().seek(positions, last)
        self._env.journal.append(("seek", dict(positions)))

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        self._hook("commit")
        for partition, position in positions.items():
            reached = self._env.position(partition)
            if reached is None or position > reached:
                self._env.violations.append(f"partition {partition}: {position} committed, {reached} saved")
        super().commit(positions, metadata)
        self._env.journal.append(("commit", dict(positions)))

    def close(self) -> None:
        self._hook("close")
        super().close()
        self._env.journal.append(("close",))


class SpyDeadLetters(MemoryDeadLetters):
    """Records the dead letters that are acknowledged."""

    def __init__(self, env: Environment, hook: Hook) -> None:
        super().__init__(TOPIC)
        self._env, self._hook = env, hook
        self._sent: list[tuple[int, int, str]] = []

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        self._hook("send")
        super().send(partition, record, reason, message)
        self._sent.append((partition, record.offset, reason))
        self._env.journal.append(("send", partition, record.offset))

    def flush(self, timeout_s: float) -> None:
        self._hook("flush")
        super().flush(timeout_s)
        self._env.dead_letters += self._sent
        self._sent = []
        self._env.journal.append(("flush",))


class SpyStore:
    """The environment's store, with the calls of one worker recorded and checked."""

    def __init__(self, env: Environment, hook: Hook) -> None:
        self._env, self._hook, self._store = env, hook, env.store

    def write(self, name: str, data: bytes) -> None:
        self._hook("write")
        self._store.write(name, data)
        self._written(name)

    def create(self, name: str, data: bytes) -> bool:
        is_identity = "/" not in name
        if not is_identity:
            self._hook("write")
        created = self._store.create(name, data)
        if created and not is_identity:
            self._written(name)
        return created

    def _written(self, name: str) -> None:
        kind, _, *where, stem = name.split("/")
        entry: tuple[Any, ...] = ("publish",)
        if kind == "checkpoints":
            self._check_dead_letters(int(where[0]), int(stem[:20]))
            entry = ("save", int(where[0]))
        self._env.journal.append((*entry, int(stem[:20])))
        self._hook("written")

    def _check_dead_letters(self, partition: int, position: int) -> None:
        if not self._env.sends_dead_letters:
            return
        acknowledged = {(p, offset) for p, offset, _ in self._env.dead_letters}
        for record in self._env.topic.logs[partition].records:
            if record.value == POISON and record.offset < position and (partition, record.offset) not in acknowledged:
                self._env.violations.append(f"partition {partition}: {position} saved without {record.offset}")

    def snapshot(self, folder: str) -> "SpyStore":
        return self

    def __getattr__(self, name: str) -> Any:
        self._hook(name)
        return getattr(self._store, name)


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
