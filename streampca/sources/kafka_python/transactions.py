"""Transactions and dead letters on kafka-python."""

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.serializer import Serializer

from streampca.errors import SourceError
from streampca.sources.base import Committed, Header, OutgoingFields
from streampca.sources.client_connection import one_line
from streampca.sources.client_transactions import ABORT_S, REQUEST_BYTES, ClientProducer, ClientTransactions
from streampca.sources.kafka_python.connection import Connection, KafkaPythonAdmin
from streampca.sources.kafka_python.patches import drop, transactional
from streampca.sources.record_size import record_size

_IN_TEXT = re.compile(r"\[Error (\d+)\]")  # the code
_DELIVERY_TIMEOUT_MS = 2**31 - 1  # waits for an absent broker without limit
_CLOSE_S = 0.5


class _Unwrap(Serializer):  # type: ignore[misc]  # kafka-python has no types
    """Unwraps the value: the producer refuses records with neither key nor value, unless a serializer creates them."""

    def serialize(self, topic: str, headers: Any, data: tuple[bytes | None]) -> bytes | None:
        return data[0]


def _sendable(headers: Sequence[Header]) -> list[tuple[str, bytes]]:
    """The producer cannot write a header without a value: it becomes an empty one."""
    return [(name, value or b"") for name, value in headers]


_Record: TypeAlias = tuple[bytes | None, bytes | None, Sequence[Header], int | None]
"""Value, key, headers and partition."""


class _Sent(NamedTuple):
    """A record that the client was given."""

    future: Any  # of the broker's answer
    record: _Record
    time_ms: int | None  # since 1970; None: the time of sending


class KafkaPythonProducer(ClientProducer):
    """See `streampca.sources.client_transactions.ClientProducer`."""

    _connection: Connection

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unacknowledged: deque[_Sent] = deque()  # in the order sent
        self._connection = Connection(self._settings, self._topic)
        self._producer = self._connection.start(
            KafkaProducer,
            value_serializer=_Unwrap(),
            acks="all",
            # One request at a time keeps the order; a repeated letter is recognised by the offset in its headers.
            enable_idempotence=self._is_idempotent,
            max_in_flight_requests_per_connection=1,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            max_block_ms=int(self._room_s * 1000),
            max_request_size=REQUEST_BYTES,
        )
        try:
            with self._connection.answers():
                self._producer.partitions_for(self._topic)  # fetched here, so that `produce` never waits for them
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
        self._unacknowledged.append(self._give((value, key, headers, partition)))

    def _give(self, record: _Record, time_ms: int | None = None) -> _Sent:
        """Give a record to the client; without a time, it gets the time of sending."""
        value, key, headers, partition = record
        with self._connection.answers():
            future = self._producer.send(self._topic, (value,), key, _sendable(headers), partition, time_ms)
        return _Sent(future, record, time_ms)

    def _await(self, timeout_s: float) -> int:
        while self._unacknowledged:
            first = self._unacknowledged[0]
            try:
                first.future.get(timeout_s)
            except KafkaError as error:
                if first.future.exception is not error:  # it is the end of waiting
                    break
                time_ms = self._other_time(getattr(error, "errno", None), first.record[2])
                if first.time_ms is not None or time_ms is None:
                    raise self._connection.source_error(error) from None
                self._unacknowledged.append(self._give(first.record, time_ms))
            self._unacknowledged.popleft()
        return len(self._unacknowledged)

    def close(self) -> None:
        drop(self._producer, _CLOSE_S)


class KafkaPythonTransactions(ClientTransactions):
    """See `streampca.sources.client_transactions.ClientTransactions`."""

    client_error = KafkaError  # the client splits a batch that is too large, so each record that fails was alone
    admin = KafkaPythonAdmin

    def _start(self) -> None:
        self._producer = Connection(self._settings, self._topics[0]).start(
            KafkaProducer,
            transactional_id=self._name,
            transaction_timeout_ms=int(self._timeout_s * 1000),
            value_serializer=_Unwrap(),
            acks="all",
            linger_ms=5,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,  # a record that expires would not fail its transaction
            max_block_ms=int(self.begin_s * 1000),
            max_request_size=REQUEST_BYTES,
        )
        self._producer.init_transactions()

    def _send(self, producer: KafkaProducer, records: Iterable[OutgoingFields]) -> None:
        undelivered = self._undelivered
        for topic, partition, value, key, headers, timestamp in records:
            at = timestamp if timestamp >= 0 else None
            try:
                sent = producer.send(topic, (value,), key, _sendable(headers), partition, at)
            except KafkaError as error:
                self._fail(error, topic, record_size(value, key, headers))
            sent.add_errback(
                lambda error, topic=topic, record=(value, key, headers): undelivered.append(
                    (error, topic, record_size(*record))
                )
            )

    def _commit(self, producer: KafkaProducer, offsets: Mapping[int, Committed], membership: Any) -> None:
        deadline = time.monotonic() + self.commit_s
        producer.flush(self.commit_s)
        if self._undelivered:  # the client would commit the others
            self._fail(*self._undelivered[0])
        if offsets:
            named = self._source.named(offsets)
            transactional(producer, "send_offsets_to_transaction", named, membership, deadline=deadline)
        transactional(producer, "begin_commit", deadline=deadline)

    def _abort(self, producer: KafkaProducer) -> None:
        transactional(producer, "begin_abort", deadline=time.monotonic() + ABORT_S)

    def _give_up(self, producer: KafkaProducer) -> None:
        drop(producer, _CLOSE_S)

    def _described(self, error: Exception) -> tuple[int | None, str]:
        found = _IN_TEXT.search(text := one_line(error))  # of errors that the client does not expect
        return int(found[1]) if found else getattr(error, "errno", None), text
