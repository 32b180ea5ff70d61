"""Random schedules of faults: workers are killed at any call, evicted while they run and joined by others; disks fill
up and brokers stop answering. The final checkpoints must have the bytes of an undisturbed run, no committed offset may
exceed a checkpoint, and no checkpoint may pass a bad record that is not in the dead-letter topic.

Every worker runs in its own thread, but only one runs at a time, from one call to the next, in an order that the test
draws: every schedule can be replayed.
"""

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from streampca.errors import SourceError, StoreError
from streampca.stores.memory import Crash
from streampca.stream.fold import FoldConfig
from streampca.worker.listener import CheckpointPostponed
from streampca.worker.loop import WorkerConfig
from tests.stream.streams import fold_config, vectors
from tests.worker.harness import POISON, Environment, TickingClock, make_worker, worker_config

PARTITIONS = 3
MAX_WORKERS = 3
STEP_TIMEOUT_S = 60.0


class SimulatedWorker:
    """A worker that waits before each of its calls until `step`, and can be killed there."""

    def __init__(self, env: Environment, config: WorkerConfig, batch: int) -> None:
        self._resumed, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.next_call = "start"
        self.ended = False
        self.failure: BaseException | None = None
        self.fixture = make_worker(env, config, batch=batch, hook=self._pause, stop_when_idle=False)
        threading.Thread(target=self._run, daemon=True).start()

    def step(self, calls: int = 1) -> None:
        """Make this many calls."""
        for _ in range(calls):
            if not self.ended:
                self._resumed.release()
                assert self._paused.acquire(timeout=STEP_TIMEOUT_S), f"stuck after {self.next_call}"

    def kill(self) -> None:
        """End before the next call, as by SIGKILL: no clean-up has any effect."""
        self._killed = True
        self.step()

    def finish(self) -> None:
        """Stop gracefully, as by SIGTERM."""
        self.fixture.stop("SIGTERM")
        while not self.ended:
            self.step()

    def _pause(self, name: str) -> None:
        self.next_call = name
        if not self._killed:
            self._paused.release()
            self._resumed.acquire()
        if self._killed:
            raise Crash(name)

    def _run(self) -> None:
        self._resumed.acquire()
        try:
            self.fixture.worker.run(TickingClock())
        except BaseException as failure:
            self.failure = failure
        self.ended = True
        self._paused.release()


class Simulation:
    """An environment, its workers and every fault that may occur. `number` selects one of the running workers."""

    def __init__(self, config: FoldConfig, interval_s: float) -> None:
        self.env = Environment(PARTITIONS, config)
        self.config = worker_config(config, bad_records="dead_letter", checkpoint_interval_s=interval_s)
        self.workers: list[SimulatedWorker] = []
        self._seed = self._timestamp = 0
        self._damaged = False

    def running(self) -> list[SimulatedWorker]:
        return [worker for worker in self.workers if not worker.ended]

    def start(self, batch: int) -> None:
        if len(self.running()) < MAX_WORKERS:
            self.workers.append(SimulatedWorker(self.env, self.config, batch))

    def run(self, number: int, calls: int) -> None:
        for worker in self._selected(number):
            worker.step(calls)

    def kill(self, number: int, noticed: bool = True) -> None:
        for worker in self._selected(number):
            worker.kill()
        if noticed:
            self.evict_ended()

    def stop(self, number: int) -> None:
        for worker in self._selected(number):
            worker.fixture.stop("SIGTERM")

    def evict(self, number: int) -> None:
        """The group evicts a worker that is still running; the worker notices at its next poll."""
        for worker in self._selected(number):
            self._evict(worker)

    def evict_ended(self) -> None:
        """The group notices the workers that have ended."""
        for worker in self.workers:
            if worker.ended:
                self._evict(worker)

    def send(self, partition: int, count: int, bad: bytes | str | None) -> None:
        """Send messages with later timestamps, and a bad record after them if `bad` is one."""
        self._seed += 1
        self._timestamp += 700
        self.env.send(partition, vectors(count, seed=self._seed), 10**12 + self._timestamp)
        if not isinstance(bad, str):
            self.env.send(partition, [bad], 10**12 + self._timestamp)

    def fill_disk(self, writes: int) -> None:
        self.env.store.fail_writes(writes)

    def lose_broker(self, number: int, calls: int) -> None:
        """The broker does not answer during these calls."""
        self.env.topic.away = True
        self.run(number, calls)
        self.env.topic.away = False

    def delay_dead_letters(self, number: int, calls: int) -> None:
        """Dead letters are not acknowledged during these calls."""
        for worker in self._selected(number):
            worker.fixture.dead_letters.away = True
            worker.step(calls)
            worker.fixture.dead_letters.away = False

    def damage(self, partition: int) -> None:
        """Damage a checkpoint, once at most: otherwise none might be left, which is an error of its own."""
        names = self.env.store.names(f"checkpoints/readings/{partition}")
        if len(names) > 1 and not self._damaged:
            self.env.store.damage(names[-1])
            self._damaged = True

    def finish(self) -> None:
        """End all faults, stop the running workers, and let one more worker learn the rest."""
        self.env.store._write_faults.clear()
        for worker in self.running():
            worker.finish()
        self.evict_ended()
        make_worker(self.env, self.config).run()

    def check(self) -> None:
        for worker in self.workers:
            if not isinstance(worker.failure, Crash | StoreError | SourceError | None):
                raise worker.failure
        self.env.assert_complete()
        bad = {
            (partition, record.offset)
            for partition, log in enumerate(self.env.topic.logs)
            for record in log.records
            if record.value in (POISON, None)
        }
        assert {(partition, offset) for partition, offset, _ in self.env.dead_letters} == bad
        newest = self.env.models.newest()
        learned = sum(len(log.records) for log in self.env.topic.logs) - len(bad)
        assert (newest.version if newest else 0) == (learned if learned >= 2 else 0)

    def close(self) -> None:
        for worker in self.running():
            worker.kill()

    def _selected(self, number: int) -> list[SimulatedWorker]:
        running = self.running()
        return [running[number % len(running)]] if running else []

    def _evict(self, worker: SimulatedWorker) -> None:
        if worker.fixture.source in self.env.topic._members:
            self.env.topic.evict(worker.fixture.source)


