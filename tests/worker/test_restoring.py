"""Restoring in steps between polls, however slow the store is and however many partitions there are."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from streampca.consumer_group.events import PartitionsAssigned, PartitionsReleased, RestoreBegun, RestoreFailed
from streampca.errors import StoreBusyError, StoreError
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.stores import parallel_requests
from streampca.stores.parallel_requests import REQUESTS_AT_ONCE
from tests.fold.streams import vectors
from tests.in_memory import MemorySource, Step
from tests.stepped_threads import SteppedThreads
from tests.worker.environment import TOPIC, Environment, make_environment
from tests.worker.harness import WorkerFixture, make_worker, make_worker_config

ONLY_AT_END: dict[str, Any] = {"checkpoint_interval_s": 1e9}


def make_learned(partitions: int) -> Environment:
    """An environment whose partitions were learned up to offset 1, and have two messages more."""
    env = make_environment(*[vectors(3, seed=partition % 7) for partition in range(partitions)])
    empty = Fold.empty(env.fold_config.learning).at(0)
    for partition in range(partitions):
        checkpoint = Checkpoint(TOPIC, env.topic.id, partition, empty.at(1), env.fold_config.as_dict())
        env.checkpoints.save(checkpoint)
    env.journal.clear()
    return env


def make_slow(
    env: Environment,
    threads: SteppedThreads,
    *,
    per_poll: int = REQUESTS_AT_ONCE,
    script: tuple[Step, ...] = (),
    at_poll: Callable[[], None] = lambda: None,
    **options: Any,
) -> WorkerFixture:
    """A worker to which the store answers `per_poll` requests between two polls."""

    def hook(name: str) -> None:
        if name == "poll":
            threads.end(per_poll)
            at_poll()

    config = make_worker_config(env.fold_config, **ONLY_AT_END | options)
    return make_worker(env, config, script, hook=hook, request_threads=threads)


def restored(worker: WorkerFixture) -> list[int]:
    """The partitions in the order in which they were restored."""
    return [p for event in worker.recorder.of_type(PartitionsAssigned) for p in event.positions]


def test_hundreds_of_partitions_are_restored_between_polls() -> None:
    env, threads, polls = make_learned(400), SteppedThreads(), list[int]()
    worker = make_slow(env, threads, at_poll=lambda: polls.append(len(restored(worker))))
    worker.run()
    assert sorted(restored(worker)) == list(range(400))
    assert max(after - before for before, after in pairwise(polls)) <= REQUESTS_AT_ONCE
    assert threads.most_at_once == REQUESTS_AT_ONCE
    assert worker.recorder.of_type(RestoreBegun) == [RestoreBegun(400)]
    assert worker.recorder.of_type(PartitionsReleased) == []
    assert {env.position(partition) for partition in range(400)} == {3}
    assert len(env.calls("save")) == 400


@pytest.mark.parametrize("held", [{0}, {7}, {3, 9}, {38, 39}])
def test_a_partition_is_read_as_soon_as_it_is_restored(held: set[int]) -> None:
    """Although the store does not answer about another one. That is read, too, when the store has answered."""
    env, threads = make_learned(40), SteppedThreads()
    threads.held = set(held)
    learned: list[dict[int, int]] = []

    def answer() -> None:
        learned.append(dict(worker.recorder.positions))
        threads.held.clear()

    worker = make_slow(env, threads, script=(*[1000] * 60, answer))
    worker.run()
    assert learned == [dict.fromkeys(set(range(40)) - held, 3)]
    assert sorted(restored(worker)) == list(range(40))
    assert {env.position(partition) for partition in range(40)} == {3}


@pytest.mark.parametrize("polls", [0, 1, 2, 3, 4, 6])
@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_partitions_that_were_revoked_meanwhile_are_restored_anew(
    polls: int, start: str, *, has_checkpoints: bool
) -> None:
    """Another worker joins after some polls. None of its partitions is read here, though the store answers late."""
    env = make_learned(40) if has_checkpoints else make_environment(*[vectors(3)] * 40)
    threads, others = SteppedThreads(), list[MemorySource]()

    def join() -> None:
        others.append(MemorySource(env.topic))
        others[0].poll(0)

    def leave() -> None:
        others[0].poll(0)
        others[0].close()

    poll = lambda: others[0].poll(0)  # noqa: E731
    script = (*[0] * polls, join, 0, poll, 0, poll, *[5] * 30, leave)
    worker = make_slow(env, threads, per_poll=8, script=script, start=start)
    worker.run()
    counts = [event.partitions for event in worker.recorder.of_type(RestoreBegun)]
    assert counts == [40, 20, 40]
    assert env.violations == []
    end = {env.position(partition) for partition in range(40)}
    assert end == {3}


def test_new_partitions_are_saved_side_by_side_before_they_are_read() -> None:
    env, threads = make_environment(*[vectors(3)] * 100), SteppedThreads()
    committed: list[bool] = []

    def check() -> None:
        committed.extend(env.topic.committed.get(partition) == 3 for partition in worker.source._read)

    worker = make_slow(env, threads, at_poll=check, start="latest")
    worker.run()
    assert threads.most_at_once == REQUESTS_AT_ONCE
    assert committed
    assert all(committed)
    assert env.topic.committed == dict.fromkeys(range(100), 3)


def test_a_worker_that_ends_saves_side_by_side() -> None:
    env, threads = make_learned(100), SteppedThreads()
    worker = make_slow(env, threads)
    stop = worker.source.stop

    def count(cause: str) -> None:
        threads.most_at_once = 0
        threads.begun.clear()
        if stop is not None:
            stop(cause)

    worker.source.stop = count
    worker.run()
    assert (threads.most_at_once, sorted(threads.begun)) == (REQUESTS_AT_ONCE, list(range(100)))
    assert {env.position(partition) for partition in range(100)} == {3}


@pytest.mark.parametrize("error", [StoreError("cannot read: 403"), StoreBusyError("cannot read: 503")])
def test_a_busy_store_gets_no_further_requests(error: StoreError) -> None:
    """If only one object is refused, the others are read. They are all read when the store answers again."""
    env, threads = make_learned(100), SteppedThreads()
    read = env.store.read
    is_away: list[bool] = [True]
    begun_at_failure: list[int] = []

    def refuse(name: str) -> bytes:
        if name.startswith("checkpoints/") and is_away:
            raise error
        return read(name)

    env.store.read = refuse  # type: ignore[method-assign]

    def at_poll() -> None:
        if worker.recorder.of_type(RestoreFailed) and is_away:
            begun_at_failure.append(len(threads.begun))
            is_away.clear()

    worker = make_slow(env, threads, at_poll=at_poll)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_check_store", lambda: None)
        worker.run()
    assert begun_at_failure == [REQUESTS_AT_ONCE if isinstance(error, StoreBusyError) else 100]
    assert {env.position(partition) for partition in range(100)} == {3}


def test_large_checkpoints_are_not_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    env, threads = make_learned(40), SteppedThreads()
    (largest,) = env.checkpoints.sizes({0: 1}).values()
    monkeypatch.setattr(parallel_requests, "BYTES_AT_ONCE", 3 * largest)
    at_once: list[int] = []

    def note() -> None:
        if len(restored(worker)) < 40:
            at_once.append(threads.most_at_once)

    worker = make_slow(env, threads, at_poll=note)
    worker.run()
    assert max(at_once) == 3
    assert {env.position(partition) for partition in range(40)} == {3}
