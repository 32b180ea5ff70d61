"""An environment that outlives its workers, in memory, whose spies record and check the calls of a worker.

Two invariants are checked at every call in every test: the committed offset never exceeds the position of the newest
checkpoint, and no checkpoint passes a bad record whose dead letter is not acknowledged.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from streampca.consumer_group import events
from streampca.consumer_group.committed import marks_start
from streampca.consumer_group.events import MemberEvent
from streampca.fold.checkpoint import Checkpoint, encode
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.record import NO_RECORDS, LastRecord, Record, last_of
from streampca.pca.arrays import Array
from streampca.stores import identity
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from tests.fold.streams import fold_config, learn, vectors
from tests.in_memory import MemoryDeadLetters, MemorySource, MemoryTopic, Step
from tests.in_memory.store import FaultyStore

TOPIC = "readings"
POISON = b"poison"
N = 300  # records of the `filled` environment
E = TypeVar("E", bound=MemberEvent)
Hook = Callable[[str], None]  # receives the name of every call before it is made, and may raise


class Environment:
    """A topic, a store, acknowledged dead letters, and a journal of all calls."""

    def __init__(self, partitions: int = 1, fold_config: FoldConfig = fold_config()) -> None:  # noqa: B008
        self.topic = MemoryTopic(partitions, TOPIC)
        self.fold_config = replace(fold_config, format="float64")
        self.store = FaultyStore()
        identity.ensure(self.store)
        self.checkpoints = Checkpoints(self.store, TOPIC)
        self.models = Models(self.store, TOPIC)
        self.dead_letters: list[tuple[int, int, str]] = []  # acknowledged: partition, offset, reason
        self.sends_dead_letters = False  # whether bad records become dead letters
        self.journal: list[tuple[Any, ...]] = []
        self.violations: list[str] = []

    def send(self, partition: int, messages: Array | Iterable[bytes | None], timestamp: int = -1) -> None:
        """Append vectors (n, d), or values, to a partition."""
        values = [row.tobytes() for row in messages] if isinstance(messages, np.ndarray) else messages
        self.topic.append(partition, *values, timestamp=timestamp)

    def expected(self, partition: int) -> Checkpoint:
        """The checkpoint at the log's end, learned in one batch without a worker; others are counted."""
        log = self.topic.logs[partition]
        good = [record for record in log.records if record.value is not None and record.value != POISON]
        config = self.fold_config
        V = np.array([np.frombuffer(record.value or b"") for record in good]).reshape(-1, config.learning.dimensions)
        fold, _ = learn(Fold.empty(config.learning), V, [record.timestamp for record in good], log.end, config)
        values = [record.value for record in log.records]
        fold = fold.count_rejects(["wrong_length"] * values.count(POISON), values.count(None))
        return Checkpoint(TOPIC, self.topic.id, partition, replace(fold, last=last_of(log.records)), config.as_dict())

    def assert_complete(self) -> None:
        """Assert that every partition's newest checkpoint has the bytes of one that learned its whole log."""
        assert self.violations == []
        for partition in range(len(self.topic.logs)):
            assert encode(self.newest(partition)) == encode(self.expected(partition))

    def newest(self, partition: int = 0) -> Checkpoint:
        """The newest checkpoint of a partition that has one."""
        return self.checkpoints.newest(partition)

    def position(self, partition: int = 0) -> int | None:
        offsets = self.checkpoints.offsets(partition)
        return offsets[-1] if offsets else None

    def calls(self, *names: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.journal if entry[0] in names]


def make_environment(*partitions: Array | Iterable[bytes | None]) -> Environment:
    """An environment whose partitions have these vectors, or values."""
    env = Environment(len(partitions))
    for partition, messages in enumerate(partitions):
        env.send(partition, messages)
    return env


def make_filled_environment(*counts: int) -> Environment:
    """An environment whose partitions have these numbers of messages."""
    return make_environment(*(vectors(count, seed=partition) for partition, count in enumerate(counts)))


class SpySource(MemorySource):
    """Records and checks every call; stops its worker when polls return nothing any more."""

    def __init__(self, env: Environment, hook: Hook, script: Iterable[Step], batch: int) -> None:
        self._env, self._hook = env, hook
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
        return events

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
            is_unsaved = reached is None or position > reached
            if is_unsaved and not marks_start(metadata):  # where a partition begins is committed before it is saved
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
        view = SpyStore(self._env, self._hook)
        view._store = self._store.snapshot(folder)
        return view

    def __getattr__(self, name: str) -> Any:
        self._hook(name)
        return getattr(self._store, name)


@dataclass
class EventRecorder:
    """Records the events of a worker, except its ticks and polls."""

    events: list[MemberEvent] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)  # partition → position of its fold

    def of_type(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def notify(self, event: MemberEvent) -> None:
        if not isinstance(event, events.LoopTicked):
            self.events.append(event)
        if isinstance(event, events.PartitionsAssigned):
            self.positions |= event.positions
        elif isinstance(event, events.BatchLearned):
            self.positions[event.partition] = event.fold.position
