"""Transactions and dead letters on confluent-kafka."""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from streampca.sources.base import Committed, Header, OutgoingFields, TransactionFailedError
from streampca.sources.client_connection import one_line
from streampca.sources.client_transactions import (
    ABORT_S,
    REQUEST_BYTES,
    ClientProducer,
    ClientTransactions,
    Undelivered,
)
from streampca.sources.confluent.admin import ConfluentAdmin
from streampca.sources.confluent.connection import ConfluentConnection, protocol_code
from streampca.sources.confluent.options import connection_options, create
from streampca.sources.record_size import record_size

_ROOM_TIMEOUT_S = 5.0  # how long a record of a transaction waits for room in the queue
_QUEUE_KIB = 32 * 1024  # of dead letters
_BATCH_BYTES = 100_000  # of dead letters
_BY_KEY = -1  # partition: the key decides
_NOW = 0  # timestamp: the time of sending

log = structlog.get_logger()


class ConfluentTransactions(ClientTransactions):
    """See `streampca.sources.client_transactions.ClientTransactions`."""

    client_error = KafkaException
    admin = ConfluentAdmin
    batch_bytes = 1_000_000  # a topic may take less at once

    def _start(self) -> None:
        limit_of_topic = int(self.topic_configs().get("max.message.bytes", 2**31))
        self.batch_bytes = min(self._next_batch_bytes, limit_of_topic)
        options = {
            "transactional.id": self._transactional_id,
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
        # After a refused record, batches are smaller than at first, and the size of each record that is not delivered
        # is reported: it tells which one was too large.
        reports_sizes = self._next_batch_bytes < type(self).batch_bytes
        for topic, partition, value, key, headers, timestamp in records:
            number = _BY_KEY if partition is None else partition
            # librdkafka takes a timestamp of 0 for "now", and no other number, so 0 itself becomes 1.
            time_ms = (timestamp or 1) if timestamp >= 0 else _NOW
            report = partial(self._on_delivery, size=record_size(value, key, headers)) if reports_sizes else None
            try:
                # All arguments are positional, which is an optimisation: naming some takes half as long as the call.
                produce(topic, value, key, number, report, None, time_ms, headers)
            except BufferError:  # the queue is full
                left_in_queue = producer.flush(_ROOM_TIMEOUT_S)
                if left_in_queue:
                    self._drop_producer()
                    raise TransactionFailedError("the brokers take no records") from None
                produce(topic, value, key, number, report, None, time_ms, headers)
            except KafkaException as error:
                self._fail(error, topic, record_size(value, key, headers))

    def _commit(self, producer: Producer, offsets: Mapping[int, Committed], membership: Any) -> None:
        deadline = time.monotonic() + self.commit_s
        if offsets:
            producer.send_offsets_to_transaction(self._source.convert_offsets(offsets), membership, self.commit_s)
        producer.commit_transaction(max(deadline - time.monotonic(), 0.001))

    def _abort(self, producer: Producer) -> None:
        producer.abort_transaction(ABORT_S)

    def _give_up(self, producer: Producer) -> None:
        if self._open:
            with contextlib.suppress(KafkaException):  # raised if another producer has fenced this one
                producer.poll(0)  # calls `_on_delivery` for what was not delivered
        producer.purge()

    def _code_and_text(self, error: Exception) -> tuple[int | None, str]:
        kafka_error = error.args[0]
        return protocol_code(kafka_error), one_line(kafka_error.str())

    def _on_delivery(self, error: KafkaError | None, message: Any, size: int = 0) -> None:
        if error is not None:
            self._undelivered.append(Undelivered(KafkaException(error), message.topic(), size))


class _Record(NamedTuple):
    """A record that is not acknowledged yet."""

    value: bytes | None
    key: bytes | None
    partition: int  # or _BY_KEY
    headers: Sequence[Header]
    time_ms: int  # or _NOW


class ConfluentProducer(ClientProducer):
    """See `streampca.sources.client_transactions.ClientProducer`.

    If a producer gets no answer for long while a broker answers, it is replaced. The next producer sends again what is
    not acknowledged.
    """

    _connection: ConfluentConnection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unacknowledged: dict[int, _Record] = {}  # by number, in the order of sending
        self._sent = 0  # number of the last record
        self._to_resend: list[tuple[int, int]] = []  # numbers of records whose time was refused, and the time to send
        self._connection = ConfluentConnection(self._settings, self._topic).start()
        limit_of_topic = int(self._connection.topic_configs().get("max.message.bytes", _BATCH_BYTES))
        self._options = connection_options(self._settings) | {
            "message.timeout.ms": 0,  # waits for an absent broker without limit
            "message.max.bytes": REQUEST_BYTES,
            "batch.size": min(max(limit_of_topic, 1), _BATCH_BYTES),
            "queue.buffering.max.kbytes": _QUEUE_KIB,
            "enable.idempotence": self._is_idempotent,
            # One request at a time keeps the order; a repeated letter is recognised by the offset in its headers.
            "max.in.flight.requests.per.connection": 1,
            "partitioner": "murmur2_random",  # as other clients: equal keys go to the same partition
            "error_cb": self._on_error,
        }
        self._open()

    def _open(self) -> None:
        """Create the producer, and give it all records that are not acknowledged; an earlier producer is given up."""
        self._producer: Any = create(Producer, self._options)
        self._answered_at = time.monotonic()
        for number, record in list(self._unacknowledged.items()):
            self._enqueue(number, record)
        self._to_resend.clear()  # these records have just been enqueued as well

    def produce(
        self,
        value: bytes | None,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        if not self._unacknowledged:
            self._answered_at = time.monotonic()  # a silence begins with the first record that waits for an answer
        self._sent += 1
        record = _Record(
            value=value,
            key=key,
            partition=_BY_KEY if partition is None else partition,
            headers=headers,
            time_ms=_NOW,
        )
        self._unacknowledged[self._sent] = record
        self._enqueue(self._sent, record)

    def _enqueue(self, number: int, record: _Record) -> None:
        """Add a record to the producer's queue; if the queue is full, wait until it has room."""
        report = partial(self._on_delivery, number)
        for wait_s in (self._room_timeout_s, 0):
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    record.partition,
                    report,
                    None,
                    record.time_ms,
                    list(record.headers),
                )
                return
            except BufferError:
                self._producer.flush(wait_s)
            except KafkaException as error:
                raise self._connection.source_error(error.args[0]) from None
        raise self._connection.messages.no_broker(self._connection.last_failure)

    def _wait_for_acknowledgements(self, timeout_s: float) -> int:
        before = len(self._unacknowledged)
        self._producer.poll(timeout_s if before else 0)  # calls `_on_delivery`
        while self._to_resend:
            number, time_ms = self._to_resend.pop()
            record = self._unacknowledged[number]._replace(time_ms=time_ms)
            self._unacknowledged[number] = record
            self._enqueue(number, record)
        was_answered = len(self._unacknowledged) < before
        # While no broker answers any client, this producer's silence does not count.
        if was_answered or not self._connection.connected:
            self._answered_at = time.monotonic()
        if self._unacknowledged and self._connection.is_silent(self._answered_at):
            log.debug("producer replaced", unacknowledged=len(self._unacknowledged))
            self._producer.purge()
            self._open()
        return len(self._unacknowledged)

    def _on_error(self, error: KafkaError) -> None:
        if self._connection.is_final(error):
            raise self._connection.source_error(error)  # the producer's method that runs this callback raises it

    def _on_delivery(self, number: int, error: KafkaError | None, _: Any) -> None:
        if error is None:
            del self._unacknowledged[number]
            return
        record = self._unacknowledged[number]
        time_ms = self._time_to_resend_with(error.code(), record.headers)
        was_sent_with_other_time = record.time_ms != _NOW
        if was_sent_with_other_time or time_ms is None:
            raise self._connection.source_error(error)
        self._to_resend.append((number, time_ms or 1))  # the client takes 0 for the time of sending

    def close(self) -> None:
        self._producer.purge()
