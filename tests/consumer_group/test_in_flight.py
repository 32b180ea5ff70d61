"""What travels to threads comes back in order, once, and not after it was dropped."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.consumer_group import in_flight
from streampca.consumer_group.in_flight import InFlight
from streampca.errors import SourceError
from streampca.formats.record import Decoded, Record
from streampca.process import watchdog
from streampca.sources.events import Event, Records, Undecoded, Vectors
from tests.errors import refusal
from tests.in_memory import MemorySource, MemoryTopic
from tests.waiting import PATIENCE_S, wait_until


class StepByStep(Executor):
    """Runs what was submitted when it is asked to, in the order in which a test wants it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self, which: int = 0) -> None:
        self.waiting.pop(which)()

    def run_all(self) -> None:
        while self.waiting:
            self.run()


def records(partition: int, first: int, count: int, size: int = 10) -> Records:
    """Records of a partition from an offset on."""
    values = [Record(offset, b"x" * size) for offset in range(first, first + count)]
    return Records(partition, values, next=first + count, end=1000)


def decoded(event: Records, most: int = 1000) -> Vectors:
    """Each record, or the first ones, as a vector of its offset."""
    some = event.records[:most]
    n = len(some)
    vectors = np.array([[float(record.offset)] for record in some]).reshape(n, 1)
    after = event.next if n == len(event.records) else event.records[n].offset
    batch = Decoded(vectors, np.arange(n), [], np.ones(n, np.int64))
    return Vectors(batch, np.zeros(n, np.int64), some, after, event.partition, event.end)


