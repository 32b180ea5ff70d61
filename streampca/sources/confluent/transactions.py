"""Transactions and dead letters on confluent-kafka."""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from streampca.sources.base import Committed, Header, OutgoingFields, TransactionFailedError
from streampca.sources.client_connection import one_line
from streampca.sources.client_transactions import ABORT_S, REQUEST_BYTES, ClientProducer, ClientTransactions
from streampca.sources.confluent.admin import ConfluentAdmin
from streampca.sources.confluent.connection import Connection, protocol_code
from streampca.sources.confluent.options import connection_options, create
from streampca.sources.record_size import record_size

_ROOM_S = 5.0  # how long a record waits for room in the queue
_QUEUE_KIB, _BATCH_BYTES = 32 * 1024, 100_000  # of dead letters
_ANY = -1  # partition: the key decides
_NOW = 0  # timestamp: the time of sending

log = structlog.get_logger()


class ConfluentTransactions(ClientTransactions):
    """See `streampca.sources.client_transactions.ClientTransactions`."""

    client_error = KafkaException
    admin = ConfluentAdmin
    batch_bytes = 1_000_000  # a topic may take less at once

    def _start(self) -> None:
        self.batch_bytes = min(self._next_batch_bytes, int(self.topic_configs().get("max.message.bytes", 2**31)))
        options = {
            "transactional.id": self._name,
            "transaction.timeout.ms": int(self._timeout_s * 1000),
            "message.max.bytes": REQUEST_BYTES,
            "batch.size": max(self.batch_bytes, 1),
            "linger.ms": 5,
            "partitioner": "murmur2_random",  # as other clients: equal keys go to the same partition
            "on_delivery": self._on_delivery,
            "delivery.report.only.error": True,
            # Else, after an outage, offsets are sent to a broker that the client has given up: docs/kafka.md.
            "metadata.recovery.strategy": "none",
        }
        self._producer = create(Producer, connection_options(self._settings) | options)
        self._producer.init_transactions(self.begin_s)

    def _send(self, producer: Producer, records: Iterable[OutgoingFields]) -> None:
        produce: Any = producer.produce
        reports_sizes = self._next_batch_bytes < type(self).batch_bytes  # a record was refused: which one?
        for topic, partition, value, key, headers, timestamp in records:
            # librdkafka replaces a timestamp of 0 by the current time, and takes no other number for that. All
            # arguments are positional, since naming some of them takes half as long as the call itself.
            number, at = _ANY if partition is None else partition, timestamp or 1 if timestamp >= 0 else 0
            report = partial(self._on_delivery, size=record_size(value, key, headers)) if reports_sizes else None
            try:
                produce(topic, value, key, number, report, None, at, headers)
            except BufferError:
                if producer.flush(_ROOM_S):  # not everything sent so far was delivered
                    self._drop()
                    raise TransactionFailedError("the brokers take no records") from None
                produce(topic, value, key, number, report, None, at, headers)
            except KafkaException as error:
                self._fail(error, topic, record_size(value, key, headers))

    def _commit(self, producer: Producer, offsets: Mapping[int, Committed], membership: Any) -> None:
        deadline = time.monotonic() + self.commit_s
        if offsets:
            producer.send_offsets_to_transaction(self._source.named(offsets), membership, self.commit_s)
        producer.commit_transaction(max(deadline - time.monotonic(), 0.001))

    def _abort(self, producer: Producer) -> None:
        producer.abort_transaction(ABORT_S)

    def _give_up(self, producer: Producer) -> None:
        if self._open:
            with contextlib.suppress(KafkaException):  # of a producer that is fenced
                producer.poll(0)  # reports what was not delivered
        producer.purge()

    def _described(self, error: Exception) -> tuple[int | None, str]:
        cause = error.args[0]
        return protocol_code(cause), one_line(cause.str())

    def _on_delivery(self, error: KafkaError | None, message: Any, size: int = 0) -> None:
        if error is not None:
            self._undelivered.append((KafkaException(error), message.topic(), size))


class ConfluentProducer(ClientProducer):
    """See `streampca.sources.client_transactions.ClientProducer`.

    A producer that is silent while a broker answers is replaced; the next one sends again what is not acknowledged.
    """

    _connection: Connection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unacknowledged: dict[int, tuple[Any, ...]] = {}  # records, by number
        self._sent = 0
        self._refused_times: list[tuple[int, int]] = []  # numbers of records to be sent again, with these times
        self._connection = Connection(self._settings, self._topic).start()
        limit = int(self._connection.topic_configs().get("max.message.bytes", _BATCH_BYTES))
        self._options = connection_options(self._settings) | {
            "message.timeout.ms": 0,  # waits for an absent broker without limit
            "message.max.bytes": REQUEST_BYTES,
            "batch.size": min(max(limit, 1), _BATCH_BYTES),
            "queue.buffering.max.kbytes": _QUEUE_KIB,
            "enable.idempotence": self._is_idempotent,
            # One request at a time keeps the order; a repeated letter is recognised by the offset in its headers.
            "max.in.flight.requests.per.connection": 1,
            "partitioner": "murmur2_random",  # as other clients: equal keys go to the same partition
            "error_cb": self._on_error,
        }
        self._open()

    def _open(self) -> None:
        self._producer: Any = create(Producer, self._options)
        self._answered_at = time.monotonic()
        for number, record in list(self._unacknowledged.items()):
            self._give(number, *record)
        self._refused_times.clear()

    def produce(
        self,
        value: bytes | None,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        if not self._unacknowledged:
            self._answered_at = time.monotonic()
        self._sent += 1
        self._unacknowledged[self._sent] = record = value, key, partition, headers, _NOW
        self._give(self._sent, *record)

    def _give(
        self, number: int, value: bytes | None, key: bytes | None, partition: int | None, headers: Any, time_ms: int
    ) -> None:
        """Add a record to the producer's queue; if that is full, once it has room."""
        report, to = partial(self._on_delivery, number), _ANY if partition is None else partition
        for wait_s in (self._room_s, 0):
            try:
                self._producer.produce(self._topic, value, key, to, report, None, time_ms, list(headers))
                return
            except BufferError:
                self._producer.flush(wait_s)
            except KafkaException as error:
                raise self._connection.source_error(error.args[0]) from None
        raise self._connection.messages.no_broker(self._connection.last_failure)

    def _await(self, timeout_s: float) -> int:
        left = len(self._unacknowledged)
        self._producer.poll(timeout_s if left else 0)
        while self._refused_times:
            number, time_ms = self._refused_times.pop()
            *record, _ = self._unacknowledged[number]
            self._unacknowledged[number] = (*record, time_ms)
            self._give(number, *self._unacknowledged[number])
        if len(self._unacknowledged) < left or not self._connection.connected:
            self._answered_at = time.monotonic()
        if self._unacknowledged and self._connection.is_silent(self._answered_at):
            log.debug("producer replaced", unacknowledged=len(self._unacknowledged))
            self._producer.purge()
            self._open()
        return len(self._unacknowledged)

    def _on_error(self, error: KafkaError) -> None:
        if self._connection.is_final(error):
            raise self._connection.source_error(error)  # the call of the producer raises it

    def _on_delivery(self, number: int, error: KafkaError | None, _: Any) -> None:
        if error is None:
            del self._unacknowledged[number]
            return
        *_, headers, sent_with = self._unacknowledged[number]
        time_ms = self._other_time(error.code(), headers)
        if sent_with != _NOW or time_ms is None:
            raise self._connection.source_error(error)
        self._refused_times.append((number, time_ms or 1))  # the client takes 0 for the time of sending

    def close(self) -> None:
        self._producer.purge()
