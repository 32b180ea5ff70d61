"""Workers with a topic, a store and dead letters in memory; every call they make is recorded and checked."""

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest

from streampca.consumer_group.events import MemberEvent, Notify
from streampca.consumer_group.in_flight import InFlight
from streampca.errors import RejectLimitError, StoreBusyError, find_exit_code
from streampca.fold.checkpoint import Checkpoint, encode
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.record import LastRecord
from streampca.pca.arrays import Array
from streampca.sources.events import decode_records
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.models import Models
from streampca.worker.checkpointer import WorkerConfig, check_before_joining
from streampca.worker.loop import Learned, Worker
from streampca.worker.publisher import Publisher
from streampca.worker.writer import CheckpointWriter
from tests.fold.streams import D, fold_config, learn, vectors
from tests.formats.structured import arrow, avro, avro_datum, avro_schema
from tests.in_memory import Step
from tests.in_memory.schemas import MemorySchemas
from tests.worker.environment import (
    POISON,
    TOPIC,
    Environment,
    EventRecorder,
    Hook,
    SpyDeadLetters,
    SpySource,
    SpyStore,
)

RUN_TIMEOUT_S = 60.0
SCHEMA = avro_schema({"type": "array", "items": "double"}, "v")  # of messages whose schemas a registry serves


def make_worker_config(fold_config: FoldConfig = fold_config(), **options: Any) -> WorkerConfig:  # noqa: B008 - frozen
    """A worker configuration that saves and publishes in every iteration of the loop; `options` override fields."""
    codec = Codec("<f8", Judge.of(fold_config.learning))  # whose first records need not wait for others
    defaults: dict[str, Any] = {"on_bad_record": "stop", "checkpoint_interval_s": 0.0}
    return WorkerConfig(TOPIC, fold=replace(fold_config, format="float64"), codec=codec, **defaults | options)


class SynchronousExecutor(Executor):
    """Runs saves and tasks in the calling thread, so that the order of all calls is the same in every run."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # as a thread does
            future.set_exception(error)
        return future


@dataclass
class WorkerFixture:
    """A worker and the spies that it uses."""

    worker: Worker
    config: WorkerConfig
    checkpoints: Checkpoints
    source: SpySource
    dead_letters: SpyDeadLetters
    recorder: EventRecorder
    receivers: list[Notify]  # each gets every event

    def run(self) -> Self:
        """Run the worker until it ends; fail after a timeout, since a worker with a bug may never end.

        As `streampca worker` does, look at the store before the group is joined.
        """
        overdue = threading.Event()

        def stop() -> None:
            overdue.set()
            self.worker.stop("overdue")

        timer = threading.Timer(RUN_TIMEOUT_S, stop)
        timer.start()
        try:
            self._check_store()
            self.worker.run(itertools.count(1.0).__next__)  # a clock that advances by a second each time it is read
        finally:
            timer.cancel()
        assert not overdue.is_set(), f"the worker did not end within {RUN_TIMEOUT_S:g} s"
        return self

    def _check_store(self) -> None:
        """The last steps of `streampca worker`'s start; without its waiting, which `Worker` repeats."""
        with suppress(TimeoutError, StoreBusyError):
            topic_id, committed = self.source.topic_id(), self.source.committed()
            check_before_joining(self.checkpoints, self.config.fold, topic_id, committed)

    def stop(self, cause: str) -> None:
        self.worker.stop(cause)

    def also_notify(self, *receivers: Notify) -> Self:
        """Pass the worker's events to these receivers, too."""
        self.receivers += receivers
        return self


