"""Transactions and dead letters on kafka-python."""

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.serializer import Serializer

from streampca.errors import SourceError
from streampca.sources.base import Committed, Header, Headers, OutgoingFields
from streampca.sources.broker_errors import one_line
from streampca.sources.client_producer import ClientProducer, ProducedRecord
from streampca.sources.client_transactions import (
    ABORT_S,
    EACH_RECORD_ALONE,
    REQUEST_BYTES,
    ClientTransactions,
    Failure,
)
from streampca.sources.kafka_python.client_internals import call_transactional, close_producer
from streampca.sources.kafka_python.connection import KafkaPythonAdmin, KafkaPythonConnection
from streampca.sources.record_size import record_size

_CODE_IN_TEXT = re.compile(r"\[Error (\d+)\]")
_DELIVERY_TIMEOUT_MS = 2**31 - 1  # waits for an absent broker without limit


class _TupleToValue(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """Takes the value of a record out of a tuple.

    The producer refuses a record with neither key nor value, before it calls its serializer. We write such records, so
    we hand over each value in a tuple, which is not None.
    """

    def serialize(self, topic: str, headers: Any, data: tuple[bytes | None]) -> bytes | None:
        return data[0]


def _replace_null_by_empty(headers: Sequence[Header]) -> list[tuple[str, bytes]]:
    """Return the headers with an empty value where it was None, since the producer cannot write None."""
    return [(name, value or b"") for name, value in headers]


class _Sent(NamedTuple):
    """A record that was handed to the client."""

    record: ProducedRecord
    answer: Any  # a future


class KafkaPythonProducer(ClientProducer):
    """See `streampca.sources.client_producer.ClientProducer`."""

    _connection: KafkaPythonConnection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unacknowledged: deque[_Sent] = deque()  # in the order of sending
        self._connection = KafkaPythonConnection(self._settings, self._topic)
        self._producer = self._connection.start(
            KafkaProducer,
            value_serializer=_TupleToValue(),  # `_produce` passes each value in a tuple
            acks="all",
            enable_idempotence=self._is_idempotent,
            max_in_flight_requests_per_connection=1,  # keeps the order
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            max_block_ms=int(self._full_queue_timeout_s * 1000),
            max_request_size=REQUEST_BYTES,
        )
        try:
            with self._connection.translate_errors():
                # The client caches the topic's partitions now, so that `produce` never waits for them.
                self._producer.partitions_for(self._topic)
        except SourceError:
            self.close()
            raise

    def _produce(self, record: ProducedRecord) -> None:
        with self._connection.translate_errors():
            future = self._producer.send(
                self._topic,
                # The client refuses a record whose key and value are both None. A tuple is not None; the
                # serializer `_TupleToValue` unpacks the tuple.
                (record.value,),
                record.key,
                headers=_replace_null_by_empty(record.headers),
                partition=record.partition,
                timestamp_ms=record.time_ms,
            )
        self._unacknowledged.append(_Sent(record, future))

    def _wait_for_acknowledgements(self, timeout_s: float) -> int:
        """Wait at most `timeout_s` for each record, and return how many are not acknowledged yet.

        A dead letter whose timestamp was refused is sent again. Any other refusal raises `SourceError`.
        """
        while self._unacknowledged:
            oldest = self._unacknowledged[0]
            try:
                oldest.answer.get(timeout_s)
            except KafkaError as error:
                # `get` raises the error that the brokers have answered, or an error of its own after `timeout_s`.
                is_brokers_answer = oldest.answer.exception is error
                if not is_brokers_answer:  # no answer has come in time
                    break
                code = getattr(error, "errno", None)  # Kafka's code
                letter_to_resend = self._replace_refused_timestamp(oldest.record, code, error)
                self._produce(letter_to_resend)  # adds it to the end of the queue
            self._unacknowledged.popleft()
        return len(self._unacknowledged)

    def close(self) -> None:
        close_producer(self._producer)


class KafkaPythonTransactions(ClientTransactions):
    """See `streampca.sources.client_transactions.ClientTransactions`."""

    client_error = KafkaError
    admin_class = KafkaPythonAdmin
    batch_bytes = EACH_RECORD_ALONE  # the client splits a batch that is too large, so each record that fails was alone

    def _start_producer(self) -> None:
        """Create a producer, and let it abort transactions that earlier producers with its id have left open."""
        self._producer = KafkaPythonConnection(self._settings, self._output_topic).start(
            KafkaProducer,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=int(self._timeout_s * 1000),
            value_serializer=_TupleToValue(),  # `_send` passes each value in a tuple
            acks="all",
            linger_ms=5,
            # No record may expire: the client would leave an expired record out, and commit the others.
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            max_block_ms=int(self.begin_s * 1000),
            max_request_size=REQUEST_BYTES,
        )
        self._producer.init_transactions()

    def _send(self, producer: KafkaProducer, records: Iterable[OutgoingFields]) -> None:
        """Hand the records to the producer. It calls `_add_failure` for each record that it cannot deliver."""
        # The next transaction has a list of its own. If an error comes late, it belongs to this transaction's list.
        failures = self._failures
        for topic, partition, value, key, headers, timestamp in records:
            time_ms = timestamp if timestamp >= 0 else None  # None: the time of sending
            try:
                future = producer.send(
                    topic,
                    # The client refuses a record whose key and value are both None. A tuple is not None; the
                    # serializer `_TupleToValue` unpacks the tuple.
                    (value,),
                    key,
                    headers=_replace_null_by_empty(headers),
                    partition=partition,
                    timestamp_ms=time_ms,
                )
            except (KafkaError, ValueError) as error:  # ValueError: an unknown partition
                self._give_up_and_raise(Failure(error, topic, record_size(value, key, headers)))
            future.add_errback(partial(_add_failure, failures, topic, value, key, headers))

    def _commit(self, producer: KafkaProducer, offsets: Mapping[int, Committed], membership: Any) -> None:
        """Wait until all records are sent, then send the offsets, then commit the transaction; wait for each answer.

        `membership` is the group's metadata. If a record was not delivered, give the producer up and raise.
        """
        deadline = time.monotonic() + self.commit_s
        producer.flush(self.commit_s)
        if self._failures:  # the client would commit the transaction without these records
            first_failure = self._failures[0]
            self._give_up_and_raise(first_failure)
        if offsets:
            converted = self._source.convert_offsets(offsets)
            call_transactional(producer, "send_offsets_to_transaction", converted, membership, deadline=deadline)
        call_transactional(producer, "begin_commit", deadline=deadline)

    def _abort(self, producer: KafkaProducer) -> None:
        call_transactional(producer, "begin_abort", deadline=time.monotonic() + ABORT_S)

    def _close_producer(self, producer: KafkaProducer) -> None:
        close_producer(producer)

    def _code_and_text(self, error: Exception) -> tuple[int | None, str]:
        """Return the error's code in Kafka's protocol, None if it has no code, and its text in one line."""
        text = one_line(error)
        # The client may wrap an error; only the text then holds the code: "[Error 87] …".
        code_in_text = _CODE_IN_TEXT.search(text)
        if code_in_text:
            return int(code_in_text[1]), text
        code = getattr(error, "errno", None)  # kafka-python keeps Kafka's code in this attribute
        return code, text


def _add_failure(
    failures: list[Failure],
    topic: str,
    value: bytes | None,
    key: bytes | None,
    headers: Headers,
    error: Exception,
) -> None:
    """Note a record that was not delivered. The client calls this with the error as the last argument."""
    failures.append(Failure(error, topic, size=record_size(value, key, headers), lacks_key=key is None))
