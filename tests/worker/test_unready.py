"""A worker whose dear code is still being compiled learns what it can without, and all else later, to the same bits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.sources.memory import Do, Pause, Step
from streampca.worker.listener import BatchLearned, LoopTicked, PartitionsAssigned, PartitionsReleased, RecordRejected
from streampca.worker.loop import WorkerConfig
from tests.kafka_broker import wait_until
from tests.stream.streams import START, fold_config
from tests.worker.harness import POISON, Cast, On, Stage, cast, many, worker_config
from tests.worker.test_prefetch import at_work

ROOM = START + 255  # messages: the block that is absorbed, and a next one that is not full
N = 900


@dataclass
class Switch:
    """Whether the code is there; of someone who asks before, it is written down how often."""

    on: bool = False
    refused: int = 0

    def __call__(self) -> bool:
        self.refused += not self.on
        return self.on

    def turn(self) -> None:
        self.on = True


@pytest.mark.parametrize("batch", [1, 100, ROOM, ROOM + 1, N])
def test_the_first_messages_are_learned_and_saved_without(batch: int) -> None:
    stage = Stage()
    stage.send(0, many(N))
    one = cast(stage, batch=batch, script=[batch] * (N // batch + 1), ready=Switch())
    one.run()
    assert one.heard.positions == {0: ROOM}
    assert stage.position() == ROOM
    assert stage.violations == []
    fold = stage.checkpoints.newest(0).fold  # type: ignore[union-attr]
    assert (fold.state.count, len(fold.pending)) == (START, ROOM - START)


def test_all_else_is_learned_when_the_code_is_there() -> None:
    stage, switch = Stage(), Switch()
    stage.send(0, many(N))
    one = cast(stage, script=[N, Pause(), Do(switch.turn), Pause(), N], ready=switch)
    one.run()
    learned = [batch.fold.stats.learned for batch in one.heard.of(BatchLearned)]
    assert learned[0] == ROOM
    assert switch.refused
    stage.assert_complete()


def test_nothing_is_held_where_all_fits_or_all_is_there() -> None:
    for ready, count in ((Switch(), ROOM), (Switch(on=True), N)):
        stage = Stage()
        stage.send(0, many(count))
        cast(stage, ready=ready).run()
        assert stage.calls("seek") == [("seek", {0: None})]
        stage.assert_complete()


def test_what_shows_fewer_directions_than_columns_needs_no_code() -> None:
    """A constant stream is absorbed for ever; a batch is cut where it might not be any more."""
    stage = Stage()
    stage.send(0, many(1).repeat(N, axis=0))
    cast(stage, script=[200] * 5, ready=Switch()).run()
    stage.assert_complete()


def test_a_partition_that_goes_on_from_a_checkpoint_waits_behind_a_block_that_is_not_full() -> None:
    stage = Stage()
    stage.send(0, many(N))
    cast(stage, script=[400], ready=Switch(on=True)).run()
    stage.send(0, many(N, seed=1))
    done = stage.position()
    assert done == N
    again = cast(stage, ready=Switch())
    again.run()
    pending = (N - START) % 256
    assert again.heard.positions == {0: N + 255 - pending}


def test_no_model_is_published_before_since_that_takes_the_code() -> None:
    stage, switch = Stage(), Switch()
    stage.send(0, many(N))
    one = cast(
        stage, script=[N, *[Pause()] * 5, Do(lambda: journal.extend(stage.calls("publish"))), Pause()], ready=switch
    )
    journal: list[object] = []
    one.run()
    assert journal == []
    assert stage.calls("publish") == [("publish", ROOM)]  # at the end, for which the code is waited for
    assert stage.journal.index(("close",)) < stage.journal.index(("publish", ROOM))


@settings(deadline=None, max_examples=40)
@given(
    counts=st.lists(st.integers(0, 700), min_size=3, max_size=3),
    polls=st.lists(st.integers(1, 400), max_size=6),
    later=st.lists(st.integers(1, 400), max_size=3),
    ahead=st.sampled_from([None, 1, 300, 10_000]),
    rebalances=st.booleans(),
)
def test_no_bit_depends_on_when_the_code_is_there(
    counts: list[int], polls: list[int], later: list[int], ahead: int | None, rebalances: bool
) -> None:
    stage, switch = Stage(3, fold_config(half_life_seconds=2.0)), Switch()
    for partition, count in enumerate(counts):
        for start in range(0, count, 90):
            stage.send(partition, many(count, partition)[start : start + 90], 10**12 + 30 * start)
            stage.topic.skip(partition, 3)
            stage.send(partition, (POISON, None), 10**12 + 50 * start)
    script: list[Step] = []
    for poll in polls:
        script += [poll, *[Do(stage.topic.rebalance)] * rebalances, poll]
    script += [Do(switch.turn), *later]
    one = cast(stage, worker_config(stage.fold_config, bad_records="dead_letter"), script, ahead=ahead, ready=switch)
    one.run()
    stage.assert_complete()
    put_aside = [(p, offset) for p, offset, _ in stage.letters]
    bad = {(p, r.offset) for p, log in enumerate(stage.topic.logs) for r in log.records if r.value in (POISON, None)}
    assert set(put_aside) == bad


@contextmanager
def at_work_without(stage: Stage, switch: Switch) -> Iterator[tuple[Cast, WorkerConfig]]:
    """One of two partitions at work that has learned of them what it can, and its worker_config; it must not fail."""
    own = worker_config(stage.fold_config, checkpoint_interval_s=1e9)
    for partition in range(2):
        stage.send(partition, many(N, partition))
    one = cast(stage, own, ends=False, ahead=2000, ready=switch)
    with at_work(one) as failures:
        wait_until(lambda: one.heard.positions == {0: ROOM, 1: ROOM})
        yield one, own
    assert failures == []


def test_partitions_change_hands_meanwhile_without_waiting() -> None:
    """One that lacks the code holds what it has; what it gives up goes on with the other, behind what it has saved."""
    stage, switch = Stage(2), Switch()
    with at_work_without(stage, switch) as (first, own):
        second = cast(stage, own, ends=False, ahead=2000)
        with at_work(second) as failures:
            wait_until(lambda: second.heard.positions == {1: N})
            assert first.heard.of(PartitionsReleased) == [PartitionsReleased([0, 1], lost=False)]
            assert not switch.on
        wait_until(lambda: first.heard.of(PartitionsAssigned)[-1] == PartitionsAssigned({0: ROOM, 1: N}))
        switch.turn()
        wait_until(lambda: first.heard.positions == {0: N, 1: N})
    assert failures == []
    stage.assert_complete()


def test_what_was_given_up_meanwhile_is_let_be_when_the_code_is_there() -> None:
    stage, switch = Stage(2), Switch()
    with at_work_without(stage, switch) as (first, own), at_work(cast(stage, own, ends=False, ahead=2000)) as failures:
        wait_until(lambda: first.heard.of(PartitionsAssigned)[-1] == PartitionsAssigned({0: ROOM}))
        switch.turn()
        wait_until(lambda: first.heard.positions[0] == N)
        assert first.heard.positions[1] == ROOM
    assert failures == []


def test_the_loop_goes_round_meanwhile() -> None:
    stage, ticks = Stage(), threading.Semaphore(0)
    stage.send(0, many(N))
    one = cast(stage, ends=False, ahead=2000, ready=Switch())
    one.add_listener(On(LoopTicked, lambda _: ticks.release()))
    with at_work(one) as failures:
        wait_until(lambda: one.heard.positions == {0: ROOM})
        while ticks.acquire(blocking=False):
            pass
        assert all(ticks.acquire(timeout=20) for _ in range(3))
    assert failures == []
    assert stage.position() == ROOM


def test_why_it_failed_to_be_compiled_is_why_the_worker_ends() -> None:
    class CompilerError(Exception):
        pass

    def ready() -> bool:
        raise CompilerError("no such type")

    stage = Stage()
    stage.send(0, many(N))
    with pytest.raises(CompilerError, match="no such type"):
        cast(stage, ready=ready).run()
    assert stage.calls("close")


def test_a_bad_record_behind_what_can_be_learned_is_met_when_its_turn_comes() -> None:
    stage, switch = Stage(), Switch()
    stage.send(0, many(ROOM))
    stage.send(0, [POISON])
    stage.send(0, many(N))
    one = cast(stage, worker_config(stage.fold_config, bad_records="skip"), script=[N, Pause()], ready=switch)
    one.run()
    assert one.heard.positions == {0: ROOM + 1}  # it needs no code
    assert [event.offset for event in one.heard.of(RecordRejected)] == [ROOM]
