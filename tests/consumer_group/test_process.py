"""The start of a member: a refusal ends it, an absence is waited for, and both are said."""

import threading
from itertools import pairwise

import pytest
from structlog.typing import EventDict

from streampca.consumer_group import process as process_module
from streampca.consumer_group.health import why_unhealthy
from streampca.consumer_group.process import Process
from streampca.consumer_group.step import NotYetError, Step
from streampca.errors import (
    CertificateError,
    NoBrokerError,
    SettingsError,
    SourceError,
    StoreBusyError,
    StoreError,
)  # fmt: skip
from streampca.process import watchdog
from streampca.process.start import PreparedProcess, ThreadFailures
from streampca.worker.log import WorkerLog
from tests.errors import refusal
from tests.members import make_member
from tests.waiting import Clock

ABSENCES = StoreBusyError, NoBrokerError, TimeoutError, NotYetError


def test_a_start_that_waits_does_not_count_as_a_loop_that_hangs() -> None:
    """After a step in which something has ticked."""
    watched: list[bool] = []

    def ask_registry() -> str:
        watchdog.tick()
        return "answers"

    def wait_for_brokers() -> str:
        watched.append(threading.current_thread() in watchdog._watch.due_s)  # type: ignore[union-attr]
        return "there"

    process = Process(make_member(), PreparedProcess(None, ThreadFailures()), spans=None)
    with watchdog.watch_threads():
        process.do_steps([Step("output schema", ask_registry), Step("broker", wait_for_brokers)])
    assert watched == [False]


@pytest.mark.parametrize("kind", [*ABSENCES, CertificateError, SettingsError, SourceError, StoreError])
def test_a_start_waits_for_what_is_absent_and_ends_at_a_mistake(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    monkeypatch.setattr(process_module, "_RETRY_S", 0.0)
    clock = Clock(0.0)
    member = make_member(WorkerLog(), clock=clock)
    process = Process(member, PreparedProcess(None, ThreadFailures()), spans=None)

    def attempt() -> str:
        clock.now += 1
        if clock.now <= 1000:
            raise kind(f"cause {clock.now:.0f}")
        return "there"

    steps = [Step("broker", attempt, waits_for="brokers")]
    if kind not in ABSENCES:
        assert refusal(kind, process.do_steps, steps) == "cause 1"
        assert logs == []
        return
    process.do_steps(steps)
    assert logs.pop() == {"event": "start step done", "step": "broker", "finding": "there", "log_level": "debug"}
    assert {line["event"] for line in logs} == {"waiting for brokers"}
    assert [line["cause"] for line in logs[:3]] == ["cause 1", "cause 3", "cause 7"]
    pauses = [after["waited_s"] - before["waited_s"] for before, after in pairwise(logs)]
    assert (pauses == sorted(pauses), max(pauses), len(pauses) < 25) == (True, 60, True)
    assert why_unhealthy(member.state, clock()) is None
