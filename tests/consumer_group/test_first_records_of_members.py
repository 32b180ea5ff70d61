"""Members learn and write nothing before they have compared the first records of a partition."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streampca.consumer_group.events import BatchLearned, PartitionsReleased
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.pca.arrays import Array
from streampca.worker.checkpointer import WorkerConfig
from tests.fold.streams import vectors
from tests.in_memory import Step
from tests.transform.harness import DEAD, OUTPUT, Member, World
from tests.worker.environment import POISON, Environment, make_environment, make_filled_environment
from tests.worker.harness import WorkerFixture, make_worker, make_worker_config, run_until_refused


def config(env: Environment, kind: str = "float64", **options: Any) -> WorkerConfig:
    return replace(
        make_worker_config(env.fold_config, **options), codec=Codec(kind, Judge.of(env.fold_config.learning))
    )


def foreign(V: Array) -> list[bytes]:
    """As Java's ByteBuffer writes them."""
    return [row.astype(">f8").tobytes() for row in V]


@pytest.mark.parametrize("policy", ["stop", "skip", "dead_letter"])
@pytest.mark.parametrize("batch", [1, 30, 1000])
def test_a_worker_ends_before_it_learns_saves_or_sends(batch: int, policy: str) -> None:
    """Most of these records are also bad ones: not finite, or too large."""
    env = make_environment(foreign(vectors(300)))
    worker = make_worker(env, config(env, on_bad_record=policy), batch=batch)
    message = run_until_refused(worker)
    assert message.startswith("partition 0 of readings: ")
    assert "plausible as >f8, " in message
    assert message.endswith("skip this test with format=<f8 if the numbers are right")
    assert worker.recorder.of_type(BatchLearned) == []
    assert env.calls("send", "publish") == []
    assert env.position(0) is None
    make_worker(env, config(env, ">f8", on_bad_record="stop")).run()
    assert env.newest(0).fold.stats.learned == 300


def test_the_first_records_are_learned_when_100_were_seen() -> None:
    env = make_filled_environment(250)
    worker = make_worker(env, config(env), [40, 40, 40, 90]).run()  # the last one reads them again
    assert env.calls("seek") == [("seek", {0: None})] * 2
    assert [event.fold.position for event in worker.recorder.of_type(BatchLearned)] == [90, 250]
    assert [entry[2] for entry in env.calls("save")] == [90, 250]
    env.assert_complete()


def test_100_records_at_once_are_learned_at_once() -> None:
    env = make_filled_environment(250)
    make_worker(env, config(env), [100]).run()
    assert env.calls("seek") == [("seek", {0: None})]
    assert [entry[2] for entry in env.calls("save")] == [100, 250]


def test_first_records_are_held_back_for_a_minute_at_most() -> None:
    """The clock advances by a second or two in a turn."""
    env = make_filled_environment(10)
    script: list[Step] = [10, *[None] * 20, lambda: env.send(0, vectors(5, seed=1)), 5, *[None] * 60]
    make_worker(env, config(env), script).run()
    assert [entry[2] for entry in env.calls("save")] == [15]
    env.assert_complete()
    env.journal.clear()
    env.send(0, vectors(5, seed=2))
    make_worker(env, config(env), [5, None]).run()  # a partition with a checkpoint does not wait
    assert [entry[2] for entry in env.calls("save")] == [20]


def test_records_after_the_minute_are_compared_with_the_first_ones() -> None:
    env = make_filled_environment(15)
    script: list[Step] = [15, *[None] * 80, lambda: env.send(0, foreign(vectors(84))), *[1] * 84]
    assert "decades" in run_until_refused(make_worker(env, config(env, on_bad_record="skip"), script, batch=1))
    assert env.position(0) is not None


def test_records_held_back_when_a_worker_stops_are_left_to_the_next_one() -> None:
    env = make_environment([*[row.tobytes() for row in vectors(20)], POISON])
    script: list[Step] = [21, lambda: worker.stop("SIGTERM"), None]
    worker: WorkerFixture = make_worker(env, config(env, on_bad_record="dead_letter"), script)
    worker.run()
    assert env.calls("send", "save", "commit") == []
    make_worker(env, config(env, on_bad_record="dead_letter"), [21, *[None] * 80]).run()
    assert env.dead_letters == [(0, 20, "wrong_length")]
    env.assert_complete()


@pytest.mark.parametrize("again", ["rebalance", "eviction"])
def test_the_minute_begins_anew_when_the_partition_comes_back(again: str) -> None:
    """The clock advances by two seconds in a turn: each wait is shorter than a minute, and both together are longer."""
    env = make_filled_environment(15)
    give_up = env.topic.rebalance if again == "rebalance" else lambda: env.topic.evict(worker.source)
    script: list[Step] = [15, *[None] * 22, give_up, *[15] * 4, *[None] * 18, lambda: worker.stop("SIGTERM"), None]
    worker: WorkerFixture = make_worker(env, config(env), script)
    worker.run()
    assert worker.recorder.of_type(PartitionsReleased)
    assert worker.recorder.of_type(BatchLearned) == []


@pytest.mark.parametrize("batch", [5, 1000])
def test_transform_ends_before_it_writes(batch: int) -> None:
    world = World(0)
    world.topic.append(0, *foreign(np.random.default_rng(0).normal(size=(150, 5))))
    message = run_until_refused(Member(world, batch=batch, kind="float64", on_bad_record="dead_letter"))
    assert "plausible as >f8, " in message
    assert not world.written[OUTPUT] + world.written[DEAD]
    assert not world.topic.committed.get(0)
