"""Transactions on kafka-python."""

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from streampca.sources.base import Committed
from streampca.sources.broker_errors import NoBrokerError, one_line
from streampca.sources.client_transactions import ABORT_S, REQUEST_BYTES, ClientTransactions
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.dead_letters import DELIVERY_TIMEOUT_MS, Unwrap, sendable
from streampca.sources.kafka_python.patches.producing import drop, transactional
from streampca.sources.transactions import OutgoingFields

_CLOSE_S = 0.5


class KafkaPythonTransactions(ClientTransactions):
    """See `streampca.sources.client_transactions.ClientTransactions`."""

    client_error = KafkaError

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for topic in self._topics:
            self._count(topic)

    def partitions(self, topic: str) -> int:
        try:
            return self._count(topic)
        except NoBrokerError as error:
            raise TimeoutError(str(error)) from None

    def _create(self) -> KafkaProducer:
        return Connection(self._settings, self._topics[0]).start(
            KafkaProducer,
            transactional_id=self._name,
            transaction_timeout_ms=int(self._timeout_s * 1000),
            value_serializer=Unwrap(),
            acks="all",
            linger_ms=5,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,  # a record that expires would not fail its transaction
            max_block_ms=int(self.begin_s * 1000),
            max_request_size=REQUEST_BYTES,
        )

    def _initialise(self, producer: KafkaProducer) -> None:
        producer.init_transactions()

    def _send(self, producer: KafkaProducer, records: Iterable[OutgoingFields]) -> None:
        undelivered = self._undelivered
        for topic, partition, value, key, headers, timestamp in records:
            at = timestamp if timestamp >= 0 else None
            try:
                sent = producer.send(topic, (value,), key, sendable(headers), partition, at)
            except KafkaError as error:
                self._fail(error, topic)
            sent.add_errback(lambda error, topic=topic: undelivered.append((error, topic)))

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
        return getattr(error, "errno", None), one_line(error)

    def _count(self, topic: str) -> int:
        connection = Connection(self._settings, topic)
        with closing(connection.start(KafkaConsumer)):
            return len(connection.partitions())
