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
from streampca.sources.client_connection import one_line
from streampca.sources.client_transactions import (
    ABORT_S,
    REQUEST_BYTES,
    ClientProducer,
    ClientTransactions,
    Undelivered,
)
from streampca.sources.kafka_python.connection import KafkaPythonAdmin, KafkaPythonConnection
from streampca.sources.kafka_python.patches import call_transactional, drop
from streampca.sources.record_size import record_size

_CODE_IN_TEXT = re.compile(r"\[Error (\d+)\]")
_DELIVERY_TIMEOUT_MS = 2**31 - 1  # waits for an absent broker without limit
_CLOSE_TIMEOUT_S = 0.5


class _UnwrapValue(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """Takes the value out of a tuple.

    Without a serializer, the producer refuses a record with neither key nor value. A tuple is not None, so it does not.
    """

    def serialize(self, topic: str, headers: Any, data: tuple[bytes | None]) -> bytes | None:
        return data[0]


def _without_null(headers: Sequence[Header]) -> list[tuple[str, bytes]]:
    """Return headers whose values are empty where they were None, which the producer cannot write."""
    return [(name, value or b"") for name, value in headers]


class _Record(NamedTuple):
    """A record of the producer's topic."""

    value: bytes | None
    key: bytes | None
    headers: Sequence[Header]
    partition: int | None  # None: the key decides


class _Sent(NamedTuple):
    """A record that was handed to the client."""

    future: Any  # the broker's answer
    record: _Record
    time_ms: int | None  # since 1970; None: the time of sending


class KafkaPythonProducer(ClientProducer):
    """See `streampca.sources.client_transactions.ClientProducer`."""

    _connection: KafkaPythonConnection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unacknowledged: deque[_Sent] = deque()  # in the order of sending
        self._connection = KafkaPythonConnection(self._settings, self._topic)
        self._producer = self._connection.start(
            KafkaProducer,
            value_serializer=_UnwrapValue(),
            acks="all",
            enable_idempotence=self._is_idempotent,
            # One request at a time keeps the order; a repeated letter is recognised by the offset in its headers.
            max_in_flight_requests_per_connection=1,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            max_block_ms=int(self._room_timeout_s * 1000),
            max_request_size=REQUEST_BYTES,
        )
        try:
            with self._connection.explained_errors():
                self._producer.partitions_for(self._topic)  # asked for now, so that `produce` never waits for them
        except SourceError:
            self.close()
            raise

    def produce(
        self,
        value: bytes | None,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        record = _Record(value=value, key=key, headers=headers, partition=partition)
        self._unacknowledged.append(self._hand_over(record))

    def _hand_over(self, record: _Record, time_ms: int | None = None) -> _Sent:
        """Hand a record to the client. If `time_ms` is None, the record gets the time of sending."""
        with self._connection.explained_errors():
            future = self._producer.send(
                self._topic,
                (record.value,),  # see `_UnwrapValue`
                record.key,
                headers=_without_null(record.headers),
                partition=record.partition,
                timestamp_ms=time_ms,
            )
        return _Sent(future, record, time_ms)

    def _wait_for_acknowledgements(self, timeout_s: float) -> int:
        while self._unacknowledged:
            oldest = self._unacknowledged[0]
            try:
                oldest.future.get(timeout_s)
            except KafkaError as error:
                is_timeout = oldest.future.exception is not error  # `get` has raised it, and not the broker
                if is_timeout:
                    break
                time_ms = self._time_to_resend_with(getattr(error, "errno", None), oldest.record.headers)
                was_sent_with_other_time = oldest.time_ms is not None
                if was_sent_with_other_time or time_ms is None:
                    raise self._connection.source_error(error) from None
                self._unacknowledged.append(self._hand_over(oldest.record, time_ms))
            self._unacknowledged.popleft()
        return len(self._unacknowledged)

    def close(self) -> None:
        drop(self._producer, _CLOSE_TIMEOUT_S)


class KafkaPythonTransactions(ClientTransactions):
    """See `streampca.sources.client_transactions.ClientTransactions`."""

    client_error = KafkaError
    admin = KafkaPythonAdmin
    batch_bytes = 0  # the client splits a batch that is too large, so each record that fails was alone

    def _start(self) -> None:
        self._producer = KafkaPythonConnection(self._settings, self._topics[0]).start(
            KafkaProducer,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=int(self._timeout_s * 1000),
            value_serializer=_UnwrapValue(),
            acks="all",
            linger_ms=5,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,  # a record that expires would not fail its transaction
            max_block_ms=int(self.begin_s * 1000),
            max_request_size=REQUEST_BYTES,
        )
        self._producer.init_transactions()

    def _send(self, producer: KafkaProducer, records: Iterable[OutgoingFields]) -> None:
        undelivered = self._undelivered  # of this transaction: a late error belongs to its own one
        for topic, partition, value, key, headers, timestamp in records:
            time_ms = timestamp if timestamp >= 0 else None  # None: the time of sending
            try:
                future = producer.send(
                    topic,
                    (value,),  # see `_UnwrapValue`
                    key,
                    headers=_without_null(headers),
                    partition=partition,
                    timestamp_ms=time_ms,
                )
            except KafkaError as error:
                self._fail(error, topic, record_size(value, key, headers))
            future.add_errback(partial(_note_undelivered, undelivered, topic, value, key, headers))

    def _commit(self, producer: KafkaProducer, offsets: Mapping[int, Committed], membership: Any) -> None:
        deadline = time.monotonic() + self.commit_s
        producer.flush(self.commit_s)
        if self._undelivered:  # the client would commit the transaction without these records
            self._fail(*self._undelivered[0])
        if offsets:
            converted = self._source.convert_offsets(offsets)
            call_transactional(producer, "send_offsets_to_transaction", converted, membership, deadline=deadline)
        call_transactional(producer, "begin_commit", deadline=deadline)

    def _abort(self, producer: KafkaProducer) -> None:
        call_transactional(producer, "begin_abort", deadline=time.monotonic() + ABORT_S)

    def _give_up(self, producer: KafkaProducer) -> None:
        drop(producer, _CLOSE_TIMEOUT_S)

    def _code_and_text(self, error: Exception) -> tuple[int | None, str]:
        text = one_line(error)
        in_text = _CODE_IN_TEXT.search(text)  # of an error that the client does not expect, its text has the code
        code = int(in_text[1]) if in_text else getattr(error, "errno", None)
        return code, text


def _note_undelivered(
    undelivered: list[Undelivered],
    topic: str,
    value: bytes | None,
    key: bytes | None,
    headers: Headers,
    error: Exception,
) -> None:
    """Note the error of a record. The client calls this with the error as the last argument."""
    undelivered.append(Undelivered(error, topic, record_size(value, key, headers)))
