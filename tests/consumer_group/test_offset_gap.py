"""Where a partition is resumed whose log does not hold the next record any more."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from streampca.consumer_group.assignment import OffsetGapPolicy
from streampca.consumer_group.listener import (
    OffsetsSkipped,
    PartitionsAssigned,
)
from streampca.errors import (
    OffsetGapError,
    SourceError,
    TopicReplacedError,
)
from streampca.fold.checkpoint import encode
from streampca.fold.events import OutOfRange
from streampca.sources.memory import Do
from tests.fold.streams import vectors
from tests.worker.environment import TOPIC, Environment, N
from tests.worker.harness import WorkerFixture, broker_away_at_lookup, make_worker, run_until, worker_config


def policy(on_offset_gap: str) -> OffsetGapPolicy:
    return OffsetGapPolicy("readings", on_offset_gap, "another store folder")


GAP = OutOfRange(partition=3, position=10, earliest=50, latest=90)


def test_an_offset_gap_is_resolved_by_the_policy() -> None:
    assert policy("earliest").resolve(GAP) == 50
    assert policy("latest").resolve(GAP) == 90
    with pytest.raises(OffsetGapError, match=r"partition 3 of readings: offset 10 .*retention.* 50") as refusal:
        policy("fail").resolve(GAP)
    assert "on_offset_gap" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("on_offset_gap", ["fail", "earliest", "latest"])
@pytest.mark.parametrize("position", [50, 70, 90, 91])
def test_a_log_that_lost_records_that_were_read_is_refused(on_offset_gap: str, position: int) -> None:
    with pytest.raises(OffsetGapError, match=rf"offset {position} .*50 to 90.*lost") as refusal:
        policy(on_offset_gap).resolve(replace(GAP, position=position))
    assert isinstance(refusal.value, SourceError)
    assert "store folder" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.fixture
def filled() -> Environment:
    env = Environment()
    env.send(0, vectors(N))
    return env


@pytest.fixture
def trimmed(filled: Environment) -> Environment:
    """An environment learned up to 100 where retention has removed everything before 180."""
    run_until(filled, 100)
    filled.topic.trim(0, 180)
    return filled


def test_a_gap_stops_the_worker_and_names_the_setting(trimmed: Environment) -> None:
    with pytest.raises(OffsetGapError, match=r"offset 100 was removed.* 180.*on_offset_gap"):
        make_worker(trimmed, worker_config(offset_gap="fail")).run()
    assert trimmed.calls("save", "commit") == []


@pytest.mark.parametrize(("policy", "position"), [("earliest", 180), ("latest", N)])
def test_a_gap_is_skipped_by_policy_and_counted(trimmed: Environment, policy: str, position: int) -> None:
    worker = make_worker(trimmed, worker_config(offset_gap=policy))
    worker.run()
    assert worker.recorder.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 100, position)]
    assert trimmed.calls("seek")[1] == ("seek", {0: position})
    newest = trimmed.newest()
    assert newest.fold.position == N
    assert newest.fold.stats.gap == position - 100
    assert newest.fold.stats.learned == 100 + N - position


def test_a_log_that_ends_before_the_checkpoint_is_an_error(filled: Environment) -> None:
    make_worker(filled).run()
    log = filled.topic.logs[0]
    del log.records[200:]
    log.end = 200
    with pytest.raises(OffsetGapError, match="lost data"):
        make_worker(filled, worker_config(offset_gap="earliest")).run()
    assert filled.position() == N


def test_records_removed_before_the_first_poll_are_no_gap() -> None:
    env = Environment()
    env.send(0, vectors(100))
    worker = make_worker(env, worker_config(offset_gap="fail"))
    original_poll = worker.source.poll
    out_of_range = iter([OutOfRange(0, 0, 40, 100)])

    def poll(timeout_s: float) -> Any:
        if worker.recorder.of_type(PartitionsAssigned) and (event := next(out_of_range, None)):
            env.topic.trim(0, 40)
            return [event]
        return original_poll(timeout_s)

    worker.source.poll = poll  # type: ignore[method-assign]
    worker.run()
    assert env.calls("seek") == [("seek", {0: None}), ("seek", {0: None})]
    newest = env.newest()
    assert (newest.fold.stats.learned, newest.fold.stats.gap) == (60, 0)


def test_a_broker_lost_while_resolving_a_gap_is_asked_again(trimmed: Environment) -> None:
    worker = make_worker(trimmed, worker_config(offset_gap="earliest"), hook=broker_away_at_lookup(trimmed, 2))
    worker.run()
    assert [entry[1] for entry in trimmed.calls("seek")] == [{0: 100}, {0: 100}, {0: 180}]
    assert worker.recorder.of_type(OffsetsSkipped) == [OffsetsSkipped(0, 100, 180)]


def test_a_replaced_topic_is_not_mistaken_for_a_gap(trimmed: Environment) -> None:
    def replace_topic() -> None:
        trimmed.topic.create(1)

    with pytest.raises(TopicReplacedError):
        make_worker(trimmed, worker_config(offset_gap="earliest"), [Do(replace_topic), 10]).run()
    assert trimmed.calls("save", "commit") == []


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
    before = env.newest()
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
    after = env.newest()
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
    newest = env.newest()
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
    newest = env.newest()
    assert (newest.fold.position, newest.fold.stats.learned, newest.fold.stats.gap) == (155, 150, 0)


def test_a_checkpoint_without_the_last_record_is_used_unchecked(env: Environment) -> None:
    newest = env.newest()
    assert newest.fold.last == (99, 0)
    old = replace(newest, fold=replace(newest.fold, last=None))
    env.store.write(f"checkpoints/{TOPIC}/0/{100:020d}.npz", encode(old))
    cut_and_grown(env)
    make_worker(env).run()
    assert env.position() == 150
