"""Writes rejected records to the dead-letter topic, on kafka-python."""

import time
from collections import deque
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from kafka.serializer import Serializer

from streampca.errors import SourceError
from streampca.settings import ConsumerSettings
from streampca.sources.client_transactions import REQUEST_BYTES
from streampca.sources.dead_letter_headers import Headers, Letter, letter_of
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.patches.producing import drop
from streampca.stream.record import Record

DELIVERY_TIMEOUT_MS = 2**31 - 1  # waits for an absent broker without limit
_POLL_S = 0.5
_CLOSE_TIMEOUT_S = 1.0


class Unwrap(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """Unwraps the value: the producer refuses records with neither key nor value, unless a serializer creates them."""

    def serialize(self, topic: str, headers: Headers, data: tuple[bytes | None]) -> bytes | None:
        return data[0]


def sendable(
    headers: Headers, partition: int | None, timestamp: int | None
) -> tuple[list[tuple[str, bytes]], int | None, int | None]:
    """Arguments of `KafkaProducer.send`. It cannot write a header without a value: it becomes an empty one."""
    at = None if timestamp is None or timestamp < 0 else timestamp
    return [(name, value or b"") for name, value in headers], partition, at


class _Sent(NamedTuple):
    letter: Letter
    future: Any
    alone: bool  # in its batch


class KafkaPythonDeadLetters:
    """See `streampca.sources.base.DeadLetters`."""

    def __init__(self, settings: ConsumerSettings) -> None:
        if settings.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        self._source_topic, self._topic = settings.topic, settings.dead_letter_topic
        self._unacknowledged: deque[_Sent] = deque()  # in the order sent
        self._refused: deque[Letter] = deque()  # to be sent again
        self._connection = Connection(settings, self._topic)
        self._producer = self._connection.start(
            KafkaProducer,
            value_serializer=Unwrap(),
            acks="all",
            # An idempotent producer sends nothing more after a refused record. Without, one request at a time keeps the
            # order, and a repeated letter is recognised by the offset in its headers.
            enable_idempotence=False,
            max_in_flight_requests_per_connection=1,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=5000,
            max_request_size=REQUEST_BYTES,
        )
        try:
            self._producer.partitions_for(self._topic)  # fetched here, so that `send` never waits for them
        except KafkaError as error:
            self.close()
            raise self._connection.source_error(error) from None

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        self._send(letter_of(self._source_topic, partition, record, reason, message), alone=False)

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._unacknowledged or self._refused:
            if not self._unacknowledged:
                self._send(self._refused[0], alone=True)
                self._refused.popleft()
            sent = self._unacknowledged[0]
            try:
                sent.future.get(min(_POLL_S, max(deadline - time.monotonic(), 0)))
                self._unacknowledged.popleft()
            except KafkaError as error:
                if sent.future.is_done and sent.future.failed():
                    self._refused.append(self._to_send_again(sent))
                    self._unacknowledged.popleft()
                else:
                    self._check_deadline(error, deadline)
        self._connection.watch()

    def close(self) -> None:
        try:
            self._producer.close(timeout=_CLOSE_TIMEOUT_S)
        except KafkaTimeoutError:  # records are unsent
            drop(self._producer, _CLOSE_TIMEOUT_S / 2)

    def _send(self, letter: Letter, *, alone: bool) -> None:
        try:
            given = sendable(letter.headers, None, letter.timestamp)
            future = self._producer.send(self._topic, (letter.value,), letter.key, *given)
        except KafkaError as error:
            raise self._source_error(error) from None
        self._unacknowledged.append(_Sent(letter, future, alone))

    def _to_send_again(self, sent: "_Sent") -> Letter:
        """A form of a refused letter that the broker may accept. Raises `SourceError` if there is none.

        One refused record makes a broker refuse the whole batch; if several are refused, the client does not say why.
        So the letters of such a batch are sent again one by one.
        """
        error = sent.future.exception
        if isinstance(error, InvalidTimestampError) and sent.letter.timestamp is not None:
            return sent.letter.without_timestamp()
        if (isinstance(error, InvalidRecordError) or type(error) is KafkaError) and not sent.alone:
            return sent.letter
        raise self._source_error(error) from None

    def _check_deadline(self, error: KafkaError, deadline: float) -> None:
        self._connection.watch()
        if time.monotonic() < deadline:
            return
        if self._connection.connected:
            self._connection.topic_id()  # raises if the topic was deleted: then waiting is no use
        raise TimeoutError(
            f"{len(self._unacknowledged) + len(self._refused)} dead letters are not acknowledged yet"
        ) from error

    def _source_error(self, error: BaseException) -> SourceError:
        if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
            return self._connection.messages.record_too_large()
        return self._connection.source_error(error)
