"""Verifies that the log still holds the last records that were read, before the next ones are.

librdkafka verifies a position that comes with a leader epoch, but only when it learns who leads the partition. So a
separate client does it: the group's client already knows the leaders and would skip the check.
"""

from collections.abc import Callable, Collection, Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition

from streampca.settings import ConsumerSettings
from streampca.sources.confluent import client
from streampca.sources.confluent.batch import Message
from streampca.stream.record import LastRecord


class Verification:
    """The records that are being verified."""

    def __init__(self, settings: ConsumerSettings, on_error: Callable[[KafkaError], None]) -> None:
        self._topic, self._on_error = settings.topic, on_error
        small = {"max.partition.fetch.bytes": 1, "queued.min.messages": 1, "fetch.wait.max.ms": 10}
        self._options = client.consumer_options(settings) | small | {"error_cb": on_error}
        self._waiting: dict[int, LastRecord] = {}
        self._consumer: Consumer | None = None

    def start(self, last: Mapping[int, LastRecord]) -> None:
        """Verify these, too."""
        if last:
            self._restart(self._waiting | dict(last))

    def cancel(self, partitions: Collection[int]) -> None:
        """Forget what is being verified of these partitions."""
        for partition in partitions:
            self._waiting.pop(partition, None)
        if not self._waiting:
            self.close()

    def poll(self) -> tuple[list[int], dict[int, int]]:
        """The partitions that were found to be the same; and, for those that were not, the offset after the record."""
        same: list[int] = []
        gone: dict[int, int] = {}
        messages: list[Message] = self._consumer.consume(100, 0) if self._consumer else []
        for message in messages:
            code = message.error() and message.error().code()
            if code not in (None, KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                self._on_error(message.error())
            elif last := self._waiting.pop(message.partition(), None):
                if code == KafkaError._AUTO_OFFSET_RESET:
                    gone[message.partition()] = last.offset + 1
                else:
                    same.append(message.partition())
        if self._consumer and (done := [*same, *gone]):
            # Of several partitions with new records, so small a fetch returns one, and may never reach the others.
            self._consumer.pause([TopicPartition(self._topic, partition) for partition in done])
        self.cancel(())
        return same, gone

    def close(self) -> None:
        """Close the client."""
        self._waiting = {}
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _restart(self, waiting: dict[int, LastRecord]) -> None:
        self.close()
        self._waiting = waiting
        self._consumer = client.create(Consumer, self._options)
        self._consumer.assign([
            TopicPartition(self._topic, partition, last.offset + 1, "", last.leader_epoch)
            for partition, last in waiting.items()
        ])  # fmt: skip
