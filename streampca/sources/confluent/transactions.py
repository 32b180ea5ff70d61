"""Transactions on confluent-kafka."""

import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from streampca.errors import SourceError
from streampca.settings import ConsumerSettings
from streampca.sources.base import Committed
from streampca.sources.broker_errors import one_line
from streampca.sources.confluent import client
from streampca.sources.confluent.connection import Connection
from streampca.sources.confluent.source import ConfluentSource
from streampca.sources.transactions import OutgoingFields, TransactionFailedError

_BEGIN_S, _COMMIT_S, _ABORT_S, _ROOM_S = 5.0, 10.0, 2.0, 5.0
_ANY = -1  # partition: the key decides
_REQUEST_BYTES = 100 * 1024 * 1024  # a broker's own limit: the topic's limit decides
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}
_REFUSED = {  # of the errors of whole transactions; all others may be over with the next one
    KafkaError._AUTHENTICATION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class ConfluentTransactions:
    """See `streampca.sources.transactions.Transactions`."""

    def __init__(self, settings: ConsumerSettings, source: ConfluentSource, topics: Sequence[str]) -> None:
        """`topics` are those that will be written to; they exist. Raises `SourceError`."""
        self._settings, self._source = settings, source
        self._connections = {topic: Connection(settings, topic) for topic in topics}
        self._first = topics[0]
        self._id = f"{settings.group}-{settings.group_instance_id or uuid.uuid4().hex}"
        self._undelivered: list[tuple[KafkaError, str]] = []  # errors of records, with their topics
        self._producer: Producer | None = None
        self._open = False

    def partitions(self, topic: str) -> int:
        connection = self._connections[topic]
        connection.topic_id()
        return len(connection.partitions())

    def recover(self) -> None:
        if self._producer is not None:
            return
        self._undelivered = []
        producer = client.create(Producer, self._options())
        try:
            producer.init_transactions(_BEGIN_S)
        except KafkaException as error:
            self._raise_refusal(error.args[0], self._first)
            raise TimeoutError(f"no transaction can begin: {one_line(error.args[0].str())}") from None
        self._producer = producer

    def send(self, records: Iterable[OutgoingFields]) -> None:
        produce: Any = self._begun().produce
        for topic, partition, value, key, headers, timestamp in records:
            # librdkafka replaces a timestamp of 0 by the current time, and takes no other number for that. All
            # arguments are positional, since naming some of them takes half as long as the call itself.
            place, at = _ANY if partition is None else partition, timestamp or 1 if timestamp >= 0 else 0
            try:
                produce(topic, value, key, place, None, None, at, headers)
            except BufferError:
                self._wait_for_room()
                produce(topic, value, key, place, None, None, at, headers)
            except KafkaException as error:
                self._fail(error.args[0], topic)

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        producer, membership = self._begun(), self._source.membership
        if membership is None:
            self._drop()
            raise TransactionFailedError("the group has given this member up")
        sent = [TopicPartition(self._settings.topic, partition, *found) for partition, found in offsets.items()]
        deadline = time.monotonic() + _COMMIT_S
        try:
            producer.send_offsets_to_transaction(sent, membership, _COMMIT_S)
            producer.commit_transaction(max(deadline - time.monotonic(), 0.001))
        except KafkaException as error:
            self._fail(error.args[0], self._first)
        self._open = False

    def abort(self) -> None:
        if self._producer is None or not self._open:
            return
        self._open = False
        try:
            self._producer.abort_transaction(_ABORT_S)
        except KafkaException:
            self._drop()  # the next producer of this id ends the transaction

    def close(self) -> None:
        self.abort()
        self._drop()

    def _begun(self) -> Producer:
        """The producer, in a transaction."""
        if self._producer is None:
            raise TransactionFailedError("the last transaction has failed")
        if not self._open:
            try:
                self._producer.begin_transaction()
            except KafkaException as error:
                self._fail(error.args[0], self._first)
            self._open = True
        return self._producer

    def _wait_for_room(self) -> None:
        """Wait until everything sent so far is delivered."""
        if self._producer is None or self._producer.flush(_ROOM_S):
            self._drop()
            raise TransactionFailedError("the brokers take no records")

    def _fail(self, error: KafkaError, topic: str) -> NoReturn:
        """Raise the error of a record to that topic, or of the transaction; the next one has a producer of its own."""
        if self._producer is not None:
            with contextlib.suppress(KafkaException):  # of a producer that is fenced
                self._producer.poll(0)  # reports what was not delivered
        self._drop()
        for each, its_topic in self._undelivered:
            if client.is_final(each):
                raise self._record_error(each, its_topic)
        self._raise_refusal(error, topic)
        raise TransactionFailedError(one_line(error.str()))

    def _raise_refusal(self, error: KafkaError, topic: str) -> None:
        if error.code() in _REFUSED:
            raise self._record_error(error, topic)

    def _record_error(self, error: KafkaError, topic: str) -> SourceError:
        connection = self._connections[topic]
        if error.code() in _TOO_LARGE:
            return connection.sentences.record_too_large()
        return connection.source_error(error)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._undelivered.append((error, message.topic()))

    def _drop(self) -> None:
        """Give the producer up, and what it has not sent; its transaction ends when the next one begins."""
        if self._producer is not None:
            self._producer.purge()
        self._producer, self._open = None, False

    def _options(self) -> dict[str, Any]:
        return client.connection_options(self._settings) | {
            "transactional.id": self._id,
            "transaction.timeout.ms": int(self._settings.session_timeout_s * 1000),
            "message.max.bytes": _REQUEST_BYTES,
            "linger.ms": 5,
            "partitioner": "murmur2_random",  # as other clients: equal keys go to the same partition
            "on_delivery": self._on_delivery,
            "delivery.report.only.error": True,
        }
