"""Workers on a topic, a store and dead letters in memory, every call of theirs written down and checked.

Two invariants are checked at every call in every test: no offset is committed to the group that a
checkpoint has not reached, and no checkpoint passes a bad record whose dead letter is not acknowledged.
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
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.stream.checkpoint import Checkpoint, encode
from streampca.stream.codec import Codec
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.record import Event, Record, Records
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
from tests.stream.streams import fold_config, vectors

E = TypeVar("E", bound=WorkerEvent)

TOPIC = "readings"
POISON = b"poison"
RUN_TIMEOUT_S = 10.0

Hook = Callable[[str], None]  # gets the name of every call before it is carried out, and may raise


def worker_config(fold_config: FoldConfig = fold_config(), **options: Any) -> WorkerConfig:  # noqa: B008 - frozen
    """A worker_config that saves and publishes in every round of the loop; `options` override."""
    learning_config = fold_config.learning
    codec = Codec("float64", learning_config.dimensions, learning_config.largest_value, learning_config.dtype)
    own: dict[str, Any] = {"bad_records": "stop", "checkpoint_interval_s": 0.0}
    return WorkerConfig(TOPIC, replace(fold_config, format="float64"), codec, **own | options)


class Rounds:
    """A clock that advances by one second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@dataclass
class Heard(Listener):
    """Records the events of a worker, except its ticks and polls."""

    events: list[WorkerEvent] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)  # partition → where its fold stands

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def notify(self, event: WorkerEvent) -> None:
        if isinstance(event, LoopTicked | SourcePolled):
            return
        self.events.append(event)
        if isinstance(event, PartitionsAssigned):
            self.positions |= event.positions
        elif isinstance(event, BatchLearned):
            self.positions[event.partition] = event.fold.position


class On(Listener):
    """Calls `act` with every event of one type."""

    def __init__(self, kind: type[E], act: Callable[[E], object]) -> None:
        self._kind, self._act = kind, act

    def notify(self, event: WorkerEvent) -> None:
        if isinstance(event, self._kind):
            self._act(event)


class AtOnce(Executor):
    """No thread: a save has ended when it was begun, so that the order of all calls is the same every time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Stage:
    """What outlives a worker: the topic, the files, the dead letters; and the journal of all calls."""

    def __init__(self, partitions: int = 1, fold_config: FoldConfig = fold_config()) -> None:  # noqa: B008
        self.topic = MemoryTopic(partitions, TOPIC)
        self.fold_config = replace(fold_config, format="float64")
        self.files = MemoryStore()
        self.checkpoints = Checkpoints(self.files, TOPIC)
        self.models = Models(self.files, TOPIC)
        self.letters: list[tuple[int, int, str]] = []  # acknowledged: partition, offset, reason
        self.puts_aside = False  # whether bad records become dead letters
        self.journal: list[tuple[Any, ...]] = []
        self.violations: list[str] = []

    def send(self, partition: int, messages: Array | Iterable[bytes | None], timestamp: int = -1) -> None:
        """Append vectors (n, d), or values, to a partition."""
        values = [row.tobytes() for row in messages] if isinstance(messages, np.ndarray) else messages
        self.topic.append(partition, *values, timestamp=timestamp)

    def expected(self, partition: int) -> Checkpoint:
        """The checkpoint at the log's end, learned at one stroke without a worker; bad records counted."""
        log = self.topic.logs[partition]
        good = [record for record in log.records if record.value is not None and record.value != POISON]
        V = np.array([np.frombuffer(record.value or b"") for record in good]).reshape(
            -1, self.fold_config.learning.dimensions
        )
        fold, _ = Fold.empty(self.fold_config.learning).learn(V, [r.timestamp for r in good], log.end, self.fold_config)
        bad = ["no_value" if r.value is None else "wrong_length" for r in log.records if r not in good]
        return Checkpoint(TOPIC, self.topic.id, partition, fold.reject(bad), self.fold_config.as_dict())

    def assert_complete(self) -> None:
        """Every partition's newest checkpoint is, to the byte, what its whole log makes."""
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
        """The journal's entries of these kinds."""
        return [entry for entry in self.journal if entry[0] in names]


@dataclass
class Cast:
    """A worker with what was made for it."""

    worker: Worker
    source: "SpySource"
    letters: "SpyLetters"
    heard: Heard

    def run(self) -> None:
        """Run the worker to its end; fails when it does not end in time, for a worker in error may read for ever."""
        overdue = threading.Event()

        def stop() -> None:
            overdue.set()
            self.worker.stop("overdue")

        timer = threading.Timer(RUN_TIMEOUT_S, stop)
        timer.start()
        try:
            self.worker.run(Rounds())
        finally:
            timer.cancel()
        assert not overdue.is_set(), f"the worker did not end within {RUN_TIMEOUT_S:g} s"

    def add_listener(self, listener: Listener) -> None:
        """Let another listener hear the worker's events, too."""
        listeners = Listeners(self.heard, listener)
        self.worker._listener = self.worker._checkpointer._listener = self.worker._paused._listener = listeners


