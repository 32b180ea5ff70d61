"""Answers questions about a topic and the worker's group, on confluent-kafka."""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from streampca.errors import SourceError
from streampca.settings import ConsumerSettings
from streampca.sources.base import Committed
from streampca.sources.confluent import client
from streampca.sources.confluent.batch import ConfluentRecord, Message
from streampca.sources.confluent.connection import Connection
from streampca.stream.record import Record

_ANSWER_S = 5.0

A = TypeVar("A")


class ConfluentInspector:
    """See `streampca.sources.base.TopicInspector`."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._connection = Connection(settings, settings.topic)
        self._consumer = client.create(Consumer, client.consumer_options(settings))

    def topic_id(self) -> str:
        return self._connection.topic_id()

    def check_topic(self, name: str) -> int:
        connection = Connection(self._settings, name)
        if not connection.may_write():
            raise connection.messages.not_writable()
        return len(connection.partitions())

    def offsets(self) -> dict[int, tuple[int, int]]:
        return {partition: self._offsets_of(partition) for partition in sorted(self._connection.partitions())}

    def committed(self) -> dict[int, Committed]:
        partitions = [self._partition(p) for p in self._connection.partitions()]
        found = self._ask(lambda: self._consumer.committed(partitions, timeout=_ANSWER_S))
        return client.committed(found)

    def newest_record(self, ends: Mapping[int, int]) -> tuple[int, Record] | None:
        self._consumer.assign([self._partition(partition, end - 1) for partition, end in ends.items()])
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            messages = self._ask(lambda: self._consumer.consume(len(ends), 0.2))
            good = [message for message in messages if not message.error()]
            if good:
                newest: Message = max(good, key=lambda message: ConfluentRecord(message).timestamp)
                return newest.partition(), ConfluentRecord(newest)
        return None

    def close(self) -> None:
        self._consumer.close()

    def _offsets_of(self, partition: int) -> tuple[int, int]:
        found = self._ask(lambda: self._consumer.get_watermark_offsets(self._partition(partition), timeout=_ANSWER_S))
        if found is None:
            raise SourceError(f"no broker answers for partition {partition} of {self._settings.topic} in time")
        first, end = found
        return first, end

    def _partition(self, number: int, offset: int = 0) -> TopicPartition:
        return TopicPartition(self._settings.topic, number, offset)

    def _ask(self, question: Callable[[], A]) -> A:
        try:
            return question()
        except KafkaException as error:
            raise self._connection.source_error(error.args[0]) from None
