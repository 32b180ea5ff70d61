"""Transactions on kafka-python."""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import (
    AuthorizationError,
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from kafka.structs import OffsetAndMetadata

from streampca.settings import ConsumerSettings
from streampca.sources.base import Committed
from streampca.sources.broker_errors import BrokerErrors, NoBrokerError, one_line
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.dead_letters import Unwrap
from streampca.sources.kafka_python.patches.producing import drop, transactional
from streampca.sources.kafka_python.source import KafkaPythonSource, ended
from streampca.sources.transactions import Outgoing, OutgoingFields, TransactionFailedError

_BEGIN_S, _COMMIT_S, _ABORT_S, _CLOSE_S = 5.0, 10.0, 2.0, 0.5
_REQUEST_BYTES = 100 * 1024 * 1024  # a broker's own limit: the topic's limit decides
_DELIVERY_TIMEOUT_MS = 2**31 - 1  # a record that expires would not fail its transaction
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
_REFUSED = (AuthorizationError, InvalidTimestampError, *_TOO_LARGE)


class KafkaPythonTransactions:
    """See `streampca.sources.transactions.Transactions`."""

    def __init__(self, settings: ConsumerSettings, source: KafkaPythonSource, topics: Sequence[str]) -> None:
        """`topics` are those that will be written to; they exist. Raises `SourceError`."""
        self._settings, self._source, self._topics = settings, source, topics
        self._id = f"{settings.group}-{settings.group_instance_id or uuid.uuid4().hex}"
        self._undelivered: list[tuple[BaseException, str]] = []  # of this transaction's records, with their topics
        self._connection: Connection  # of the producer
        self._producer: KafkaProducer | None = None
        self._open = False
        for topic in topics:
            self._count(topic)

    def partitions(self, topic: str) -> int:
        try:
            return self._count(topic)
        except NoBrokerError as error:
            raise TimeoutError(str(error)) from None

    def recover(self) -> None:
        if self._producer is not None:
            return
        self._connection = Connection(self._settings, self._topics[0])
        try:
            self._producer = self._connection.start(KafkaProducer, **self._options())
            self._producer.init_transactions()
        except NoBrokerError as error:
            raise TimeoutError(str(error)) from None
        except KafkaError as error:
            self._drop()
            self._raise_refusal(error, self._topics[0])
            raise TimeoutError(f"no transaction can begin: {one_line(error)}") from None

    def send(self, records: Iterable[OutgoingFields]) -> None:
        producer = self._begun()
        for record in records:
            self._send(producer, Outgoing(*record))

    def _send(self, producer: KafkaProducer, record: Outgoing) -> None:
        # kafka-python 3 cannot write a header without a value: it becomes an empty one.
        headers = [(name, value or b"") for name, value in record.headers]
        timestamp = record.timestamp if record.timestamp >= 0 else None
        try:
            sent = producer.send(record.topic, (record.value,), record.key, headers, record.partition, timestamp)
        except KafkaError as error:
            self._fail(error, record.topic)
        sent.add_errback(partial(_note, self._undelivered, record.topic))

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        producer, membership = self._begun(), self._source.membership
        if membership is None or membership.generation_id < 0:
            self._drop()
            raise TransactionFailedError("the group has given this member up")
        sent = {
            TopicPartition(self._settings.topic, partition): OffsetAndMetadata(offset, ended(metadata), -1)
            for partition, (offset, metadata) in offsets.items()
        }
        deadline = time.monotonic() + _COMMIT_S
        try:
            producer.flush(_COMMIT_S)
            if self._undelivered:  # the client would commit the others
                self._fail(*self._undelivered[0])
            transactional(producer, "send_offsets_to_transaction", sent, membership, deadline=deadline)
            transactional(producer, "begin_commit", deadline=deadline)
        except KafkaError as error:
            self._fail(error, self._topics[0])
        self._open = False

    def abort(self) -> None:
        if self._producer is None or not self._open:
            return
        self._open = False
        try:
            transactional(self._producer, "begin_abort", deadline=time.monotonic() + _ABORT_S)
        except KafkaError:
            self._drop()  # the next producer of this id ends the transaction

    def close(self) -> None:
        self.abort()
        self._drop()

    def _begun(self) -> KafkaProducer:
        """The producer, in a transaction."""
        if self._producer is None:
            raise TransactionFailedError("the last transaction has failed")
        if not self._open:
            try:
                self._producer.begin_transaction()
            except KafkaError as error:
                self._fail(error, self._topics[0])
            self._open, self._undelivered = True, []
        return self._producer

    def _fail(self, error: BaseException, topic: str) -> NoReturn:
        """Raise the error of a record to that topic, or of the transaction; the next one has a producer of its own."""
        self._drop()
        for each, its_topic in [*self._undelivered, (error, topic)]:
            self._raise_refusal(each, its_topic)
        raise TransactionFailedError(one_line(error)) from None

    def _raise_refusal(self, error: BaseException, topic: str) -> None:
        if isinstance(error, _TOO_LARGE):
            raise BrokerErrors(self._settings, topic).record_too_large() from None
        if isinstance(error, _REFUSED):
            raise BrokerErrors(self._settings, topic).other(one_line(error)) from None

    def _drop(self) -> None:
        """Give the producer up, and what it has not sent; its transaction ends when the next one begins."""
        if self._producer is not None:
            drop(self._producer, _CLOSE_S)
        self._producer, self._open = None, False

    def _count(self, topic: str) -> int:
        connection = Connection(self._settings, topic)
        consumer = connection.start(KafkaConsumer)
        count = len(connection.partitions())
        consumer.close(autocommit=False)
        return count

    def _options(self) -> dict[str, Any]:
        return {
            "transactional_id": self._id,
            "transaction_timeout_ms": int(self._settings.session_timeout_s * 1000),
            "value_serializer": Unwrap(),
            "acks": "all",
            "linger_ms": 5,
            "delivery_timeout_ms": _DELIVERY_TIMEOUT_MS,
            "max_block_ms": int(_BEGIN_S * 1000),
            "max_request_size": _REQUEST_BYTES,
        }


def _note(undelivered: list[tuple[BaseException, str]], topic: str, error: BaseException) -> None:
    undelivered.append((error, topic))
