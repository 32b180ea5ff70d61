"""Fixtures for tests with either client, with timeouts that are long enough on a busy machine."""

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
def kind(request: pytest.FixtureRequest, long_timeouts: None) -> type[OnKafka]:
    """Run the test with each client."""
    return request.param


@pytest.fixture
def log(broker: Broker, topic: str, kind: type[OnKafka]) -> Iterator[OnKafka]:
    """A topic of one partition on the shared broker, read by either client."""
    with closing(kind(broker, topic, 1)) as log:
        yield log


@pytest.fixture
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give calls a minute instead of seconds, and a start ten minutes, so that an error before is not a timeout.

    Sessions are long, too, but heartbeats stay frequent, so that a member notices a rebalance soon.
    """

    def limit_heartbeat_interval(module: Any, function_name: str, option: str) -> None:
        options_of: Callable[[Any], dict[str, Any]] = getattr(module, function_name)

        def limited_options(settings: Any) -> dict[str, Any]:
            options = options_of(settings)
            return options | {option: min(options[option], 600)}

        monkeypatch.setattr(module, function_name, limited_options)

    limit_heartbeat_interval(kafka_python, "_consumer_options", "heartbeat_interval_ms")
    limit_heartbeat_interval(confluent, "consumer_options", "heartbeat.interval.ms")
    for name in ("_COMMIT_TIMEOUT_MS", "_CLOSE_TIMEOUT_MS", "_OFFSETS_TIMEOUT_MS"):
        monkeypatch.setattr(kafka_python, name, int(PATIENCE_S * 1000))
    for name in ("_OFFSETS_TIMEOUT_S", "_CLOSE_TIMEOUT_S"):
        monkeypatch.setattr(confluent, name, float(PATIENCE_S))
    starts = [(connection, "_FIRST_CONNECTION_S"), (connection, "_FIRST_ANSWER_S"), (confluent_connection, "_START_S")]
    for module, name in starts:
        monkeypatch.setattr(module, name, 10.0 * PATIENCE_S)


@pytest.fixture
def quick_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients see new partitions after half a second instead of ten seconds."""
    python = connection.connection_options
    confluent = confluent_connection.connection_options
    monkeypatch.setattr(connection, "connection_options", lambda s: python(s) | {"metadata_max_age_ms": 500})
    interval = {"topic.metadata.refresh.interval.ms": 500}
    monkeypatch.setattr(confluent_connection, "connection_options", lambda s: confluent(s) | interval)
