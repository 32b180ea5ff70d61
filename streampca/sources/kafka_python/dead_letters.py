"""Records that cannot be learned, put into a topic with headers as Kafka Connect writes them."""

import time
from collections import deque
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError, RecordListTooLargeError
from kafka.serializer import Serializer

from streampca.errors import SourceError
from streampca.settings import WorkerSettings
from streampca.sources.dead_letter_headers import Headers, errors_as_headers
from streampca.sources.kafka_python.connection import Connection
from streampca.stream.record import Record

_REQUEST_BYTES = 100 * 1024 * 1024  # a broker's own limit; the topic's limit is to decide
_PATIENCE_MS = 2**31 - 1  # a broker that is away is waited for
_LOOK_S = 0.5
_CLOSE_TIMEOUT_S = 1.0


class _Unboxed(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """The producer refuses records with neither key nor value, which Kafka knows, unless a serializer makes them so."""

    def serialize(self, topic: str, headers: Headers, data: tuple[bytes | None]) -> bytes | None:
        return data[0]


class KafkaPythonDeadLetters:
    """See `streampca.sources.base.DeadLetters`."""

    def __init__(self, settings: WorkerSettings) -> None:
        if settings.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        self._source_topic, self._topic = settings.topic, settings.dead_letter_topic
        self._unanswered: deque[Any] = deque()  # futures, in the order sent
        self._connection = Connection(settings, self._topic)
        self._producer = self._connection.start(
            KafkaProducer,
            value_serializer=_Unboxed(),
            acks="all",
            delivery_timeout_ms=_PATIENCE_MS,
            max_block_ms=5000,
            max_request_size=_REQUEST_BYTES,
        )
        try:
            self._producer.partitions_for(self._topic)  # so that sending never waits for it
        except KafkaError as error:
            self.close()
            raise self._connection.refused(error) from None

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        errors = errors_as_headers(self._source_topic, partition, record.offset, reason, message)
        # A header without a value becomes an empty one: kafka-python 3 cannot write the former.
        headers = [(name, value or b"") for name, value in (*record.headers, *errors)]
        stamp = record.timestamp if record.timestamp >= 0 else None
        try:
            future = self._producer.send(self._topic, (record.value,), record.key, headers, timestamp_ms=stamp)
        except KafkaError as error:
            raise self._refused(error) from None
        self._unanswered.append(future)

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._unanswered:
            try:
                self._unanswered[0].get(min(_LOOK_S, max(deadline - time.monotonic(), 0)))
                self._unanswered.popleft()
            except KafkaError as error:
                if self._unanswered[0].is_done and self._unanswered[0].failed():
                    raise self._refused(self._unanswered[0].exception) from None
                self._wait_on(error, deadline)
        self._connection.watch()

    def close(self) -> None:
        try:
            self._producer.close(timeout=_CLOSE_TIMEOUT_S)
        except KafkaTimeoutError:  # the client does not close while records wait, and would wait for ever
            self._producer._sender.force_close()
            self._producer.close(timeout=_CLOSE_TIMEOUT_S)

    def _wait_on(self, error: KafkaError, deadline: float) -> None:
        self._connection.watch()
        if time.monotonic() < deadline:
            return
        if self._connection.connected:
            self._connection.topic_id()  # without the topic there is no use in waiting
        raise TimeoutError(f"{len(self._unanswered)} dead letters are not acknowledged yet") from error

    def _refused(self, error: BaseException) -> SourceError:
        if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
            return SourceError(
                f"a record is too large for the dead-letter topic {self._topic}, which must take a little more than "
                f"the topic itself; raise max.message.bytes of {self._topic}"
            )
        return self._connection.refused(error)
