"""Saving that has stopped: what is said of each of its dependencies, and that nothing is said of what merely waits."""

import itertools
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from structlog.typing import EventDict

from streampca.consumer_group import events
from streampca.consumer_group.events import MemberEvent
from streampca.consumer_group.health import why_unhealthy
from streampca.errors import StoreError
from streampca.fold.fold import Fold
from streampca.pca.learning import LearningConfig
from streampca.sources.events import SourceStatus
from streampca.transform.log import TransformLog
from streampca.transform.metrics import TransformMetrics
from streampca.worker.log import WorkerLog
from streampca.worker.metrics import WorkerMetrics
from tests.members import make_member, notify
from tests.monitoring.prometheus import samples_in
from tests.transform.harness import Member, World
from tests.waiting import Clock
from tests.worker.environment import TOPIC, Environment, N, make_filled_environment
from tests.worker.harness import SynchronousExecutor, make_raising_hook, make_worker, make_worker_config, send_poison

SILENT = TimeoutError("no broker answers at kafka:9092")
FOLD = Fold.empty(LearningConfig(3, 2))
TICK = events.LoopTicked(SourceStatus(connected=True, member=True))


class Watched:
    """A member with all that observes it; `is_new_answered` is what a new client would find."""

    def __init__(self, role: str, due_after_s: float, *, is_new_answered: bool = True) -> None:
        self.clock = Clock(0.0)
        log, self._metrics = (
            (WorkerLog(), WorkerMetrics(TOPIC)) if role == "worker" else (TransformLog(), TransformMetrics(TOPIC))
        )
        self.member = make_member(
            log,
            self._metrics,
            clock=self.clock,
            save_due_after_s=due_after_s,
            can_new_client_save=lambda needs: is_new_answered,
        )

    @property
    def overdue_s(self) -> float:
        (seconds,) = (s for name, s in samples_in(self._metrics.registry, TOPIC).items() if "save_overdue" in name)
        return seconds

    @property
    def is_healthy(self) -> bool:
        return why_unhealthy(self.member.state, self.member.state.last_tick_at.monotonic_s) is None


class Hanging(Executor):
    """Runs nothing until it is released."""

    def __init__(self) -> None:
        self._held: list[tuple[Future[Any], Callable[[], Any]]] | None = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._held is None:
            return SynchronousExecutor().submit(fn, *args, **kwargs)
        self._held.append((future := Future[Any](), partial(fn, *args, **kwargs)))
        return future

    def release(self) -> None:
        held, self._held = self._held or [], None
        for future, run in held:
            future.set_result(run())


def said(logs: list[EventDict]) -> list[str]:
    return [line["cause"] for line in logs if line["event"] == "saving has stopped"]


@pytest.mark.parametrize(
    ("fault", "is_new_answered", "cause", "restarts"),
    [
        ("admin", True, "topic: no broker answers at kafka:9092", True),
        ("brokers", False, "topic: no broker answers at kafka:9092", False),
        ("hang", True, "store: it has not answered yet", False),
        ("full", True, "store: cannot write: No space left on device", False),
        ("refuse", True, "store: no permission", False),
        ("letters", False, "dead letters: 1 dead letters are not acknowledged yet", False),
        ("letters", True, "dead letters: 1 dead letters are not acknowledged yet", True),
    ],
)
def test_a_save_that_stops_is_reported_and_a_silent_client_is_restarted(
    logs: list[EventDict], fault: str, is_new_answered: bool, cause: str, restarts: bool
) -> None:
    env, executor, seen, faults = Environment(), Hanging(), list[Any](), {fault}
    send_poison(env)
    watched = Watched("worker", 5.0, is_new_answered=is_new_answered)

    def begin() -> None:
        worker.dead_letters.away = fault == "letters"
        env.store.fail_writes(
            99 * (fault in ("full", "refuse")), StoreError("no permission") if fault == "refuse" else None
        )

    def look(now: float) -> None:
        seen.append((watched.overdue_s, len(said(logs)), watched.is_healthy))
        watched.clock.now = now

    def end() -> None:
        look(306.0)
        worker.dead_letters.away = False
        env.store._write_faults.clear()
        faults.clear()
        executor.release()

    if fault != "hang":
        executor.release()
    steps = [begin, 60, partial(look, 304.0), None, partial(look, 306.0), None, None, end, None, None]
    config = make_worker_config(env.fold_config, on_bad_record="dead_letter")
    hook = make_raising_hook(SILENT, "topic_id", lambda: bool(faults & {"admin", "brokers"} and env.calls("seek")))
    worker = make_worker(env, config, steps, hook=hook, save_executor=executor).also_notify(watched.member.notify)
    worker.run()
    assert seen == [(0, 0, True), (299, 0, True), (301, 1, not restarts)]
    assert said(logs) == [cause]
    assert (watched.overdue_s, watched.is_healthy) == (0, True)
    assert "no save is overdue" in [line["event"] for line in logs]
    env.assert_complete()