def make_worker(
    env: Environment,
    config: WorkerConfig | None = None,
    script: Iterable[Step] = (),
    *,
    batch: int = 1000,
    hook: Hook = lambda name: None,
    stop_when_idle: bool = True,
    save_executor: Executor | None = None,
    save_clock: Callable[[], float] = lambda: 0.0,
    threads: Executor | None = None,
    request_threads: Executor | None = None,
    limit_bytes: int = 10**6,
    check_threads: Callable[[], None] = lambda: None,
) -> WorkerFixture:
    """A worker in this environment. With `stop_when_idle` it stops when polls return nothing after its script.

    Saves run in the worker's thread unless `save_executor` is given, tasks unless `threads` are given, and requests
    to the store unless `request_threads` are given. The script
    begins after the assignment; a function is called before the next poll and does not replace one.
    """
    config = config or make_worker_config(env.fold_config)
    env.sends_dead_letters = config.on_bad_record == "dead_letter"
    dead_letters, recorder = SpyDeadLetters(env, hook), EventRecorder()
    source = SpySource(env, hook, script, batch)
    store = SpyStore(env, hook)
    checkpoints = Checkpoints(store, TOPIC, threads=request_threads or SynchronousExecutor())
    publisher = Publisher(Models(store, TOPIC), config.fold, lambda: 0.0)
    in_flight = InFlight[Learned](
        threads or SynchronousExecutor(), partial(decode_records, config.codec), limit_bytes, check_threads
    )
    writer = CheckpointWriter(checkpoints, publisher, save_executor or SynchronousExecutor(), save_clock)
    receivers: list[Notify] = [recorder.notify]

    def notify(event: MemberEvent) -> None:
        for receive in receivers:
            receive(event)

    worker = Worker(config, source, in_flight, dead_letters, writer, notify)

    def stop(cause: str) -> None:
        is_synchronous = threads is None and request_threads is None
        if is_synchronous or all(recorder.positions.get(p) == env.topic.logs[p].end for p in source._owned):
            worker.stop(cause)

    source.stop = stop if stop_when_idle else None
    return WorkerFixture(worker, config, checkpoints, source, dead_letters, recorder, receivers)


def run_until(env: Environment, position: int) -> None:
    """Run a first worker up to this position, then clear its journal."""
    worker: WorkerFixture = make_worker(env, script=[position, lambda: worker.stop("enough"), None])
    worker.run()
    assert env.position() == position
    env.journal.clear()


def send_poison(env: Environment) -> None:
    """Send 113 records; those at 50 and 112 are bad, the one at 51 is a tombstone."""
    env.send(0, vectors(50))
    env.send(0, [POISON, None])
    env.send(0, vectors(60, seed=1))
    env.send(0, [POISON])


def make_raising_hook(error: Exception, call: str, when: Callable[[], object] = lambda: True) -> Hook:
    """A hook that raises an error at each call of this name, while a condition holds."""

    def hook(name: str) -> None:
        if name == call and when():
            raise error

    return hook


def run_until_refused(worker: WorkerFixture) -> str:
    """The error of a worker that bad records have ended, which a supervisor must not restart."""
    with pytest.raises(RejectLimitError) as error:
        worker.run()
    assert find_exit_code(error.value) == 3
    return str(error.value)


def act_at_polls(worker: WorkerFixture, actions: dict[int, Callable[[], None]]) -> None:
    """Act before polls of these numbers; the first is 1."""
    polls = itertools.count(1)

    def act(name: str) -> None:
        if name == "poll" and (action := actions.get(next(polls))):
            action()

    worker.source._hook = act


def hide_broker_at_lookup(env: Environment, number: int) -> Hook:
    """The broker is unavailable at one lookup of the topic's ID: 1 is at the start, 2 at the assignment."""
    lookups: list[str] = []

    def hook(name: str) -> None:
        if name == "topic_id":
            lookups.append(name)
            env.topic.away = len(lookups) == number
        elif name == "poll":
            env.topic.away = False

    return hook


def make_config_for(
    env: Environment, kind: str, schemas: MemorySchemas | None = None, **options: object
) -> WorkerConfig:
    codec = Codec(kind, Judge.of(env.fold_config.learning), "v", schemas)
    env.fold_config = replace(env.fold_config, format=kind, field="v")
    return replace(make_worker_config(env.fold_config, **options), fold=env.fold_config, codec=codec)


def make_arrow_values(V: Array, counts: Iterable[int]) -> list[bytes]:
    """Messages with these numbers of vectors."""
    ends = np.cumsum(list(counts))
    kind = pa.list_(pa.float64(), D)
    return [arrow(part.tolist(), kind=kind) for part in np.split(V, ends[:-1])]


def make_avro_values(V: Array, schema_id: int = 1) -> list[bytes]:
    return [avro(SCHEMA, avro_datum(row.tolist(), "v"), schema_id) for row in V]


def learn_in_one_batch(
    env: Environment, V: Array, counts: list[int], position: int, rejected: Sequence[str] = ()
) -> bytes:
    config = env.fold_config
    fold, _ = learn(Fold.empty(config.learning), V, [-1] * len(counts), position, config, np.array(counts))
    fold = replace(fold.count_rejects(rejected), last=LastRecord(position - 1, 0))
    return encode(Checkpoint(TOPIC, env.topic.id, 0, fold, config.as_dict()))
