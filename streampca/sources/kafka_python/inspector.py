"""Answers questions about a topic and the worker's group, on kafka-python."""

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ACLOperation
from kafka.errors import KafkaError

from streampca.fold.record import Record
from streampca.settings.consumer import ConsumerSettings
from streampca.sources.base import Committed
from streampca.sources.kafka_python.connection import Connection, admin_client
from streampca.sources.kafka_python.patches.membership import committed_offsets

_ANSWER_MS = 5000


class KafkaPythonInspector:
    """Answers questions about a topic and the consumer group, without joining the group.

    All methods raise `SourceError` when brokers refuse or do not answer within some seconds.
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._connection = Connection(settings, settings.topic)
        self._consumer = self._connection.start(
            KafkaConsumer,
            group_id=settings.group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
        )

    def topic_id(self) -> str:
        """As `Source.topic_id`."""
        return self._connection.topic_id()

    def check_topic(self, name: str) -> int:
        """The number of partitions of another topic; raises unless it exists and may be written to."""
        connection = Connection(self._settings, name)
        with closing(connection.start(admin_client)) as admin:
            (found,) = admin.describe_topics([name])
        allowed = found.get("authorized_operations")  # none from brokers before 2.3
        if allowed and ACLOperation.WRITE.name not in allowed:
            raise connection.messages.not_authorized(f"writing to topic {name}")
        return len(found["partitions"])

    def offsets(self) -> dict[int, tuple[int, int]]:
        """The earliest offset and the end of each partition."""
        partitions = [self._partition(p) for p in sorted(self._connection.partitions())]
        first, end = self._ask("beginning_offsets", partitions), self._ask("end_offsets", partitions)
        return {tp.partition: (first[tp], end[tp]) for tp in partitions}

    def committed(self) -> dict[int, Committed]:
        """The group's committed offsets, of the partitions that have one."""
        partitions = [self._partition(p) for p in self._connection.partitions()]
        try:
            return committed_offsets(self._consumer, partitions, _ANSWER_MS)
        except KafkaError as error:
            raise self._connection.source_error(error) from None

    def newest_record(self, ends: Mapping[int, int]) -> tuple[int, Record] | None:
        """The newest of the last records of these partitions, with its partition; None if none came in time."""
        self._consumer.assign([self._partition(p) for p in ends])
        for partition, end in ends.items():
            self._consumer.seek(self._partition(partition), end - 1)
        deadline = time.monotonic() + _ANSWER_MS / 1000
        while time.monotonic() < deadline:
            found = [record for records in self._consumer.poll(200).values() for record in records]
            if found:
                newest = max(found, key=lambda record: int(record.timestamp))
                return newest.partition, newest
        return None

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close(autocommit=False, timeout_ms=1000)

    def _partition(self, number: int) -> TopicPartition:
        return TopicPartition(self._settings.topic, number)

    def _ask(self, method: str, about: Any) -> Any:
        try:
            return getattr(self._consumer, method)(about, timeout_ms=_ANSWER_MS)
        except KafkaError as error:
            raise self._connection.source_error(error) from None
