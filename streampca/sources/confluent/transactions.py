"""Transactions and dead letters on confluent-kafka."""

import contextlib
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from streampca.errors import SourceError
from streampca.sources.base import Committed, OutgoingFields, TransactionFailedError
from streampca.sources.broker_errors import one_line
from streampca.sources.client_producer import ClientProducer, ProducedRecord
from streampca.sources.client_transactions import (
    ABORT_S,
    REQUEST_BYTES,
    ClientTransactions,
    Failure,
)
from streampca.sources.confluent.admin import ConfluentAdmin
from streampca.sources.confluent.client_errors import protocol_code
from streampca.sources.confluent.connection import REPLACE_CLIENT_AFTER_S, ConfluentConnection
from streampca.sources.confluent.options import connection_options, create
from streampca.sources.record_size import record_size

_FULL_QUEUE_TIMEOUT_S = 5.0  # how long a record of a transaction waits for room in the queue
_QUEUE_KIB = 32 * 1024  # of dead letters; the queue grows for a record that is larger
_QUEUE_LIMIT = "queue.buffering.max.kbytes"
_BATCH_BYTES = 100_000  # of dead letters
_BY_KEY = -1  # partition: the key decides
_TIME_OF_SENDING = 0  # instead of a timestamp: librdkafka sets the time when it sends the record

log = structlog.get_logger()


def _to_client_time(timestamp_ms: int) -> int:
    """Return a timestamp for librdkafka, to which 0 means the time of sending.

    A negative timestamp, which means the time of sending, becomes 0. The timestamp 0 becomes 1, the next one.
    """
    return _TIME_OF_SENDING if timestamp_ms < 0 else max(timestamp_ms, 1)


class ConfluentTransactions(ClientTransactions):
    """See `streampca.sources.client_transactions.ClientTransactions`."""

    client_error = KafkaException
    admin_class = ConfluentAdmin
    batch_bytes = 1_000_000  # a topic may take less at once

    def _start_producer(self) -> None:
        """Create a producer, and let it abort transactions that earlier producers with its id have left open."""
        limit_of_topic = int(self.topic_configs().get("max.message.bytes", 2**31))
        self.batch_bytes = min(self._batch_bytes_of_next_producer, limit_of_topic)
        options = {
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": int(self._timeout_s * 1000),
            "message.max.bytes": REQUEST_BYTES,
            # `batch_bytes` is lowered after brokers have refused a batch as too large. 0 means that each record must be
            # alone in its batch. librdkafka refuses 0; the smallest size that it takes, 1, has the same effect.
            "batch.size": max(self.batch_bytes, 1),
            "linger.ms": 5,
            "partitioner": "murmur2_random",  # as other clients
            "on_delivery": self._on_delivery,
            "delivery.report.only.error": True,
            # With the default, a commit may never end: see "Hangs in librdkafka" in docs/kafka.md.
            "metadata.recovery.strategy": "none",
        }
        self._producer = create(Producer, connection_options(self._settings) | options)
        self._producer.init_transactions(self.begin_s)

    def _send(self, producer: Producer, records: Iterable[OutgoingFields]) -> None:
        """Hand the records to the producer. While its queue is full, wait."""
        produce: Any = producer.produce
        for topic, partition, value, key, headers, timestamp in records:
            partition_number = _BY_KEY if partition is None else partition
            # `_to_client_time` changes no positive timestamp. The condition is an optimisation: it saves most calls.
            time_ms = timestamp if timestamp > 0 else _to_client_time(timestamp)
            on_delivery = None  # then the producer calls its option `on_delivery`
            if self._must_measure_records:  # most transactions need no sizes, and measuring takes time
                on_delivery = partial(self._on_delivery, size=record_size(value, key, headers))
            try:
                # Positional arguments are an optimisation, too: the call takes a third less time. The callback has
                # two parameters, of which the second is not used.
                produce(topic, value, key, partition_number, on_delivery, None, time_ms, headers)
            except BufferError:
                self._empty_queue(producer)
                produce(topic, value, key, partition_number, on_delivery, None, time_ms, headers)
            except KafkaException as error:
                self._give_up_and_raise(Failure(error, topic, record_size(value, key, headers)))

    def _empty_queue(self, producer: Producer) -> None:
        """Wait until the producer has sent all of its full queue. Raises `TransactionFailedError` after 5 seconds."""
        left_in_queue = producer.flush(_FULL_QUEUE_TIMEOUT_S)
        if left_in_queue:
            self._drop_producer()
            # The `BufferError` of the full queue, which the caller handles, explains nothing more.
            raise TransactionFailedError("the brokers take no records") from None

    def _commit(self, producer: Producer, offsets: Mapping[int, Committed], membership: Any) -> None:
        deadline = time.monotonic() + self.commit_s
        if offsets:
            producer.send_offsets_to_transaction(self._source.convert_offsets(offsets), membership, self.commit_s)
        producer.commit_transaction(max(deadline - time.monotonic(), 0.001))

    def _abort(self, producer: Producer) -> None:
        producer.abort_transaction(ABORT_S)

    def _close_producer(self, producer: Producer) -> None:
        """Close the producer: take its last reports of refused records, and drop the records that are not sent."""
        if self._is_transaction_open:  # otherwise no report is needed, and `poll` would only log errors again
            with contextlib.suppress(KafkaException):  # another producer may have fenced this one
                producer.poll(0)  # calls `_on_delivery` for each refused record
        producer.purge()  # drops the records that are not sent

    def _code_and_text(self, error: Exception) -> tuple[int | None, str]:
        kafka_error = error.args[0]
        return protocol_code(kafka_error), one_line(kafka_error.str())

    def _on_delivery(self, error: KafkaError | None, message: Any, size: int = 0) -> None:
        """Note a record that was not delivered. The client calls this; `size` is 0 if it is unknown."""
        if error is not None:
            lacks_key = message.key() is None
            self._failures.append(Failure(KafkaException(error), message.topic(), size=size, lacks_key=lacks_key))


