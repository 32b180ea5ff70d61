"""Random disasters: workers that are killed at any call, given up for dead while they work on, joined by others, on
disks that fill up and with brokers that go away. Whatever happens, the checkpoints at the logs' ends are, to the byte,
those of one undisturbed pass; no committed offset is ever ahead of a checkpoint; no checkpoint ever passes a bad
record that is not put aside.

Every worker runs in a thread of its own, but only one at a time and only from one call to the next, in an order that
the test draws: so each schedule can be repeated.
"""

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from streampca.errors import SourceError, StoreError
from streampca.stores.memory import Crash
from streampca.stream.fold import FoldConfig
from streampca.worker.loop import WorkerConfig
from tests.stream.streams import fold_config
from tests.worker.harness import POISON, Stage, cast, many, worker_config

PARTITIONS = 3
ACTORS = 3
PATIENCE_S = 60.0


class Actor:
    """A worker as a process that stops at each of its calls until it is told to go on, and can be killed there."""

    def __init__(self, stage: Stage, own: WorkerConfig, batch: int) -> None:
        self._go, self._came = threading.Semaphore(0), threading.Semaphore(0)
        self._doomed = False
        self._at = "start"
        self.ended = False
        self.failure: BaseException | None = None
        self.cast = cast(stage, own, batch=batch, hook=self._pause, ends=False)
        threading.Thread(target=self._live, daemon=True).start()

    def step(self, calls: int = 1) -> None:
        """Carry out so many calls."""
        for _ in range(calls):
            if not self.ended:
                self._go.release()
                assert self._came.acquire(timeout=PATIENCE_S), f"stuck after {self._at}"

    def kill(self) -> None:
        """Die before the next call, as by SIGKILL: nothing that is done on the way out has any effect."""
        self._doomed = True
        self.step()

    def finish(self) -> None:
        """Stop in order, as by SIGTERM."""
        self.cast.worker.stop("SIGTERM")
        while not self.ended:
            self.step()

    def _pause(self, name: str) -> None:
        self._at = name
        if not self._doomed:
            self._came.release()
            self._go.acquire()
        if self._doomed:
            raise Crash(name)

    def _live(self) -> None:
        self._go.acquire()
        try:
            self.cast.run()
        except BaseException as failure:
            self.failure = failure
        self.ended = True
        self._came.release()


class Theatre:
    """The stage, its actors, and everything that may befall them. Numbers pick among the living."""

    def __init__(self, own: FoldConfig, interval_s: float) -> None:
        self.stage = Stage(PARTITIONS, own)
        self.plan = worker_config(own, bad_records="dead_letter", checkpoint_interval_s=interval_s)
        self.actors: list[Actor] = []
        self._seed = self._stamp = 0
        self._damaged = False

    def living(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.ended]

    def start(self, batch: int) -> None:
        if len(self.living()) < ACTORS:
            self.actors.append(Actor(self.stage, self.plan, batch))

    def run(self, number: int, calls: int) -> None:
        for actor in self._picked(number):
            actor.step(calls)

    def kill(self, number: int, noticed: bool = True) -> None:
        for actor in self._picked(number):
            actor.kill()
        if noticed:
            self.bury()

    def stop(self, number: int) -> None:
        for actor in self._picked(number):
            actor.cast.worker.stop("SIGTERM")

    def evict(self, number: int) -> None:
        """The group gives up a worker that is still at work, and hears of it only at its next poll."""
        for actor in self._picked(number):
            self._give_up(actor)

    def bury(self) -> None:
        """The group notices who has died."""
        for actor in self.actors:
            if actor.ended:
                self._give_up(actor)

    def more(self, partition: int, count: int, bad: bytes | str | None) -> None:
        """Messages a while later, and maybe a bad one behind them."""
        self._seed += 1
        self._stamp += 700
        self.stage.send(partition, many(count, self._seed), 10**12 + self._stamp)
        if not isinstance(bad, str):
            self.stage.send(partition, [bad], 10**12 + self._stamp)

    def fill_disk(self, writes: int) -> None:
        self.stage.files.fail_writes(writes)

    def lose_broker(self, number: int, calls: int) -> None:
        """It does not answer for a while."""
        self.stage.topic.away = True
        self.run(number, calls)
        self.stage.topic.away = False

    def hold_letters(self, number: int, calls: int) -> None:
        """Dead letters are not acknowledged for a while."""
        for actor in self._picked(number):
            actor.cast.letters.away = True
            actor.step(calls)
            actor.cast.letters.away = False

    def damage(self, partition: int) -> None:
        """Once in a play: else there might be no whole file left, which is another story."""
        names = self.stage.files.names(f"checkpoints/readings/{partition}")
        if len(names) > 1 and not self._damaged:
            self.stage.files.damage(names[-1])
            self._damaged = True

    def end(self) -> None:
        """All is mended, the living leave in order, and one more worker does what is left to do."""
        self.stage.files._write_faults.clear()
        for actor in self.living():
            actor.finish()
        self.bury()
        cast(self.stage, self.plan).run()

    def check(self) -> None:
        for actor in self.actors:
            if not isinstance(actor.failure, Crash | StoreError | SourceError | None):
                raise actor.failure
        self.stage.assert_complete()
        bad = {
            (partition, record.offset)
            for partition, log in enumerate(self.stage.topic.logs)
            for record in log.records
            if record.value in (POISON, None)
        }
        assert {(partition, offset) for partition, offset, _ in self.stage.letters} == bad
        newest = self.stage.models.newest()
        learned = sum(len(log.records) for log in self.stage.topic.logs) - len(bad)
        assert (newest.version if newest else 0) == (learned if learned >= 2 else 0)

    def close(self) -> None:
        for actor in self.living():
            actor.kill()

    def _picked(self, number: int) -> list[Actor]:
        living = self.living()
        return [living[number % len(living)]] if living else []

    def _give_up(self, actor: Actor) -> None:
        if actor.cast.source in self.stage.topic._members:
            self.stage.topic.evict(actor.cast.source)


