"""Both clients; and patience for tests whose limits would otherwise depend on how busy the machine is."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from streampca.sources.confluent import connection as confluent_connection, source as confluent
from streampca.sources.kafka_python import connection, source as kafka_python
from tests.kafka_broker import Broker
from tests.sources.backends import OnConfluent, OnKafka
from tests.waiting import PATIENCE_S


@pytest.fixture(params=[OnKafka, OnConfluent])
def kind(request: pytest.FixtureRequest, patient: None) -> type[OnKafka]:
    """Both clients."""
    return request.param


@pytest.fixture
def log(broker: Broker, topic: str, kind: type[OnKafka]) -> Iterator[OnKafka]:
    """A topic of one partition on the shared broker, read by either client."""
    with closing(kind(broker, topic, 1)) as log:
        yield log


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls have a minute instead of seconds; a member notices a rebalance soon, although its session is long.

    A start has ten minutes: an error within one is then not the end of its patience.
    """

    def shorten(module: Any, function: str, option: str) -> None:
        shipped: Callable[[Any], dict[str, Any]] = getattr(module, function)
        monkeypatch.setattr(module, function, lambda s: shipped(s) | {option: min(shipped(s)[option], 600)})

    shorten(kafka_python, "_consumer_options", "heartbeat_interval_ms")
    shorten(confluent, "consumer_options", "heartbeat.interval.ms")
    for name in ("_COMMIT_TIMEOUT_MS", "_CLOSE_TIMEOUT_MS", "_OFFSETS_TIMEOUT_MS"):
        monkeypatch.setattr(kafka_python, name, int(PATIENCE_S * 1000))
    for name in ("_OFFSETS_TIMEOUT_S", "_CLOSE_TIMEOUT_S"):
        monkeypatch.setattr(confluent, name, float(PATIENCE_S))
    starts = [(connection, "_FIRST_CONNECTION_S"), (connection, "_FIRST_ANSWER_S"), (confluent_connection, "_START_S")]
    for module, name in starts:
        monkeypatch.setattr(module, name, 10.0 * PATIENCE_S)


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients see new partitions after half a second instead of ten."""
    python = connection.connection_options
    confluent = confluent_connection.connection_options
    monkeypatch.setattr(connection, "connection_options", lambda s: python(s) | {"metadata_max_age_ms": 500})
    interval = {"topic.metadata.refresh.interval.ms": 500}
    monkeypatch.setattr(confluent_connection, "connection_options", lambda s: confluent(s) | interval)
