"""Writes rejected records to the dead-letter topic, on confluent-kafka."""

import time
from collections import deque
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from streampca.errors import SourceError
from streampca.settings import ConsumerSettings
from streampca.sources.client_transactions import REQUEST_BYTES
from streampca.sources.confluent import client
from streampca.sources.confluent.connection import Connection
from streampca.sources.dead_letter_headers import Letter, letter_of
from streampca.stream.record import Record

_POLL_S = 0.5
_ROOM_S = 5.0  # how long to wait for room in the client's queue
_CLOSE_S = 1.0


class ConfluentDeadLetters:
    """See `streampca.sources.base.DeadLetters`."""

    def __init__(self, settings: ConsumerSettings) -> None:
        if settings.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        self._source_topic, self._topic = settings.topic, settings.dead_letter_topic
        self._unacknowledged = 0
        self._refused: deque[Letter] = deque()  # to be sent again
        self._failure: KafkaError | None = None
        self._connection = Connection(settings, self._topic)
        self._producer = client.create(Producer, _options(settings))

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        self._send(letter_of(self._source_topic, partition, record, reason, message))

    def _send(self, letter: Letter) -> None:
        options: dict[str, Any] = {"headers": letter.headers, "on_delivery": partial(self._on_delivery, letter)}
        if letter.timestamp is not None:
            options["timestamp"] = max(letter.timestamp, 1)  # librdkafka replaces a zero by the current time
        deadline = time.monotonic() + _ROOM_S
        while True:
            try:
                self._producer.produce(self._topic, letter.value, letter.key, **options)
                break
            except BufferError:
                if time.monotonic() > deadline:
                    raise self._connection.messages.no_broker("the producer's queue is full") from None
                self._poll(_POLL_S)
            except KafkaException as error:
                raise self._source_error(error.args[0]) from None
        self._unacknowledged += 1

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        waits = self._unacknowledged > 0
        self._poll(0)
        while (self._unacknowledged or self._refused) and self._failure is None:
            while self._refused:
                self._send(self._refused[0])
                self._refused.popleft()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                if self._connection.connected:
                    self._connection.topic_id()  # raises if the topic was deleted: then waiting is no use
                raise TimeoutError(f"{self._unacknowledged} dead letters are not acknowledged yet")
            self._poll(min(_POLL_S, left_s))
        if self._failure is not None:
            raise self._source_error(self._failure)
        if waits:
            self._connection.note_answer()

    def close(self) -> None:
        self._producer.purge(blocking=False)
        self._producer.flush(_CLOSE_S)

    def _poll(self, timeout_s: float) -> None:
        self._producer.poll(timeout_s)
        self._connection.watch()

    def _on_delivery(self, letter: Letter, error: KafkaError | None, message: object) -> None:
        self._unacknowledged -= 1
        if error is not None and error.code() == KafkaError.INVALID_TIMESTAMP and letter.timestamp is not None:
            self._refused.append(letter.without_timestamp())
        elif error is not None and self._failure is None:
            self._failure = error

    def _source_error(self, error: KafkaError) -> SourceError:
        if error.code() in client.TOO_LARGE:
            return self._connection.messages.letter_too_large()
        return self._connection.source_error(error)


def _options(settings: ConsumerSettings) -> dict[str, Any]:
    return client.connection_options(settings) | {
        "acks": "all",
        "message.timeout.ms": 0,  # waits for an absent broker without limit
        "message.max.bytes": REQUEST_BYTES,
        # A record a batch: the topic's limit is on batches, and librdkafka does not split one that is too large.
        "batch.num.messages": 1,
        "linger.ms": 0,
        "partitioner": client.PARTITIONER,
    }
