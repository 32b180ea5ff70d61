"""A log that was cut and has grown again: it holds other records than those that were learned."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from streampca.consumer_group.listener import OffsetsSkipped
from streampca.errors import OffsetGapError
from streampca.fold.checkpoint import encode
from streampca.sources.memory import Do
from tests.fold.streams import vectors
from tests.worker.environment import TOPIC, Environment
from tests.worker.harness import WorkerFixture, make_worker, worker_config


def cut_and_grown(env: Environment) -> None:
    """Lose the last 40 of 100 records; append 90 others."""
    env.topic.truncate(0, 60)
    env.send(0, vectors(90, seed=7))


@pytest.fixture
def env() -> Environment:
    """A topic whose first 100 records have been learned."""
    env = Environment()
    env.send(0, vectors(100))
    make_worker(env).run()
    return env


def test_the_worker_stops_and_changes_nothing(env: Environment) -> None:
    before = env.checkpoints.newest(0)
    assert before
    cut_and_grown(env)
    with pytest.raises(OffsetGapError) as refusal:
        make_worker(env).run()
    text = str(refusal.value)
    assert "\n" not in text
    for part in (
        f"partition 0 of {TOPIC}: offset 100",
        "cut at offset 60 or before and has grown",
        "on_offset_gap",
        "group_id",
    ):
        assert part in text
    after = env.checkpoints.newest(0)
    assert after
    assert encode(after) == encode(before)
    assert env.checkpoints.offsets(0) == [100]


def started(env: Environment, policy: str) -> WorkerFixture:
    cut_and_grown(env)
    return make_worker(env, worker_config(env.fold_config, offset_gap=policy))


def running(env: Environment, policy: str) -> WorkerFixture:
    config = worker_config(env.fold_config, offset_gap=policy)
    return make_worker(env, config, script=[10, 10, Do(lambda: cut_and_grown(env))])


@pytest.mark.parametrize("make", [started, running])
@pytest.mark.parametrize(("policy", "position", "learned"), [("earliest", 100, 150), ("latest", 150, 100)])
def test_the_worker_resumes_as_on_offset_gap_allows(
    env: Environment, make: Callable[[Environment, str], WorkerFixture], policy: str, position: int, learned: int
) -> None:
    worker = make(env, policy)
    worker.run()
    assert worker.recorder.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 60, position, truncated=True)]
    newest = env.checkpoints.newest(0)
    assert newest
    assert (newest.fold.position, newest.fold.stats.learned, newest.fold.stats.gap) == (150, learned, position - 60)
    again = make_worker(env)
    again.run()
    assert again.recorder.of_type(OffsetsSkipped) == []


def test_a_log_that_was_cut_behind_the_last_record_is_the_same(env: Environment) -> None:
    """It has lost offsets without a record only."""
    env.topic.skip(0, 5)
    make_worker(env).run()
    env.topic.truncate(0, 100)
    env.topic.skip(0, 5)
    env.send(0, vectors(50, seed=3))
    make_worker(env).run()
    env.assert_complete()


def test_retention_may_remove_the_offsets_without_a_record_behind_the_last_one(env: Environment) -> None:
    env.topic.skip(0, 5)
    make_worker(env).run()
    assert env.position() == 105
    env.topic.trim(0, 103)
    env.send(0, vectors(50, seed=3))
    make_worker(env).run()
    newest = env.checkpoints.newest(0)
    assert newest
    assert (newest.fold.position, newest.fold.stats.learned, newest.fold.stats.gap) == (155, 150, 0)


def test_a_checkpoint_without_the_last_record_is_used_unchecked(env: Environment) -> None:
    newest = env.checkpoints.newest(0)
    assert newest
    assert newest.fold.last == (99, 0)
    old = replace(newest, fold=replace(newest.fold, last=None))
    env.store.write(f"checkpoints/{TOPIC}/0/{100:020d}.npz", encode(old))
    cut_and_grown(env)
    make_worker(env).run()
    assert env.position() == 150
