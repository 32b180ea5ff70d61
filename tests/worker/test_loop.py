"""The worker in memory: what it learns, when it saves, how it handles records and errors."""

import re
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.consumer_group.events import (
    BatchLearned,
    MemberStopping,
    PartitionsAssigned,
    PartitionsReleased,
    RecordRejected,
    RecordsSkipped,
)
from streampca.errors import BadRecordError, SourceError
from streampca.fold.checkpoint import encode
from streampca.sources.events import Assigned
from tests.errors import refusal
from tests.fold.streams import vectors
from tests.in_memory import MemorySource, Step
from tests.in_memory.store import Crash
from tests.worker.environment import Environment, N
from tests.worker.harness import (
    SynchronousExecutor,
    WorkerFixture,
    learn_in_one_batch,
    make_arrow_values,
    make_config_for,
    make_raising_hook,
    make_worker,
    make_worker_config,
    send_poison,
)

ONLY_AT_END: dict[str, Any] = {"checkpoint_interval_s": 1e9}


def test_a_worker_saves_at_every_interval_and_at_the_end(filled: Environment) -> None:
    """The clock advances by one second at each reading: once in every iteration, and when a save is done."""
    make_worker(filled, make_worker_config(checkpoint_interval_s=4.5), [10] * 9).run()
    assert [entry[2] for entry in filled.calls("save")] == [40, 90, N]  # the assignment took an iteration


def test_stop_finishes_the_batch_saves_publishes_and_leaves_the_group(filled: Environment) -> None:
    script: list[Step] = [100, lambda: worker.stop("SIGTERM"), 50, 50]
    worker: WorkerFixture = make_worker(filled, make_worker_config(**ONLY_AT_END), script)
    worker.run()
    assert filled.position() == 150
    assert filled.journal[-2:] == [("close",), ("publish", 150)]
    worker.stop("a second signal")
    assert worker.recorder.of_type(MemberStopping) == [MemberStopping("SIGTERM")]


def test_revoked_partitions_are_saved_before_they_are_assigned_to_another_worker(filled: Environment) -> None:
    filled.topic.add_partitions(2)
    filled.send(1, vectors(90, seed=1))
    others: list[MemorySource] = []
    saved_when_assigned: list[Any] = []

    def poll() -> None:
        if any(isinstance(event, Assigned) for event in others[0].poll(0)):
            saved_when_assigned.append((filled.position(0), filled.position(1), dict(filled.topic.committed)))

    script: list[Step] = [40, 40, lambda: others.append(MemorySource(filled.topic)), *[poll, 40] * 3, poll]
    worker = make_worker(filled, make_worker_config(**ONLY_AT_END), script).run()
    assert worker.recorder.of_type(PartitionsReleased) == [PartitionsReleased([0, 1], lost=False)]
    assert saved_when_assigned == [(80, 80, {0: 80, 1: 80})]
    assert worker.recorder.of_type(PartitionsAssigned) == [
        PartitionsAssigned({0: -1, 1: -1}),
        PartitionsAssigned({0: 80}),
    ]
    assert filled.position(0) == N


def test_lost_partitions_are_not_saved(filled: Environment) -> None:
    script: list[Step] = [100, 100, lambda: filled.topic.evict(worker.source), None]
    worker: WorkerFixture = make_worker(filled, make_worker_config(**ONLY_AT_END), script)
    worker.run()
    assert worker.recorder.of_type(PartitionsReleased) == [PartitionsReleased([0], lost=True)]
    assert [entry[2] for entry in filled.calls("save")] == [N]
    assert [entry[1] for entry in filled.calls("commit")] == [{0: N}]
    assert filled.calls("seek") == [("seek", {0: None}), ("seek", {0: None})]
    filled.assert_complete()


def test_a_member_without_partitions_does_nothing(filled: Environment) -> None:
    owner = MemorySource(filled.topic)
    owner.poll(0)
    make_worker(filled, script=[lambda: owner.poll(0)] * 4).run()
    assert filled.calls("save", "commit", "publish") == []


@pytest.mark.parametrize("batch", [1, 13, 1000])
def test_stop_policy_saves_everything_before_the_bad_record_and_names_it(env: Environment, batch: int) -> None:
    send_poison(env)
    worker = make_worker(env, make_worker_config(on_bad_record="stop"), batch=batch)
    text = refusal(BadRecordError, worker.run)
    assert re.match(r"partition 0 of readings, offset 50: 6 bytes .*wrong_length", text)
    assert "dead_letter_topic" in text
    assert env.position() == 50
    assert (env.newest().fold.stats.learned, dict(env.newest().fold.stats.rejected)) == (50, {})
    assert worker.recorder.of_type(RecordRejected) == []
    env.journal.clear()
    assert "offset 50" in refusal(
        BadRecordError, make_worker(env, make_worker_config(on_bad_record="stop")).run
    )  # again at every restart
    assert env.calls("save") == []


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
@pytest.mark.parametrize("batch", [1, 13, 1000])
def test_bad_records_are_counted_and_become_dead_letters_if_asked_for(
    env: Environment, policy: str, batch: int
) -> None:
    """Dead letters are acknowledged before a checkpoint passes them: the spies check that."""
    send_poison(env)
    worker = make_worker(env, make_worker_config(on_bad_record=policy), batch=batch).run()
    bad = [(0, 50, "wrong_length"), (0, 112, "wrong_length")]
    assert [(event.partition, event.offset, event.reason) for event in worker.recorder.of_type(RecordRejected)] == bad
    assert env.dead_letters == (bad if policy == "dead_letter" else [])
    env.assert_complete()


