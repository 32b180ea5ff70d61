"""What `streampca transform` has written: one output to show on the terminal."""

from typing import Any

_SHOWN = 110  # characters of a value


class Output:
    """Reads the first output of the topic."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Consumer, TopicPartition  # here, since it is an optional extra

        self._topic = topic
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "demo", "log_level": 0})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])

    def first(self) -> str | None:
        """One output as text, if there is one by now; never waits."""
        message: Any = self._consumer.poll(0)
        return None if message is None or message.error() else describe(message, self._topic)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


def describe(message: Any, topic: str) -> str:
    """A record with its headers."""
    value = message.value().decode()
    headers = "  ".join(f"{name} {text.decode()}" for name, text in message.headers() or ())
    return f"first output in topic {topic}:\n  {headers}\n  {value[:_SHOWN]}{' …' if len(value) > _SHOWN else ''}\n"