class ConfluentProducer(ClientProducer):
    """See `streampca.sources.client_producer.ClientProducer`.

    If a producer gets no answer for long while a broker answers, it is replaced. The next producer sends the
    unacknowledged records again.
    """

    _connection: ConfluentConnection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unacknowledged: dict[int, ProducedRecord] = {}  # by number, in the order of sending
        self._last_number = 0  # of the record that was sent last
        # A dead letter is first sent with the time of sending. If brokers refuse this timestamp, the letter waits here
        # to be sent again with another timestamp.
        self._letters_to_resend: list[ProducedRecord] = []
        # If brokers have not acknowledged any record for this long, a new producer replaces this one.
        self._replace_producer_after_s = REPLACE_CLIENT_AFTER_S
        self._connection = ConfluentConnection(self._settings, self._topic).start()
        limit_of_topic = int(self._connection.topic_configs().get("max.message.bytes", _BATCH_BYTES))
        self._options = connection_options(self._settings) | {
            "message.timeout.ms": 0,  # no limit
            "message.max.bytes": REQUEST_BYTES,
            # Brokers apply the topic's limit, which may be 0, to whole batches. librdkafka refuses 0.
            "batch.size": min(max(limit_of_topic, 1), _BATCH_BYTES),
            _QUEUE_LIMIT: _QUEUE_KIB,
            "enable.idempotence": self._is_idempotent,
            "max.in.flight.requests.per.connection": 1,  # keeps the order
            "partitioner": "murmur2_random",  # as other clients
            "error_cb": self._on_error,
        }
        self._open()

    def _open(self) -> None:
        """Create the producer in place of an earlier one, and give it all records that are not acknowledged."""
        self._producer: Any = create(Producer, self._options)
        self._waiting_since = time.monotonic()
        for number, record in list(self._unacknowledged.items()):
            self._enqueue(number, record)

    def _produce(self, record: ProducedRecord) -> None:
        if not self._unacknowledged:
            self._waiting_since = time.monotonic()  # the wait for an answer begins now
        self._last_number += 1
        self._unacknowledged[self._last_number] = record
        self._enqueue(self._last_number, record)

    def _enqueue(self, number: int, record: ProducedRecord) -> None:
        """Add a record to the producer's queue; if the queue is full, wait for room. Raises `SourceError`.

        `number` is the number of the record in `_unacknowledged`.
        """
        try:
            self._add_to_queue(number, record)
            return
        except BufferError:  # the queue is full, or smaller than the record
            self._make_room_for(record)
        try:
            self._add_to_queue(number, record)
        except BufferError:
            raise self._explain_full_queue() from None

    def _make_room_for(self, record: ProducedRecord) -> None:
        """Wait until the queue is empty. If it is too small for a record, replace the producer and its queue."""
        left_in_queue = self._producer.flush(self._full_queue_timeout_s)
        needed_kib = record_size(record.value, record.key, record.headers) // 1024 + 1
        if not left_in_queue and needed_kib > self._options[_QUEUE_LIMIT]:
            self._options[_QUEUE_LIMIT] = needed_kib
            self._producer = create(Producer, self._options)

    def _explain_full_queue(self) -> SourceError:
        """Return the error of a queue that stays full: no broker answers, or brokers do not acknowledge records.

        Raises `SourceError` if the topic does not exist.
        """
        try:
            self._connection.describe()  # raises `SourceError` for a missing topic
        except TimeoutError:
            return self._connection.broker_errors.no_broker_error(self._connection.last_failure)
        return self._connection.broker_errors.not_acknowledged_error(self._full_queue_timeout_s)

    def _add_to_queue(self, number: int, record: ProducedRecord) -> None:
        """Add a record to the producer's queue. Raises `BufferError` if it is full, else `SourceError`."""
        try:
            self._producer.produce(
                self._topic,
                record.value,
                record.key,
                _BY_KEY if record.partition is None else record.partition,
                partial(self._on_delivery, number),
                None,  # a second callback
                _TIME_OF_SENDING if record.time_ms is None else _to_client_time(record.time_ms),
                record.headers,
            )
        except KafkaException as error:
            raise self._connection.source_error(error.args[0]) from None

    def _wait_for_acknowledgements(self, timeout_s: float) -> int:
        """Wait for acknowledgements, and return how many are missing.

        Meanwhile, send refused dead letters again, and replace a producer that gets no acknowledgement.
        """
        self._producer.poll(timeout_s if self._unacknowledged else 0)
        while self._letters_to_resend:
            self._produce(self._letters_to_resend.pop())
        self._replace_producer_if_unanswered()
        return len(self._unacknowledged)

    def _replace_producer_if_unanswered(self) -> None:
        """Replace the producer if brokers answer, but have not acknowledged its records for long."""
        if not self._connection.connected:
            self._waiting_since = time.monotonic()  # an outage does not count
        limit_s = self._replace_producer_after_s
        if self._unacknowledged and self._connection.should_replace(self._waiting_since, limit_s):
            log.debug("producer replaced", unacknowledged=len(self._unacknowledged))
            self._replace_producer_after_s *= 2  # a large record may need longer
            self._producer.purge()
            self._open()  # enqueues the records again

    def _on_error(self, error: KafkaError) -> None:
        if self._connection.must_raise(error):
            raise self._connection.source_error(error)

    def _on_delivery(self, number: int, error: KafkaError | None, _: Any) -> None:
        """Handle the answer to a record. The client calls this in `poll` and `flush`, which raise our `SourceError`.

        A dead letter whose timestamp was refused is sent again later, with another timestamp.
        """
        record = self._unacknowledged[number]
        if error is None:
            del self._unacknowledged[number]
            self._waiting_since = time.monotonic()
            self._replace_producer_after_s = REPLACE_CLIENT_AFTER_S  # each replacement had doubled it
            return
        letter_to_resend = self._replace_refused_timestamp(record, error.code(), error)
        del self._unacknowledged[number]
        self._letters_to_resend.append(letter_to_resend)

    def close(self) -> None:
        self._producer.purge()
