"""An in-memory Kafka broker: librdkafka's mock cluster, which is part of confluent-kafka.

It retains some 5 MB per partition, has four partitions a topic and creates topics on demand.
"""

from typing import Any

from streampca.errors import StreampcaError

RETAINED_BYTES = 5 * 1024 * 1024 * 4  # per topic


class EmbeddedBroker:
    """A broker that runs until it is closed or the process ends."""

    def __init__(self, *topics: str) -> None:
        self._client = client({"test.mock.num.brokers": 1, "bootstrap.servers": "embedded"})
        broker = next(iter(self._client.list_topics(timeout=10).brokers.values()))
        self.address = f"{broker.host}:{broker.port}"
        self.partitions = {t: len(self._client.list_topics(t, timeout=10).topics[t].partitions) for t in topics}

    def close(self) -> None:
        """Stop the broker and lose its records."""
        self._client = None


def client(configuration: dict[str, Any]) -> Any:
    """A confluent-kafka producer that logs nothing. Raises `StreampcaError` if the package is not installed."""
    try:
        from confluent_kafka import Producer  # here, since it is an optional extra
    except ImportError:
        raise StreampcaError("the demo needs confluent-kafka: pip install 'streampca[demo]'") from None
    return Producer({"log_level": 0, **configuration})
