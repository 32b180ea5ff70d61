"""A Kafka broker in memory: librdkafka's mock cluster, which comes inside confluent-kafka.

It keeps some 5 MB of each partition and forgets the rest, has four partitions a topic and makes topics as they are
asked for. kafka-python cannot negotiate a protocol version with it, but speaks to it as `API_VERSION`, in which a
topic has no id yet.
"""

from typing import Any

from streampca.errors import StreampcaError

API_VERSION = "2.1"
KEPT_BYTES = 5 * 1024 * 1024 * 4  # of a topic, all partitions together


class EmbeddedBroker:
    """Runs until it is closed (or the process ends)."""

    def __init__(self, *topics: str) -> None:
        self._client = client({"test.mock.num.brokers": 1, "bootstrap.servers": "embedded"})
        broker = next(iter(self._client.list_topics(timeout=10).brokers.values()))
        self.address = f"{broker.host}:{broker.port}"
        self.partitions = {t: len(self._client.list_topics(t, timeout=10).topics[t].partitions) for t in topics}

    def close(self) -> None:
        """Stop the broker; what it held is gone."""
        self._client = None


def client(configuration: dict[str, Any]) -> Any:
    """A producer of confluent-kafka that keeps its log to itself. Raises `StreampcaError` when it is not installed."""
    try:
        from confluent_kafka import Producer  # here, since it is an optional extra
    except ImportError:
        raise StreampcaError("the demo needs confluent-kafka: pip install 'streampca[demo]'") from None
    return Producer({"log_level": 0, **configuration})
