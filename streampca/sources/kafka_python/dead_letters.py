"""Writes rejected records to the dead-letter topic, on kafka-python."""

import time
from collections import deque
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError, RecordListTooLargeError
from kafka.serializer import Serializer

from streampca.errors import SourceError
from streampca.settings import WorkerSettings
from streampca.sources.dead_letter_headers import Headers, dead_letter_headers
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.patches import abort_sending
from streampca.stream.record import Record

_REQUEST_BYTES = 100 * 1024 * 1024  # a broker's own limit: the topic's limit decides
_DELIVERY_TIMEOUT_MS = 2**31 - 1  # waits for an absent broker without limit
_POLL_S = 0.5
_CLOSE_TIMEOUT_S = 1.0


class _Unwrap(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """Unwraps the value: the producer refuses records with neither key nor value, unless a serializer creates them."""

    def serialize(self, topic: str, headers: Headers, data: tuple[bytes | None]) -> bytes | None:
        return data[0]


class KafkaPythonDeadLetters:
    """See `streampca.sources.base.DeadLetters`."""

    def __init__(self, settings: WorkerSettings) -> None:
        if settings.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        self._source_topic, self._topic = settings.topic, settings.dead_letter_topic
        self._unacknowledged: deque[Any] = deque()  # futures, in the order sent
        self._connection = Connection(settings, self._topic)
        self._producer = self._connection.start(
            KafkaProducer,
            value_serializer=_Unwrap(),
            acks="all",
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            max_block_ms=5000,
            max_request_size=_REQUEST_BYTES,
        )
        try:
            self._producer.partitions_for(self._topic)  # fetched here, so that `send` never waits for them
        except KafkaError as error:
            self.close()
            raise self._connection.source_error(error) from None

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        errors = dead_letter_headers(self._source_topic, partition, record.offset, reason, message)
        # kafka-python 3 cannot write a header without a value: it becomes an empty one.
        headers = [(name, value or b"") for name, value in (*record.headers, *errors)]
        timestamp = record.timestamp if record.timestamp >= 0 else None
        try:
            future = self._producer.send(self._topic, (record.value,), record.key, headers, timestamp_ms=timestamp)
        except KafkaError as error:
            raise self._source_error(error) from None
        self._unacknowledged.append(future)

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._unacknowledged:
            try:
                self._unacknowledged[0].get(min(_POLL_S, max(deadline - time.monotonic(), 0)))
                self._unacknowledged.popleft()
            except KafkaError as error:
                if self._unacknowledged[0].is_done and self._unacknowledged[0].failed():
                    raise self._source_error(self._unacknowledged[0].exception) from None
                self._check_deadline(error, deadline)
        self._connection.watch()

    def close(self) -> None:
        try:
            self._producer.close(timeout=_CLOSE_TIMEOUT_S)
        except KafkaTimeoutError:  # records are unsent
            abort_sending(self._producer)
            self._producer.close(timeout=_CLOSE_TIMEOUT_S)

    def _check_deadline(self, error: KafkaError, deadline: float) -> None:
        self._connection.watch()
        if time.monotonic() < deadline:
            return
        if self._connection.connected:
            self._connection.topic_id()  # raises if the topic was deleted: then waiting is no use
        raise TimeoutError(f"{len(self._unacknowledged)} dead letters are not acknowledged yet") from error

    def _source_error(self, error: BaseException) -> SourceError:
        if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
            return self._connection.sentences.letter_too_large()
        return self._connection.source_error(error)