numbers, partitions = st.integers(0, MAX_WORKERS - 1), st.integers(0, PARTITIONS - 1)
actions = st.one_of(
    *[st.tuples(st.just("run"), numbers, st.integers(1, 600))] * 8,
    *[st.tuples(st.just("send"), partitions, st.integers(0, 90), st.sampled_from([POISON, None, "none"]))] * 2,
    st.tuples(st.just("start"), st.integers(1, 60)),
    st.tuples(st.just("kill"), numbers, st.booleans()),
    st.tuples(st.just("stop"), numbers),
    st.tuples(st.just("evict"), numbers),
    st.tuples(st.just("evict_ended")),
    st.tuples(st.just("fill_disk"), st.integers(1, 3)),
    st.tuples(st.just("lose_broker"), numbers, st.integers(1, 300)),
    st.tuples(st.just("delay_dead_letters"), numbers, st.integers(1, 300)),
    st.tuples(st.just("damage"), partitions),
)

CONFIGS = {"plain": fold_config(), "half-life": fold_config(half_life_seconds=2.0)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@given(
    schedule=st.lists(actions, min_size=25, max_size=60),
    interval_s=st.sampled_from([0.0, 2.0, 6.0]),
    batches=st.lists(st.integers(1, 30), min_size=1, max_size=2),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_schedule_of_faults_gives_the_bytes_of_an_undisturbed_run(
    name: str, schedule: list[tuple[Any, ...]], interval_s: float, batches: list[int]
) -> None:
    simulation = Simulation(CONFIGS[name], interval_s)
    try:
        for partition in range(PARTITIONS):
            simulation.send(partition, 150 * partition + 30, "none")
        for batch in batches:
            simulation.start(batch)
        for action, *arguments in schedule:
            getattr(simulation, action)(*arguments)
        simulation.finish()
        simulation.check()
    finally:
        simulation.close()
    calls = simulation.env.calls("save")
    event(f"checkpoints: {len(calls) // 20 * 20} and more")
    event(f"workers: {len(simulation.workers)}")


@pytest.mark.parametrize("call", range(0, 400, 7))
def test_a_worker_killed_before_any_call_leaves_no_trace(call: int) -> None:
    """The calls include those between a write and its commit, and those of publishing."""
    simulation = Simulation(CONFIGS["plain"], 0.0)
    try:
        for partition in range(PARTITIONS):
            simulation.send(partition, 60, POISON)
        simulation.start(batch=13)
        simulation.run(0, call)
        simulation.kill(0)
        simulation.finish()
        simulation.check()
    finally:
        simulation.close()


def test_an_evicted_worker_that_still_tries_to_save_does_no_harm() -> None:
    """The zombie has polled and pauses; its successor learns everything; then the zombie cannot save."""
    simulation = Simulation(CONFIGS["plain"], 0.0)
    try:
        for partition in range(PARTITIONS):
            simulation.send(partition, 150, POISON)
        simulation.start(batch=40)
        zombie = simulation.workers[0]
        while len(simulation.env.calls("save")) < 2 * PARTITIONS:
            zombie.step()
        while zombie.next_call != "flush":
            zombie.step()
        simulation.evict(0)
        make_worker(simulation.env, simulation.config).run()
        simulation.env.assert_complete()
        before = len(simulation.env.calls("save"))
        while zombie.next_call != "poll":
            zombie.step()
        assert len(simulation.env.calls("save")) == before, "newer checkpoints exist"
        assert zombie.fixture.recorder.of_type(CheckpointPostponed), "the zombie must try to save for this test"
        simulation.finish()
        simulation.check()
    finally:
        simulation.close()