@pytest.mark.parametrize(
    ("fault", "is_new_answered", "cause", "restarts"),
    [
        ("admin", True, f"transaction: {SILENT}; restore: {SILENT}", True),
        ("brokers", False, f"transaction: {SILENT}; restore: {SILENT}", False),
        ("before", True, "transaction: before", False),
    ],
)
def test_a_commit_that_stops_is_reported_and_a_silent_client_is_restarted(
    logs: list[EventDict],
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    is_new_answered: bool,
    cause: str,
    restarts: bool,
) -> None:
    seen, faults = list[Any](), {fault}
    watched, world = Watched("transform", 0.0, is_new_answered=is_new_answered), World(50)
    hook = make_raising_hook(SILENT, "topic_id", lambda: bool(seen and faults & {"admin", "brokers"}))

    def look(now: float) -> None:
        seen.append((watched.overdue_s, len(said(logs)), watched.is_healthy))
        watched.clock.now = now
        member.transactions.failures = ["before"] * 9 * (fault == "before")

    def end() -> None:
        look(307.0)
        member.transactions.failures.clear()
        faults.clear()

    steps = [20, *(partial(look, now) for now in (0.0, 299.0, 301.0)), end]
    member = Member(world, steps, also_notify=watched.member.notify)
    topic_id = member.source.topic_id
    monkeypatch.setattr(member.source, "topic_id", lambda: (hook("topic_id"), topic_id())[1])
    member.run()
    watched.member.notify(TICK)
    assert seen == [(0, 0, True), (0, 0, True), (299, 0, True), (301, 1, not restarts)]
    assert said(logs) == [cause]
    assert (watched.overdue_s, watched.is_healthy) == (0, True)
    world.assert_each_once()


def learned(position: int, partition: int = 0) -> events.BatchLearned:
    return events.BatchLearned(partition, replace(FOLD, position=position), 1, [], 0.0, 0, 0, [])


def saved(position: int, partition: int = 0) -> events.CheckpointSaved:
    return events.CheckpointSaved(partition, replace(FOLD, position=position), 0.0)


ASSIGNED, STALLED = events.PartitionsAssigned({0: 5, 1: -1}), events.PartitionStalled(0, 9, "no schema registry")
WRITTEN = events.BatchTransformed(0, 1, 1, 7, 0, 9)
FAILED, COMMITTED = (events.TransactionEnded(outcome, {}, 0.0, "") for outcome in ("failed", "committed"))
SKIPPED = events.OffsetsSkipped(0, 5, 9, False)


@pytest.mark.parametrize(
    ("happened", "overdue_s"),
    [
        ([ASSIGNED], 0),
        ([events.StartDelayed("model", "none")], 0),
        ([ASSIGNED, STALLED], 0),
        ([ASSIGNED, SKIPPED], 0),
        ([ASSIGNED, learned(9)], 400),
        ([ASSIGNED, learned(9), STALLED], 400),
        ([ASSIGNED, learned(9), SKIPPED], 400),
        ([ASSIGNED, learned(9), saved(9)], 0),
        ([ASSIGNED, learned(9), saved(9), STALLED, saved(9, 1)], 0),
        ([ASSIGNED, learned(9), saved(7)], 400),
        ([ASSIGNED, learned(9), learned(9, 1), saved(9)], 400),
        ([ASSIGNED, learned(9), events.PartitionsReleased([0, 1], lost=True)], 0),
        ([ASSIGNED, learned(9), events.PartitionsReleased([1], lost=False)], 400),
        ([ASSIGNED, WRITTEN], 400),
        ([ASSIGNED, WRITTEN, COMMITTED], 0),
        ([ASSIGNED, WRITTEN, FAILED, ASSIGNED], 400),
        ([ASSIGNED, WRITTEN, FAILED, ASSIGNED, STALLED], 0),
        ([ASSIGNED, WRITTEN, FAILED, ASSIGNED, SKIPPED], 0),
        ([ASSIGNED, WRITTEN, FAILED, ASSIGNED, WRITTEN, STALLED], 400),
    ],
)
def test_only_records_behind_the_last_save_are_overdue(
    logs: list[EventDict], happened: list[MemberEvent], overdue_s: float
) -> None:
    """One that waits for a registry, a token, a model or a transaction's end, or that is not ours, has none."""
    watched = Watched("worker", 600.0)
    notify(watched.member, *happened)
    for watched.clock.now in (600.0, 1000.0):
        assert (watched.overdue_s, said(logs)) == (0, [])
        watched.member.notify(TICK)
    assert (watched.overdue_s, len(said(logs))) == (overdue_s, overdue_s > 0)
    watched.member.notify(TICK)
    assert (len(said(logs)), watched.is_healthy) == (overdue_s > 0, True)


def test_a_silent_client_is_noticed_between_models_that_are_written() -> None:
    watched, postponed = Watched("worker", 0.0), events.CheckpointPostponed(str(SILENT), "topic")
    notify(watched.member, ASSIGNED, learned(9))
    watched.clock.now = 301.0
    for happened, is_healthy in (
        ([postponed, TICK], False),
        ([replace(TICK, is_saving=True)], True),
        ([TICK], False),
    ):
        notify(watched.member, *happened)
        assert watched.is_healthy == is_healthy


def test_saves_every_ten_minutes_are_not_overdue(logs: list[EventDict]) -> None:
    filled = make_filled_environment(N)
    watched, now = Watched("worker", 600.0), itertools.count(1.0)
    overdue: list[float] = []

    def tick() -> float:
        overdue.append(watched.overdue_s)
        watched.clock.now = next(now)
        return watched.clock.now

    worker = make_worker(
        filled, make_worker_config(filled.fold_config, checkpoint_interval_s=600.0), [1, None, None] * N
    )
    worker.also_notify(watched.member.notify).worker.run(tick)
    assert len(filled.calls("save")) > 1
    assert (max(overdue) < 10, said(logs)) == (True, [])
