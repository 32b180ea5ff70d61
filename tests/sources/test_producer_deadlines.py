"""A producer of kafka-python is waited for until a deadline, whatever it has not sent yet."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from streampca.errors import SourceError
from streampca.settings import TransformSettings
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.patches import producing

NEEDED_S, BATCHES = 4.0, 5


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
