"""Transactions and dead letters on confluent-kafka."""

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from streampca.errors import SourceError
from streampca.sources.base import Committed, Header, OutgoingFields, TransactionFailedError
from streampca.sources.broker_errors import one_line
from streampca.sources.client_producer import ClientProducer
from streampca.sources.client_transactions import (
    ABORT_S,
    REQUEST_BYTES,
    ClientTransactions,
    Failure,
)
from streampca.sources.confluent.admin import ConfluentAdmin
from streampca.sources.confluent.client_errors import protocol_code
from streampca.sources.confluent.connection import SILENT_S, ConfluentConnection
from streampca.sources.confluent.options import connection_options, create
from streampca.sources.record_size import record_size

_FULL_QUEUE_TIMEOUT_S = 5.0  # how long a record of a transaction waits for room in the queue
_QUEUE_KIB = 32 * 1024  # of dead letters; the queue grows for a record that is larger
_QUEUE_LIMIT = "queue.buffering.max.kbytes"
_BATCH_BYTES = 100_000  # of dead letters
_BY_KEY = -1  # partition: the key decides
_TIME_OF_SENDING = 0  # in place of a timestamp: librdkafka sets the time when it sends the record
_JUST_AFTER_1970 = 1  # in place of the timestamp 0, which librdkafka would take for _TIME_OF_SENDING

log = structlog.get_logger()


class ConfluentTransactions(ClientTransactions):
    """See `streampca.sources.client_transactions.ClientTransactions`."""

    client_error = KafkaException
    admin_class = ConfluentAdmin
    batch_bytes = 1_000_000  # a topic may take less at once

    def _start_producer(self) -> None:
        """Create a producer, and let it end what earlier producers with its transactional id have left open."""
        limit_of_topic = int(self.topic_configs().get("max.message.bytes", 2**31))  # 2**31: no limit is known
        # After a batch was too large, `_next_batch_bytes` is smaller than for the producer before.
        self.batch_bytes = min(self._next_batch_bytes, limit_of_topic)
        options = {
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": int(self._timeout_s * 1000),
            "message.max.bytes": REQUEST_BYTES,
            # After several batches that were too large, `batch_bytes` is 0, so that each record is a batch. librdkafka
            # refuses 0, but with 1 byte, too, each record is a batch.
            "batch.size": max(self.batch_bytes, 1),
            "linger.ms": 5,
            "partitioner": "murmur2_random",  # as other clients: equal keys go to the same partition
            "on_delivery": self._on_delivery,
            "delivery.report.only.error": True,
            # With librdkafka's default, a commit may never end after an outage: it waits for a broker that the client
            # has given up (docs/kafka.md).
            "metadata.recovery.strategy": "none",
        }
        self._producer = create(Producer, connection_options(self._settings) | options)
        self._producer.init_transactions(self.begin_s)

    def _send(self, producer: Producer, records: Iterable[OutgoingFields]) -> None:
        """Hand the records to the producer. While its queue is full, wait."""
        produce: Any = producer.produce
        for topic, partition, value, key, headers, timestamp in records:
            partition_number = _BY_KEY if partition is None else partition
            if timestamp < 0:
                time_ms = _TIME_OF_SENDING
            elif timestamp == 0:  # librdkafka would take 0 for the time of sending
                time_ms = _JUST_AFTER_1970
            else:
                time_ms = timestamp
            on_delivery = None  # then the client calls the producer's option `on_delivery`
            # After a batch was too large, `_has_smaller_batches` is true. From then on, a failure tells the size of its
            # record, so that `_find_too_large_error` finds a record that is too large by itself. Before, measuring each
            # record would only cost time.
            if self._has_smaller_batches:
                on_delivery = partial(self._on_delivery, size=record_size(value, key, headers))
            try:
                # All arguments are positional, which is an optimisation: with keywords, the call takes 50 % longer.
                produce(topic, value, key, partition_number, on_delivery, None, time_ms, headers)
            except BufferError:  # the queue is full: wait until it is empty
                left_in_queue = producer.flush(_FULL_QUEUE_TIMEOUT_S)
                if left_in_queue:
                    self._drop_producer()
                    raise TransactionFailedError("the brokers take no records") from None
                produce(topic, value, key, partition_number, on_delivery, None, time_ms, headers)
            except KafkaException as error:
                self._give_up_and_raise(Failure(error, topic, record_size(value, key, headers)))

    def _commit(self, producer: Producer, offsets: Mapping[int, Committed], membership: Any) -> None:
        deadline = time.monotonic() + self.commit_s
        if offsets:
            producer.send_offsets_to_transaction(self._source.convert_offsets(offsets), membership, self.commit_s)
        producer.commit_transaction(max(deadline - time.monotonic(), 0.001))

    def _abort(self, producer: Producer) -> None:
        producer.abort_transaction(ABORT_S)

    def _close_producer(self, producer: Producer) -> None:
        """Throw away the records that are not sent, after noting which records of an open transaction were refused."""
        if self._is_transaction_open:
            with contextlib.suppress(KafkaException):  # raised if another producer has fenced this one
                # `poll` calls `_on_delivery`, which notes each record that was refused. In these notes,
                # `_give_up_and_raise` looks for the cause of the failed transaction.
                producer.poll(0)
        producer.purge()

    def _code_and_text(self, error: Exception) -> tuple[int | None, str]:
        kafka_error = error.args[0]
        return protocol_code(kafka_error), one_line(kafka_error.str())

    def _on_delivery(self, error: KafkaError | None, message: Any, size: int = 0) -> None:
        """Note that a record was not delivered. The client calls this; `size` is 0 if it is unknown."""
        if error is not None:
            has_key = message.key() is not None
            self._failures.append(Failure(KafkaException(error), message.topic(), size=size, has_key=has_key))