class Loop:
    """Handles results as a role does: what is decoded is worked on, and the results are installed."""

    def __init__(
        self, executor: Executor, decode: Callable[[Records], Any] = decoded, limit_bytes: int = 10**6
    ) -> None:
        self.tasks = InFlight[list[float]](executor, decode, limit_bytes)
        self.installed: dict[int, list[float]] = {}  # by partition
        self.undecoded = list[Undecoded]()
        self.order = list[int]()  # partitions, as results were installed

    def read(self, event: Records) -> None:
        self.tasks.decode(event, self.decoded)

    def decoded(self, batch: Vectors | Undecoded) -> None:
        if isinstance(batch, Undecoded):
            self.undecoded.append(batch)
            return
        installed = self.installed.get(batch.partition, [])

        def work(before: list[float] | None) -> list[float]:
            return [*(installed if before is None else before), *batch.decoded.vectors[:, 0].tolist()]

        self.tasks.submit_work(batch, work, lambda result: self.install(batch.partition, result))

    def install(self, partition: int, result: list[float]) -> None:
        self.installed[partition] = result
        self.order.append(partition)

    def finish_all(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            self.tasks.finish(partition)


@given(seed=st.integers(0, 2**32), threads=st.integers(1, 4), most=st.sampled_from([1, 3, 1000]))
@settings(max_examples=30)
def test_every_record_is_installed_once_in_order_whatever_threads_do(seed: int, threads: int, most: int) -> None:
    random, ends = Random(seed), {0: 0, 1: 0, 2: 0}
    with ThreadPoolExecutor(threads) as executor:
        loop = Loop(executor, lambda event: decoded(event, most))
        for _ in range(30):
            partition, count = random.randrange(3), random.randrange(8)
            loop.read(records(partition, ends[partition], count))
            ends[partition] += count
            if random.random() < 0.5:
                loop.tasks.handle_ended()
        loop.finish_all(list(ends))
    assert loop.installed == {p: list(range(end)) for p, end in ends.items() if p in loop.installed}
    assert all(end == 0 or partition in loop.installed for partition, end in ends.items())


def test_results_are_handled_in_the_order_of_submission_not_of_their_ends() -> None:
    executor = StepByStep()
    loop = Loop(executor)
    for partition in (0, 1):
        loop.read(records(partition, 0, 3))
    executor.run(1)
    loop.tasks.handle_ended()
    assert loop.order == []  # the other partition's records were submitted first
    executor.run_all()
    loop.tasks.handle_ended()
    executor.run(1)
    loop.tasks.handle_ended()
    assert loop.order == []
    executor.run_all()
    loop.tasks.handle_ended()
    assert loop.order == [0, 1]


def test_tasks_of_one_partition_never_run_at_the_same_time() -> None:
    running, most = set[int](), list[int]()
    lock = threading.Lock()

    def decode(event: Records) -> Vectors:
        with lock:
            assert event.partition not in running
            running.add(event.partition)
            most.append(len(running))
        result = decoded(event)
        with lock:
            running.remove(event.partition)
        return result

    with ThreadPoolExecutor(4) as executor:
        loop = Loop(executor, decode)
        for first in range(0, 200, 10):
            for partition in (0, 1):
                loop.read(records(partition, first, 10))
        loop.finish_all([0, 1])
    assert loop.installed == {p: list(range(200)) for p in (0, 1)}


@pytest.mark.parametrize("step", range(5))
def test_dropped_records_are_never_installed(step: int) -> None:
    """Whether it was unread, decoding, decoded, being worked on, or done."""
    executor = StepByStep()
    loop = Loop(executor)
    loop.read(records(0, 0, 3))
    loop.read(records(0, 3, 3))
    for _ in range(step):
        loop.tasks.handle_ended()
        executor.run()
    before = dict(loop.installed)
    loop.tasks.drop([0])
    assert loop.tasks._nbytes == 0
    executor.run_all()
    loop.tasks.handle_ended()
    assert loop.installed == before
    first = len(before.get(0, []))
    loop.read(records(0, first, 4))
    wait_until(lambda: (executor.run_all(), loop.tasks.handle_ended(), not loop.tasks._tasks)[-1])
    assert loop.installed == {0: list(range(first + 4))}


def test_other_partitions_keep_what_is_in_flight() -> None:
    executor = StepByStep()
    loop = Loop(executor)
    for partition in (0, 1):
        loop.read(records(partition, 0, 3))
    loop.tasks.drop([0])
    wait_until(lambda: (executor.run_all(), loop.tasks.handle_ended(), not loop.tasks._tasks)[-1])
    assert loop.installed == {1: [0.0, 1.0, 2.0]}


def test_when_decodings_are_dropped_decoded_records_are_still_installed() -> None:
    executor = StepByStep()
    loop = Loop(executor)
    loop.read(records(0, 0, 3))
    loop.read(records(0, 3, 3))
    executor.run()
    loop.tasks.handle_ended()
    loop.tasks.drop_decodings(0)
    executor.run_all()
    loop.tasks.finish(0)
    assert loop.installed == {0: [0.0, 1.0, 2.0]}
    assert loop.tasks._nbytes == 0


class CountingSource(MemorySource):
    """Counts its polls and the records that it returned."""

    polls = returned = 0

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self.polls += 1
        events = super().poll(timeout_s)
        self.returned += sum(len(event.records) for event in events if isinstance(event, Records))
        return events


@pytest.fixture
def source() -> Iterator[CountingSource]:
    """A source of one partition with 5,000 records of five bytes, of which each poll returns ten."""
    topic = MemoryTopic()
    topic.append(0, *[b"five5"] * 5000)
    source = CountingSource(topic, batch=10)
    (assigned,) = source.poll(0)
    source.seek(dict.fromkeys(assigned.partitions))  # type: ignore[union-attr]
    yield source
    source.close()


@pytest.mark.parametrize(("limit_bytes", "most"), [(200, 50), (10**6, in_flight._MOST_BATCHES * 10)])
def test_what_is_in_flight_is_limited_in_bytes_and_batches(source: CountingSource, limit_bytes: int, most: int) -> None:
    executor = StepByStep()
    loop = Loop(executor, limit_bytes=limit_bytes)
    for _ in range(30):
        for event in loop.tasks.poll(source, 0.0):
            assert isinstance(event, Records)
            loop.read(event)
        executor.run_all()
        assert source.returned - len(loop.installed.get(0, [])) <= most
    polls = source.polls
    assert loop.tasks.poll(source, 0.0) == []
    assert source.polls == polls
    for _ in range(5000):
        executor.run_all()
        loop.tasks.handle_ended()
        for event in loop.tasks.poll(source, 0.0):
            loop.read(event)  # type: ignore[arg-type]
        if len(loop.installed.get(0, [])) == 5000:
            break
    assert loop.installed == {0: list(range(5000))}
    assert loop.tasks._nbytes == 0


def test_an_error_is_raised_in_its_turn_after_earlier_results_are_installed() -> None:
    def decode(event: Records) -> Vectors:
        if event.records[0].offset:
            raise SourceError("not for you")
        return decoded(event)

    with ThreadPoolExecutor(2) as executor:
        loop = Loop(executor, decode)
        loop.read(records(0, 0, 3))
        loop.read(records(0, 3, 3))
        assert "not for you" in refusal(SourceError, loop.tasks.finish, 0)
    assert loop.installed == {0: [0.0, 1.0, 2.0]}


def test_the_error_of_a_thread_that_has_died_is_raised_before_the_next_poll(source: CountingSource) -> None:
    def check() -> None:
        raise SourceError("the writer has died")

    tasks = InFlight[None](StepByStep(), decoded, 1000, check)
    polls = source.polls
    assert "has died" in refusal(SourceError, tasks.poll, source, 0.0)
    assert source.polls == polls


def test_a_thread_without_a_task_is_not_watched() -> None:
    with watchdog.watch_threads(), ThreadPoolExecutor(1) as executor:
        loop = Loop(executor)
        loop.read(records(0, 0, 3))
        loop.tasks.finish(0)
        watch = watchdog._watch
        assert watch is not None
        wait_until(lambda: all(thread is threading.current_thread() for thread in watch.due_s))


def test_a_task_that_hangs_is_watched_while_the_loop_waits_for_it() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def decode(event: Records) -> Vectors:
        begun.set()
        go_on.wait(PATIENCE_S)
        return decoded(event)

    with watchdog.watch_threads(), ThreadPoolExecutor(1) as executor:
        loop = Loop(executor, decode)
        loop.read(records(0, 0, 3))
        assert begun.wait(PATIENCE_S)
        (thread,) = executor._threads
        assert watchdog._watch is not None
        assert thread in watchdog._watch.due_s
        go_on.set()
        loop.tasks.finish(0)
