"""Dead letters on confluent-kafka."""

import time
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from streampca.settings.commands import ConsumerSettings
from streampca.sources.base import Headers
from streampca.sources.client_dead_letters import ClientDeadLetters
from streampca.sources.client_transactions import REQUEST_BYTES
from streampca.sources.confluent.connection import SILENT_S, Connection
from streampca.sources.confluent.options import connection_options, create

_QUEUE_KIB = 32 * 1024
_ROOM_S, _POLL_S = 5.0, 0.1  # how long a letter waits for room in the queue
_BATCH_BYTES = 100_000

log = structlog.get_logger()


class ConfluentDeadLetters(ClientDeadLetters):
    """See `streampca.sources.base.DeadLetters`.

    A producer that is silent while a broker answers may have lost all brokers, see docs/kafka.md: the next one sends
    again what is not acknowledged.
    """

    _connection: Connection

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings)
        self._letters: dict[int, tuple[Any, ...]] = {}  # not acknowledged yet, by number
        self._sent = 0
        self._connection = Connection(settings, self._topic)
        limit = str(_BATCH_BYTES)
        with suppress(KafkaException):  # without the right
            limit = self._connection.topic_configs().get("max.message.bytes", limit)
        self._options = connection_options(settings) | {
            "message.timeout.ms": 0,  # waits for an absent broker without limit
            "message.max.bytes": REQUEST_BYTES,
            "batch.size": min(max(int(limit), 1), _BATCH_BYTES),
            "queue.buffering.max.kbytes": _QUEUE_KIB,
            # One request at a time keeps the order; a repeated letter is recognised by the offset in its headers.
            "max.in.flight.requests.per.connection": 1,
            "partitioner": "murmur2_random",  # as other clients: equal keys go to the same partition
            "error_cb": self._on_error,
        }
        self._open()

    def _open(self) -> None:
        self._producer, self._answered_at = create(Producer, self._options), time.monotonic()
        for number, letter in list(self._letters.items()):
            self._give(number, *letter)

    def _produce(self, *letter: Any) -> None:
        if not self._letters:
            self._answered_at = time.monotonic()
        self._sent += 1
        self._letters[self._sent] = letter
        self._give(self._sent, *letter)

    def _give(self, number: int, value: bytes | None, key: bytes | None, headers: Headers) -> None:
        """Add a letter to the producer's queue, once there is room."""
        report, deadline = partial(self._on_delivery, number), time.monotonic() + _ROOM_S
        try:
            while True:
                with suppress(BufferError):
                    self._producer.produce(self._topic, value, key, headers=headers, on_delivery=report)
                    break
                if time.monotonic() >= deadline:
                    raise self._connection.messages.no_broker(self._connection.last_failure)
                self._producer.poll(_POLL_S)
        except KafkaException as error:
            raise self._connection.source_error(error.args[0]) from None

    def _await(self, timeout_s: float) -> int:
        left = len(self._letters)
        self._producer.poll(timeout_s if left else 0)
        if len(self._letters) < left or not self._connection.connected:
            self._answered_at = time.monotonic()
        if self._letters and time.monotonic() - self._answered_at > SILENT_S:
            log.info("producer of dead letters replaced", unacknowledged=len(self._letters))
            self._producer.purge()
            self._open()
        return len(self._letters)

    def _on_error(self, error: KafkaError) -> None:
        if self._connection.is_final(error):
            raise self._connection.source_error(error)  # the call of the producer raises it

    def _on_delivery(self, number: int, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            raise self._connection.source_error(error)
        del self._letters[number]

    def close(self) -> None:
        self._producer.purge()