@pytest.mark.parametrize("policy", ["stop", "dead_letter"])
@pytest.mark.parametrize(("batch", "threads"), [(1, 0), (13, 0), (1000, 0), (13, 1), (13, 3)])
def test_deletes_are_counted_and_stop_no_worker(env: Environment, policy: str, batch: int, threads: int) -> None:
    """At the beginning, in between, and at the end: the position is after them."""
    for seed in range(3):
        env.send(0, [None] * 20)
        env.send(0, vectors(50, seed=seed))
    env.send(0, [None] * 20)
    executor = ThreadPoolExecutor(threads) if threads else None
    worker = make_worker(env, make_worker_config(on_bad_record=policy), batch=batch, threads=executor).run()
    assert (env.position(), env.newest().fold.stats.skipped) == (230, 80)
    assert sum(event.count for event in worker.recorder.of_type(RecordsSkipped)) == 80
    assert (worker.recorder.of_type(RecordRejected), env.dead_letters) == ([], [])
    env.assert_complete()


class NeverExecutor(Executor):
    """Runs nothing."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Future()


class DecodingExecutor(SynchronousExecutor):
    """Runs only the first function, which decodes."""

    ran = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.ran:
            return Future()
        self.ran = True
        return super().submit(fn, *args, **kwargs)


@pytest.mark.parametrize("executor", [NeverExecutor, DecodingExecutor])
def test_nothing_is_sent_or_learned_of_what_is_in_flight_at_the_end(env: Environment, executor: type[Executor]) -> None:
    send_poison(env)
    worker = make_worker(
        env,
        make_worker_config(on_bad_record="dead_letter"),
        [1000, None, lambda: worker.stop("SIGTERM")],
        threads=executor(),
    )
    worker.run()
    assert env.calls("send") == []
    assert env.position() is None
    make_worker(env, make_worker_config(on_bad_record="dead_letter")).run()
    env.assert_complete()


@pytest.mark.parametrize("call", ["send", "flush"])
def test_a_refused_dead_letter_stops_the_worker_before_the_record(env: Environment, call: str) -> None:
    refuse = make_raising_hook(SourceError("the dead-letter topic is not there"), call, lambda: env.position() == 40)
    send_poison(env)
    assert "not there" in refusal(
        SourceError, make_worker(env, make_worker_config(on_bad_record="dead_letter"), [40, 40], hook=refuse).run
    )
    assert env.position() == 40
    assert env.journal[-1] == ("close",)


def test_a_permanent_source_error_ends_the_worker_after_saving(filled: Environment) -> None:
    worker = make_worker(filled, make_worker_config(**ONLY_AT_END), [100, SourceError("not authorized")])
    assert "not authorized" in refusal(SourceError, worker.run)
    assert filled.position() == 100
    assert filled.topic.committed == {0: 100}
    assert worker.recorder.of_type(MemberStopping) == [MemberStopping("not authorized")]


@pytest.mark.parametrize("of", ["the source", "a thread"])
def test_an_unexpected_exception_saves_nothing_and_leaves_the_group(filled: Environment, of: str) -> None:
    def check_threads() -> None:
        if of == "a thread" and worker.recorder.positions.get(0) == 100:
            raise ValueError("a bug")

    script: list[Step] = [100, ValueError("a bug") if of == "the source" else 100]
    worker: WorkerFixture = make_worker(filled, make_worker_config(**ONLY_AT_END), script, check_threads=check_threads)
    assert "a bug" in refusal(ValueError, worker.run)
    assert filled.calls("save", "commit", "publish") == []
    assert filled.journal[-1] == ("close",)
    assert worker.recorder.of_type(MemberStopping) == [MemberStopping("crashed")]


@settings(deadline=None, max_examples=30)
@given(
    counts=st.lists(st.sampled_from([1, 2, 5, 19, 20, 63, 64, 65, 130]), min_size=1, max_size=8),
    polls=st.lists(st.integers(1, 4), max_size=6),
    kills=st.lists(st.sampled_from(["poll", "seek", "commit", "write", "written", "flush", "topic_id"]), max_size=3),
    at=st.integers(1, 6),
)
def test_arrow_gives_the_same_checkpoint_for_any_polls_and_kills(
    counts: list[int], polls: list[int], kills: list[str], at: int
) -> None:
    """The final checkpoint has the bytes of one undisturbed run; positions count messages."""

    env, V = Environment(), vectors(sum(counts))
    config = make_config_for(env, "arrow")
    env.send(0, make_arrow_values(V, counts))
    for kill in kills:
        calls = 0

        def die(name: str, kill: str = kill) -> None:
            nonlocal calls
            calls += name == kill
            if calls >= at:
                raise Crash

        try:
            make_worker(env, config, polls, hook=die).run()
        except Crash:
            for member in env.topic._members[-1:]:  # none, if it was killed before it joined
                env.topic.evict(member)
    make_worker(env, config, polls).run()
    assert env.violations == []
    assert encode(env.newest()) == learn_in_one_batch(env, V, counts, len(counts))


def test_arrow_a_message_with_one_bad_vector_is_rejected_whole() -> None:
    env, V = Environment(), vectors(90)
    bad = np.array(V[:30])
    bad[17, 2] = np.nan
    env.send(0, [*make_arrow_values(V[:40], [40]), *make_arrow_values(bad, [30]), *make_arrow_values(V[40:], [50])])
    worker = make_worker(env, make_config_for(env, "arrow", on_bad_record="dead_letter")).run()
    assert env.dead_letters == [(0, 1, "not_finite")]
    assert encode(env.newest()) == learn_in_one_batch(env, V, [40, 50], 3, ["not_finite"])
    assert env.models.versions()[-1] == 90  # the number of vectors
    assert sum(batch.messages for batch in worker.recorder.of_type(BatchLearned)) == 2
