"""Workers with a topic, a store and dead letters in memory; every call they make is recorded and checked.

Two invariants are checked at every call in every test: the committed offset never exceeds the position of the newest
checkpoint, and no checkpoint passes a bad record whose dead letter is not acknowledged.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from streampca.pca.arrays import Array
from streampca.sources.memory import Do, MemoryDeadLetters, MemorySource, MemoryTopic, Step
from streampca.sources.prefetch import Prefetch
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.stream.checkpoint import Checkpoint, encode
from streampca.stream.codec import Codec
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.record import NO_RECORDS, Event, LastRecord, Record, Records, last_of
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.listener import (
    BatchLearned,
    Listener,
    Listeners,
    LoopTicked,
    PartitionsAssigned,
    SourcePolled,
    WorkerEvent,
)
from streampca.worker.loop import Worker, WorkerConfig
from streampca.worker.publisher import Publisher
from tests.stream.streams import fold_config

E = TypeVar("E", bound=WorkerEvent)

TOPIC = "readings"
POISON = b"poison"
RUN_TIMEOUT_S = 10.0

Hook = Callable[[str], None]  # receives the name of every call before it is made, and may raise


def worker_config(fold_config: FoldConfig = fold_config(), **options: Any) -> WorkerConfig:  # noqa: B008 - frozen
    """A worker configuration that saves and publishes in every iteration of the loop; `options` override fields."""
    learning_config = fold_config.learning
    codec = Codec("float64", learning_config.dimensions, learning_config.largest_value, learning_config.dtype)
    defaults: dict[str, Any] = {"bad_records": "stop", "checkpoint_interval_s": 0.0}
    return WorkerConfig(TOPIC, replace(fold_config, format="float64"), codec, **defaults | options)


class TickingClock:
    """A clock that advances by one second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@dataclass