numbers, partitions = st.integers(0, ACTORS - 1), st.integers(0, PARTITIONS - 1)
acts = st.one_of(
    *[st.tuples(st.just("run"), numbers, st.integers(1, 600))] * 8,
    *[st.tuples(st.just("more"), partitions, st.integers(0, 90), st.sampled_from([POISON, None, "none"]))] * 2,
    st.tuples(st.just("start"), st.integers(1, 60)),
    st.tuples(st.just("kill"), numbers, st.booleans()),
    st.tuples(st.just("stop"), numbers),
    st.tuples(st.just("evict"), numbers),
    st.tuples(st.just("bury")),
    st.tuples(st.just("fill_disk"), st.integers(1, 3)),
    st.tuples(st.just("lose_broker"), numbers, st.integers(1, 300)),
    st.tuples(st.just("hold_letters"), numbers, st.integers(1, 300)),
    st.tuples(st.just("damage"), partitions),
)

SHAPES = {"plain": fold_config(), "half-life": fold_config(half_life_seconds=2.0)}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
@given(
    play=st.lists(acts, min_size=25, max_size=60),
    interval_s=st.sampled_from([0.0, 2.0, 6.0]),
    batches=st.lists(st.integers(1, 30), min_size=1, max_size=2),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_happens_the_bits_are_those_of_one_undisturbed_pass(
    name: str, play: list[tuple[Any, ...]], interval_s: float, batches: list[int]
) -> None:
    theatre = Theatre(SHAPES[name], interval_s)
    try:
        for partition in range(PARTITIONS):
            theatre.more(partition, 150 * partition + 30, "none")
        for batch in batches:
            theatre.start(batch)
        for act, *what in play:
            getattr(theatre, act)(*what)
        theatre.end()
        theatre.check()
    finally:
        theatre.close()
    calls = theatre.stage.calls("save")
    event(f"checkpoints: {len(calls) // 20 * 20} and more")
    event(f"workers: {len(theatre.actors)}")


@pytest.mark.parametrize("call", range(0, 400, 7))
def test_killed_at_this_very_call_it_goes_on_as_if_nothing_had_been(call: int) -> None:
    """Every kind of call of a worker's life is hit: between a write and its commit, in the middle of publishing …"""
    theatre = Theatre(SHAPES["plain"], 0.0)
    try:
        for partition in range(PARTITIONS):
            theatre.more(partition, 60, POISON)
        theatre.start(batch=13)
        theatre.run(0, call)
        theatre.kill(0)
        theatre.end()
        theatre.check()
    finally:
        theatre.close()


def test_one_given_up_for_dead_works_on_beside_its_heir_and_does_no_harm() -> None:
    """The zombie has polled and sleeps; the heir takes over, learns everything; then the zombie saves what it had."""
    theatre = Theatre(SHAPES["plain"], 0.0)
    try:
        for partition in range(PARTITIONS):
            theatre.more(partition, 150, POISON)
        theatre.start(batch=40)
        zombie = theatre.actors[0]
        while len(theatre.stage.calls("save")) < 2 * PARTITIONS:
            zombie.step()
        while zombie._at != "flush":
            zombie.step()
        theatre.evict(0)
        cast(theatre.stage, theatre.plan).run()
        theatre.stage.assert_complete()
        before = len(theatre.stage.calls("save"))
        while zombie._at != "poll":
            zombie.step()
        assert len(theatre.stage.calls("save")) > before, "the zombie was meant to save"
        theatre.end()
        theatre.check()
    finally:
        theatre.close()
