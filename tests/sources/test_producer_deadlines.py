"""A producer of kafka-python is waited for until a deadline, whatever it has not sent yet."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaTimeoutError

from streampca.errors import SourceError
from streampca.settings import TransformSettings
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.patches import producing

NEEDED_S, BATCHES = 4.0, 5


class SlowBatch:
    """A batch of which the acknowledgement takes some seconds more, by a clock of its own."""

    topic_partition = TopicPartition("topic", 0)
    is_done = True

    def __init__(self, clock: list[float]) -> None:
        self._clock, self.produce_future = clock, self

    def wait(self, timeout: float | None = None) -> bool:
        taken_s = NEEDED_S if timeout is None else min(NEEDED_S, timeout)
        self._clock[0] += taken_s
        return taken_s == NEEDED_S

    def failed(self) -> bool:
        return False


@pytest.mark.parametrize(("timeout_s", "is_enough"), [(10.0, False), (BATCHES * NEEDED_S, True), (None, True)])
def test_all_unsent_batches_are_waited_for_together(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float | None, is_enough: bool
) -> None:
    clock = [0.0]
    monkeypatch.setattr(producing, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    accumulator = producing.producer_module.RecordAccumulator()
    for _ in range(BATCHES):
        accumulator._incomplete.add(SlowBatch(clock))
    accumulator.begin_flush()
    with contextlib.nullcontext() if is_enough else pytest.raises(KafkaTimeoutError):
        accumulator.await_flush_completion(timeout_s)
    assert clock == [BATCHES * NEEDED_S if is_enough else timeout_s]


class Busy(KafkaProducer):  # type: ignore[misc]  # kafka-python has no types
    """A producer whose thread is busy: it does not close in time."""

    def __init__(self, calls: list[Any]) -> None:
        self._calls, self._sender = calls, SimpleNamespace(force_close=lambda: calls.append("force"))

    def close(self, timeout: float | None = None, **_: object) -> None:
        self._calls.append(timeout)
        raise KafkaTimeoutError

    def __del__(self) -> None:
        """Nothing to close."""


def test_a_producer_that_does_not_close_in_time_is_left_to_its_thread() -> None:
    calls: list[Any] = []
    producing.drop(Busy(calls), 0.2)
    assert calls == ["force", 0.2]


@pytest.mark.parametrize("failure", [TimeoutError, SourceError])
def test_a_producer_of_a_broker_that_does_not_answer_is_closed_with_a_deadline(
    monkeypatch: pytest.MonkeyPatch, failure: Callable[[str], Exception]
) -> None:
    calls: list[Any] = []

    def fail(self: Connection, timeout_s: float) -> str:
        raise failure("no answer")

    monkeypatch.setattr(Connection, "connect", lambda self, kind, **more: kind(calls))
    monkeypatch.setattr(Connection, "topic_id", fail)
    monkeypatch.setattr(Connection, "_manager", SimpleNamespace(last_failure=""), raising=False)
    settings = TransformSettings.read(topic="readings", output_topic="projected")
    with pytest.raises(SourceError):
        Connection(settings, "projected").start(Busy)
    assert calls[0] == "force"
    assert 0 < calls[1] <= 1