def cast(
    stage: Stage,
    own: WorkerConfig | None = None,
    script: Iterable[Step] = (),
    *,
    batch: int = 1000,
    hook: Hook = lambda name: None,
    ends: bool = True,
    saves_in: Executor | None = None,
    ahead: int | None = None,
) -> Cast:
    """A worker on the stage. If it `ends`, it stops by itself when, after its script, polls bring nothing any more.

    Saves have ended when they were begun, unless they have an executor of their own, such as a thread. Who reads
    `ahead`, in a thread, so many records at most, ends when it has learned every partition of its own to the end.
    The script begins after the assignment, and a `Do` is no poll of its own: it happens before the next one.
    """
    own = own or worker_config(stage.fold_config)
    stage.puts_aside = own.bad_records == "dead_letter"
    letters, heard = SpyLetters(stage, hook), Heard()
    source = SpySource(stage, hook, script, batch, own.codec.vectors_of if ahead is None else None)
    store = SpyStore(stage, hook)
    checkpoints = Checkpoints(store, TOPIC)
    publisher = Publisher(checkpoints, Models(store, TOPIC), own.fold, lambda: 0.0)
    read = source if ahead is None else Prefetch(source, ahead, 10**6, own.codec.vectors_of)
    worker = Worker(own, read, letters, CheckpointWriter(checkpoints, publisher, saves_in or AtOnce()), heard)

    def stop(cause: str) -> None:
        if ahead is None or all(heard.positions[p] == stage.topic.logs[p].end for p in source._owned):
            worker.stop(cause)

    source.stop = stop if ends else None
    return Cast(worker, source, letters, heard)


class SpySource(MemorySource):
    """Writes down and checks; stops its worker when there is nothing left to do.

    With `decode` it returns decoded records, each when the worker reaches it; without a thread, so that the order of
    all calls is the same in each run.
    """

    def __init__(
        self,
        stage: Stage,
        hook: Hook,
        script: Iterable[Step],
        batch: int,
        decode: Callable[[Records], Event] | None = None,
    ) -> None:
        self._stage, self._hook, self._decode = stage, hook, decode
        self._steps = iter(script)
        self._idle_polls = 0
        self.stop: Callable[[str], None] | None = None
        super().__init__(stage.topic, self._steps_left(), batch)

    def _steps_left(self) -> Iterable[Step]:
        yield 0  # the poll that brings the assignment
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
            self.stop("nothing left to do")
        self._hook("polled")
        return events if self._decode is None else map(self._decoded, events)

    def _decoded(self, event: Event) -> Event:
        return self._decode(event) if self._decode and isinstance(event, Records) else event

    def topic_id(self) -> str:
        self._hook("topic_id")
        self._stage.journal.append(("topic id",))
        return super().topic_id()

    def seek(self, positions: Mapping[int, int | None]) -> None:
        self._hook("seek")
        super().seek(positions)
        self._stage.journal.append(("seek", dict(positions)))

    def commit(self, positions: Mapping[int, int]) -> None:
        self._hook("commit")
        for partition, position in positions.items():
            reached = self._stage.position(partition)
            if reached is None or position > reached:
                self._stage.violations.append(f"partition {partition}: {position} committed, {reached} saved")
        super().commit(positions)
        self._stage.journal.append(("commit", dict(positions)))

    def close(self) -> None:
        self._hook("close")
        super().close()
        self._stage.journal.append(("close",))


class SpyLetters(MemoryDeadLetters):
    """Tells the stage what is acknowledged."""

    def __init__(self, stage: Stage, hook: Hook) -> None:
        super().__init__(TOPIC)
        self._stage, self._hook = stage, hook
        self._sent: list[tuple[int, int, str]] = []

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        self._hook("send")
        super().send(partition, record, reason, message)
        self._sent.append((partition, record.offset, reason))
        self._stage.journal.append(("send", partition, record.offset))

    def flush(self, timeout_s: float) -> None:
        self._hook("flush")
        super().flush(timeout_s)
        self._stage.letters += self._sent
        self._sent = []
        self._stage.journal.append(("flush",))


class SpyStore:
    """The stage's files, as one worker reaches them."""

    def __init__(self, stage: Stage, hook: Hook) -> None:
        self._stage, self._hook, self._files = stage, hook, stage.files

    def write(self, name: str, data: bytes) -> None:
        self._hook("write")
        self._files.write(name, data)
        kind, _, *where, stem = name.split("/")
        if kind == "checkpoints":
            self._check_letters(int(where[0]), int(stem[:20]))
        entry = ("save", int(where[0])) if kind == "checkpoints" else ("publish",)
        self._stage.journal.append((*entry, int(stem[:20])))
        self._hook("written")

    def _check_letters(self, partition: int, position: int) -> None:
        if not self._stage.puts_aside:
            return
        put_aside = {(p, offset) for p, offset, _ in self._stage.letters}
        for record in self._stage.topic.logs[partition].records:
            if record.value == POISON and record.offset < position and (partition, record.offset) not in put_aside:
                self._stage.violations.append(f"partition {partition}: {position} saved without {record.offset}")

    def read(self, name: str) -> bytes:
        self._hook("read")
        return self._files.read(name)

    def names(self, folder: str) -> list[str]:
        self._hook("names")
        return self._files.names(folder)

    def delete(self, name: str) -> None:
        self._hook("delete")
        self._files.delete(name)

    def check(self) -> None:
        self._files.check()


def many(n: int, seed: int = 0) -> Array:
    """Messages (n, d) of the stage's usual dimension."""
    return vectors(n, seed=seed)
