"""Both clients; and patience for tests whose limits would otherwise depend on how busy the machine is."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from streampca.sources import prefetch
from streampca.sources.confluent import connection as confluent_connection
from streampca.sources.confluent import source as confluent
from streampca.sources.kafka_python import connection
from streampca.sources.kafka_python import source as kafka_python
from tests.kafka_broker import Broker
from tests.sources.backends import OnConfluent, OnKafka
from tests.waiting import PATIENCE_S


@pytest.fixture(params=[OnKafka, OnConfluent])
def kind(request: pytest.FixtureRequest) -> type[OnKafka]:
    """Both clients."""
    kind: type[OnKafka] = request.param
    return kind


@pytest.fixture
def log(broker: Broker, topic: str, kind: type[OnKafka]) -> Iterator[OnKafka]:
    """A topic of one partition on the shared broker, read by either client."""
    with closing(kind(broker, topic, 1)) as log:
        yield log


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls have a minute instead of seconds, and so has a member that sends no heartbeat; their interval stays."""

    def lengthen(module: Any, function: str, option: str) -> None:
        shipped: Callable[[Any], dict[str, Any]] = getattr(module, function)
        monkeypatch.setattr(module, function, lambda settings: shipped(settings) | {option: int(PATIENCE_S * 1000)})

    lengthen(kafka_python, "_consumer_options", "session_timeout_ms")
    lengthen(confluent_connection, "consumer_options", "session.timeout.ms")
    for name in ("_COMMIT_TIMEOUT_MS", "_CLOSE_TIMEOUT_MS", "_OFFSETS_TIMEOUT_MS"):
        monkeypatch.setattr(kafka_python, name, int(PATIENCE_S * 1000))
    for name in ("_OFFSETS_S", "_CLOSE_S"):
        monkeypatch.setattr(confluent, name, float(PATIENCE_S))
    monkeypatch.setattr(prefetch, "_CLOSE_S", float(PATIENCE_S))


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients see new partitions after half a second instead of ten."""
    python, confluent = connection.options, confluent_connection.connection_options
    monkeypatch.setattr(connection, "options", lambda s: python(s) | {"metadata_max_age_ms": 500})
    interval = {"topic.metadata.refresh.interval.ms": 500}
    monkeypatch.setattr(confluent_connection, "connection_options", lambda s: confluent(s) | interval)