class EventRecorder(Listener):
    """Records the events of a worker, except its ticks and polls."""

    events: list[WorkerEvent] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)  # partition → position of its fold

    def of_type(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def notify(self, event: WorkerEvent) -> None:
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

    def notify(self, event: WorkerEvent) -> None:
        if isinstance(event, self._kind):
            self._act(event)


class SynchronousExecutor(Executor):
    """Runs saves in the calling thread, so that the order of all calls is the same in every run."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Environment:
    """What outlives a worker: the topic, the store, the dead letters; and a journal of all calls."""

    def __init__(self, partitions: int = 1, fold_config: FoldConfig = fold_config()) -> None:  # noqa: B008
        self.topic = MemoryTopic(partitions, TOPIC)
        self.fold_config = replace(fold_config, format="float64")
        self.store = MemoryStore()
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
        """The checkpoint at the log's end, learned in one batch without a worker; bad records counted."""
        log = self.topic.logs[partition]
        good = [record for record in log.records if record.value is not None and record.value != POISON]
        V = np.array([np.frombuffer(record.value or b"") for record in good]).reshape(
            -1, self.fold_config.learning.dimensions
        )
        fold, _ = Fold.empty(self.fold_config.learning).learn(V, [r.timestamp for r in good], log.end, self.fold_config)
        bad = ["no_value" if r.value is None else "wrong_length" for r in log.records if r not in good]
        fold = fold.reject(bad).after(last_of(log.records))
        return Checkpoint(TOPIC, self.topic.id, partition, fold, self.fold_config.as_dict())

    def assert_complete(self) -> None:
        """Assert that every partition's newest checkpoint has the bytes of one that learned its whole log."""
        assert self.violations == []
        for partition in range(len(self.topic.logs)):
            newest = self.checkpoints.newest(partition)
            assert newest is not None
            assert encode(newest) == encode(self.expected(partition))

    def position(self, partition: int = 0) -> int | None:
        """The position of the newest checkpoint."""
        offsets = self.checkpoints.offsets(partition)
        return offsets[-1] if offsets else None

    def calls(self, *names: str) -> list[tuple[Any, ...]]:
        """The journal's entries for these calls."""
        return [entry for entry in self.journal if entry[0] in names]


@dataclass
class WorkerFixture:
    """A worker and the spies that it uses."""

    worker: Worker
    source: "SpySource"
    dead_letters: "SpyDeadLetters"
    recorder: EventRecorder

    def run(self) -> None:
        """Run the worker until it ends; fail after a timeout, since a worker with a bug may never end."""
        overdue = threading.Event()

        def stop() -> None:
            overdue.set()
            self.worker.stop("overdue")

        timer = threading.Timer(RUN_TIMEOUT_S, stop)
        timer.start()
        try:
            self.worker.run(TickingClock())
        finally:
            timer.cancel()
        assert not overdue.is_set(), f"the worker did not end within {RUN_TIMEOUT_S:g} s"

    def stop(self, cause: str) -> None:
        self.worker.stop(cause)

    def add_listener(self, listener: Listener) -> None:
        """Pass the worker's events to another listener, too."""
        listeners = Listeners(self.recorder, listener)
        worker = self.worker
        for notifying in (worker, worker._checkpointer, worker._paused, worker._assignment):
            notifying._listener = listeners  # type: ignore[attr-defined]


def make_worker(
    env: Environment,
    config: WorkerConfig | None = None,
    script: Iterable[Step] = (),
    *,
    batch: int = 1000,
    hook: Hook = lambda name: None,
    stop_when_idle: bool = True,
    save_executor: Executor | None = None,
    prefetch: int | None = None,
) -> WorkerFixture:
    """A worker in this environment. With `stop_when_idle` it stops when polls return nothing after its script.

    Saves run in the worker's thread unless `save_executor` is given. With `prefetch`, a thread reads at most so many
    records ahead, and the worker stops when it has learned all its partitions to their ends. The script begins after
    the assignment; a `Do` happens before the next poll and does not replace one.
    """
    config = config or worker_config(env.fold_config)
    env.sends_dead_letters = config.bad_records == "dead_letter"
    dead_letters, recorder = SpyDeadLetters(env, hook), EventRecorder()
    source = SpySource(env, hook, script, batch, config.codec.vectors_of if prefetch is None else None)
    store = SpyStore(env, hook)
    checkpoints = Checkpoints(store, TOPIC)
    publisher = Publisher(checkpoints, Models(store, TOPIC), config.fold, lambda: 0.0)
    read = source if prefetch is None else Prefetch(source, prefetch, 10**6, config.codec.vectors_of)
    writer = CheckpointWriter(checkpoints, publisher, save_executor or SynchronousExecutor())
    worker = Worker(config, read, dead_letters, writer, recorder)

    def stop(cause: str) -> None:
        if prefetch is None or all(recorder.positions[p] == env.topic.logs[p].end for p in source._owned):
            worker.stop(cause)

    source.stop = stop if stop_when_idle else None
    return WorkerFixture(worker, source, dead_letters, recorder)


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
            if isinstance(step, Do):
                step.act()
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

    def commit(self, positions: Mapping[int, int]) -> None:
        self._hook("commit")
        for partition, position in positions.items():
            reached = self._env.position(partition)
            if reached is None or position > reached:
                self._env.violations.append(f"partition {partition}: {position} committed, {reached} saved")
        super().commit(positions)
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
        kind, _, *where, stem = name.split("/")
        if kind == "checkpoints":
            self._check_dead_letters(int(where[0]), int(stem[:20]))
        entry = ("save", int(where[0])) if kind == "checkpoints" else ("publish",)
        self._env.journal.append((*entry, int(stem[:20])))
        self._hook("written")

    def _check_dead_letters(self, partition: int, position: int) -> None:
        if not self._env.sends_dead_letters:
            return
        acknowledged = {(p, offset) for p, offset, _ in self._env.dead_letters}
        for record in self._env.topic.logs[partition].records:
            if record.value == POISON and record.offset < position and (partition, record.offset) not in acknowledged:
                self._env.violations.append(f"partition {partition}: {position} saved without {record.offset}")

    def read(self, name: str) -> bytes:
        self._hook("read")
        return self._store.read(name)

    def names(self, folder: str) -> list[str]:
        self._hook("names")
        return self._store.names(folder)

    def snapshot(self, folder: str) -> Store:
        return self

    def delete(self, name: str) -> None:
        self._hook("delete")
        self._store.delete(name)

    def check(self) -> None:
        self._store.check()