class _Record(NamedTuple):
    """A record that is not acknowledged yet."""

    value: bytes | None
    key: bytes | None
    partition: int  # or _BY_KEY
    headers: Sequence[Header]
    time_ms: int  # or _TIME_OF_SENDING


class ConfluentProducer(ClientProducer):
    """See `streampca.sources.client_transactions.ClientProducer`.

    If a producer gets no answer for long while a broker answers, it is replaced. The next producer sends the
    unacknowledged records again.
    """

    _connection: ConfluentConnection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unacknowledged: dict[int, _Record] = {}  # by number, in the order of sending
        self._sent = 0  # number of the last record
        # Dead letters that brokers refused because their timestamp was the time of sending. Each is noted by its number
        # in `_unacknowledged`, with the timestamp of the rejected record.
        self._to_resend: list[tuple[int, int]] = []
        self._silent_s = SILENT_S  # a producer without an acknowledgement for this long is replaced
        self._connection = ConfluentConnection(self._settings, self._topic).start()
        limit_of_topic = int(self._connection.topic_configs().get("max.message.bytes", _BATCH_BYTES))
        self._options = connection_options(self._settings) | {
            "message.timeout.ms": 0,  # waits for an absent broker without limit
            "message.max.bytes": REQUEST_BYTES,
            "batch.size": min(max(limit_of_topic, 1), _BATCH_BYTES),  # librdkafka refuses 0
            _QUEUE_LIMIT: _QUEUE_KIB,  # of the records that wait in the client
            "enable.idempotence": self._is_idempotent,
            # One request at a time keeps the order. Without idempotence a retry may write a dead letter twice: its
            # readers recognise the second one by the offset in its headers.
            "max.in.flight.requests.per.connection": 1,
            "partitioner": "murmur2_random",  # as other clients: equal keys go to the same partition
            "error_cb": self._on_error,
        }
        self._open()

    def _open(self) -> None:
        """Create the producer in place of an earlier one, and give it all records that are not acknowledged."""
        self._producer: Any = create(Producer, self._options)
        self._answered_at = time.monotonic()
        for number, record in list(self._unacknowledged.items()):
            self._enqueue(number, record)
        # The records in `_to_resend` were unacknowledged, so they have just been enqueued, with the time of sending. If
        # it is refused again, `_on_delivery` adds them to `_to_resend` again.
        self._to_resend.clear()

    def produce(
        self,
        value: bytes | None,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        """Send a record without waiting for an answer, and keep it until it is acknowledged."""
        if not self._unacknowledged:
            self._answered_at = time.monotonic()  # the producer's silence begins with the first record that waits
        self._sent += 1
        record = _Record(
            value=value,
            key=key,
            partition=_BY_KEY if partition is None else partition,
            headers=headers,
            time_ms=_TIME_OF_SENDING,
        )
        self._unacknowledged[self._sent] = record
        self._enqueue(self._sent, record)

    def _enqueue(self, number: int, record: _Record) -> None:
        """Add a record to the producer's queue. If the queue is full, wait until it has room.

        Raises `SourceError` if the queue stays full, or the client refuses the record.
        """
        try:
            self._produce(number, record)
        except BufferError:  # the queue is full, or smaller than the record
            left_in_queue = self._producer.flush(self._full_queue_timeout_s)
            if not left_in_queue:  # the queue is empty now, but may be too small for the record
                self._enlarge_queue(record)
            try:
                self._produce(number, record)
            except BufferError:
                raise self._explain_full_queue() from None

    def _enlarge_queue(self, record: _Record) -> None:
        """If a record is larger than the queue, replace the producer by one with a larger queue.

        librdkafka cannot change the limit of a queue. The old queue is empty, so no record is lost.
        """
        needed_kib = record_size(record.value, record.key, list(record.headers)) // 1024 + 1
        if needed_kib > self._options[_QUEUE_LIMIT]:
            self._options[_QUEUE_LIMIT] = needed_kib
            self._producer = create(Producer, self._options)

    def _explain_full_queue(self) -> SourceError:
        """Return the error of a queue that stays full: no broker answers, or brokers do not acknowledge its records.

        Raises `SourceError` if the topic does not exist.
        """
        try:
            self._connection.describe()
        except TimeoutError:
            return self._connection.broker_errors.no_broker_error(self._connection.last_failure)
        return self._connection.broker_errors.not_acknowledged_error(self._full_queue_timeout_s)

    def _produce(self, number: int, record: _Record) -> None:
        """Add a record to the producer's queue. Raises `BufferError` if it is full, else `SourceError`."""
        try:
            self._producer.produce(
                self._topic,
                record.value,
                record.key,
                record.partition,
                partial(self._on_delivery, number),
                None,  # the client has two parameters for the callback; this is the second
                record.time_ms,
                list(record.headers),
            )
        except KafkaException as error:
            raise self._connection.source_error(error.args[0]) from None

    def _wait_for_acknowledgements(self, timeout_s: float) -> int:
        """Wait for acknowledgements, and return how many are missing. Replace a producer that gets none for long."""
        # `poll` calls `_on_delivery` for each answer, and `_on_error`. Without an unacknowledged record, no answer will
        # come, so the timeout is 0.
        self._producer.poll(timeout_s if self._unacknowledged else 0)
        self._resend_with_own_times()
        if not self._connection.connected:
            # No broker answers any client: a new producer would get no answer either.
            self._answered_at = time.monotonic()
        if self._unacknowledged and self._connection.should_replace(self._answered_at, self._silent_s):
            log.debug("producer replaced", unacknowledged=len(self._unacknowledged))
            self._silent_s *= 2  # a large record may need longer to be sent
            self._producer.purge()
            self._open()  # sends all unacknowledged records again
        return len(self._unacknowledged)

    def _resend_with_own_times(self) -> None:
        """Send the dead letters in `_to_resend` again, each with the timestamp of its rejected record.

        Brokers have refused them because their timestamp was the time of sending.
        """
        while self._to_resend:
            number, time_ms = self._to_resend.pop()
            record = self._unacknowledged[number]._replace(time_ms=time_ms)
            self._unacknowledged[number] = record
            self._enqueue(number, record)

    def _on_error(self, error: KafkaError) -> None:
        if self._connection.must_raise(error):
            raise self._connection.source_error(error)  # the producer's method that runs this callback raises it

    def _on_delivery(self, number: int, error: KafkaError | None, _: Any) -> None:
        """Handle a broker's answer to the record with this number. The client calls this within `poll` and `flush`.

        A dead letter that is refused for the time of sending will be sent once more, with its record's own time. For
        any other refusal, raises `SourceError`, which `poll` or `flush` passes on.
        """
        if error is None:
            del self._unacknowledged[number]
            self._answered_at = time.monotonic()
            self._silent_s = SILENT_S
            return
        record = self._unacknowledged[number]
        # The timestamp of the rejected record; None if the refusal is not about the timestamp, or no header holds it.
        own_time_ms = self._find_own_time_to_send(error.code(), record.headers)
        was_sent_twice = record.time_ms != _TIME_OF_SENDING  # only the second try sets the own time
        if was_sent_twice or own_time_ms is None:
            raise self._connection.source_error(error, has_key=record.key is not None)
        if own_time_ms == 0:  # librdkafka would take 0 for `_TIME_OF_SENDING`
            own_time_ms = _JUST_AFTER_1970
        self._to_resend.append((number, own_time_ms))

    def close(self) -> None:
        self._producer.purge()
