"""An in-memory Kafka broker: librdkafka's mock cluster, which is part of confluent-kafka.

It retains some 5 MB per partition, has four partitions a topic and creates topics on demand.
"""

import ctypes
from collections.abc import Generator
from contextlib import closing, suppress
from typing import Any

from streampca.errors import naming_the_extra

_SHOWN = 110  # characters of a value


class EmbeddedBroker:
    """A broker that runs until it is closed or the process ends. Raises `SettingsError` without confluent-kafka."""

    def __init__(self, *topics: str) -> None:
        with naming_the_extra("the demo", "fast"):
            from confluent_kafka import Producer
        client = Producer({"log_level": 0, "test.mock.num.brokers": 1, "bootstrap.servers": "embedded"})
        _assign_at_once(client)
        broker = next(iter(client.list_topics(timeout=10).brokers.values()))
        self.address = f"{broker.host}:{broker.port}"
        self.partitions = {t: list(client.list_topics(t, timeout=10).topics[t].partitions) for t in topics}
        self._client: Producer | None = client

    def close(self) -> None:
        self._client = None


def _assign_at_once(client: Any) -> None:
    """Let the first member of a group wait for no others: 3 s by default, for which the client has no option."""
    from confluent_kafka import cimpl

    with suppress(AttributeError):  # an older librdkafka
        library = ctypes.CDLL(cimpl.__file__)  # finds the functions of librdkafka, too
        handle = ctypes.c_void_p.from_address(id(client) + object.__basicsize__)  # its first field
        library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        cluster = ctypes.c_void_p(library.rd_kafka_handle_mock_cluster(handle))
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, ctypes.c_int32(0))


def first_record(broker: EmbeddedBroker, topic: str) -> Generator[str, None, None]:
    """Yield "" until the topic has a record, and then its headers and value; never waits."""
    from confluent_kafka import Consumer, TopicPartition

    consumer: Any = Consumer({"bootstrap.servers": broker.address, "group.id": "demo", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in broker.partitions[topic]])
    with closing(consumer):
        while (message := consumer.poll(0)) is None or message.error():
            yield ""
        value = message.value().decode()
        headers = "  ".join(f"{name} {text.decode()}" for name, text in message.headers() or ())
        yield f"  {headers}\n  {value[:_SHOWN]}{' …' if len(value) > _SHOWN else ''}\n"
