"""Writes rejected records to the dead-letter topic, on kafka-python."""

import time
from collections import deque
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.serializer import Serializer

from streampca.errors import SourceError
from streampca.fold.record import Record
from streampca.settings.commands import ConsumerSettings
from streampca.sources.client_transactions import REQUEST_BYTES
from streampca.sources.dead_letter_headers import Headers, dead_letter_headers
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.patches.producing import drop

DELIVERY_TIMEOUT_MS = 2**31 - 1  # waits for an absent broker without limit
_POLL_S = 0.5
_CLOSE_TIMEOUT_S = 1.0


class Unwrap(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """Unwraps the value: the producer refuses records with neither key nor value, unless a serializer creates them."""

    def serialize(self, topic: str, headers: Headers, data: tuple[bytes | None]) -> bytes | None:
        return data[0]


def sendable(headers: Headers) -> list[tuple[str, bytes]]:
    """The producer cannot write a header without a value: it becomes an empty one."""
    return [(name, value or b"") for name, value in headers]


class KafkaPythonDeadLetters:
    """See `streampca.sources.base.DeadLetters`."""

    def __init__(self, settings: ConsumerSettings) -> None:
        if settings.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        self._source_topic, self._topic = settings.topic, settings.dead_letter_topic
        self._unacknowledged: deque[Any] = deque()  # futures, in the order sent
        self._connection = Connection(settings, self._topic)
        self._producer = self._connection.start(
            KafkaProducer,
            value_serializer=Unwrap(),
            acks="all",
            # One request at a time keeps the order; a repeated letter is recognised by the offset in its headers.
            enable_idempotence=False,
            max_in_flight_requests_per_connection=1,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=5000,
            max_request_size=REQUEST_BYTES,
        )
        try:
            with self._connection.answers():
                self._producer.partitions_for(self._topic)  # fetched here, so that `send` never waits for them
        except SourceError:
            self.close()
            raise

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        headers = sendable(dead_letter_headers(self._source_topic, partition, record, reason, message))
        with self._connection.answers():
            self._unacknowledged.append(self._producer.send(self._topic, (record.value,), record.key, headers))

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._unacknowledged:
            sent = self._unacknowledged[0]
            try:
                sent.get(min(_POLL_S, max(deadline - time.monotonic(), 0)))
                self._unacknowledged.popleft()
            except KafkaError as error:
                if sent.is_done and sent.failed():
                    raise self._connection.source_error(error) from None
                self._check_deadline(error, deadline)
        self._connection.watch()

    def close(self) -> None:
        drop(self._producer, _CLOSE_TIMEOUT_S / 2)

    def _check_deadline(self, error: KafkaError, deadline: float) -> None:
        self._connection.watch()
        if time.monotonic() < deadline:
            return
        if self._connection.connected:
            self._connection.topic_id()  # raises if the topic was deleted: then waiting is no use
        raise TimeoutError(f"{len(self._unacknowledged)} dead letters are not acknowledged yet") from error
