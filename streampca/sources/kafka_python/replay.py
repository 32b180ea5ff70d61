"""Reads a dead-letter topic, and sends records again in transactions, on kafka-python."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from streampca.errors import SourceError
from streampca.settings import KafkaSettings
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.dead_letters import Unwrap
from streampca.sources.kafka_python.patches.fetching import position_of
from streampca.sources.kafka_python.patches.producing import drop, transactional
from streampca.sources.transactions import Outgoing
from streampca.stream.record import Record

_ANSWER_MS = 5000
_POLL_RECORDS, _FETCH_BYTES = 10_000, 4 * 1024 * 1024
_STALLED_S = 60.0  # without progress
_REQUEST_BYTES = 100 * 1024 * 1024  # a broker's own limit: the topic's limit decides
_TRANSACTION_MS = 60_000  # after which brokers abort a transaction whose producer was killed
_DELIVERY_TIMEOUT_MS = 50_000
_CLOSE_S = 1.0


class KafkaPythonReader:
    """See `streampca.sources.dead_letter_topic.TopicReader`."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._settings, self._topic = settings, topic
        self._connection = Connection(settings, topic)
        self._ends = self._end_offsets()
        self._consumer = self._connection.start(
            KafkaConsumer,
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_poll_records=_POLL_RECORDS,
            max_partition_fetch_bytes=_FETCH_BYTES,
        )
        self._consumer.assign(list(self._ends))

    def read(self) -> Iterator[tuple[int, Record]]:
        left = {tp: end for tp, end in self._ends.items() if end}
        self._consumer.seek_to_beginning()
        deadline = time.monotonic() + _STALLED_S
        while left:
            try:
                fetched = self._consumer.poll(200)
            except KafkaError as error:
                raise self._connection.source_error(error) from None
            for tp, records in fetched.items():
                yield from ((tp.partition, record) for record in records if record.offset < self._ends[tp])
            if fetched:
                deadline = time.monotonic() + _STALLED_S
            left = {tp: end for tp, end in left.items() if (position_of(self._consumer, tp) or 0) < end}
            if left and time.monotonic() > deadline:
                raise SourceError(
                    f"partition {min(left).partition} of {self._topic} cannot be read to its end: no broker answers, "
                    "or a transaction of another producer is open; try again later"
                )

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000)

    def _end_offsets(self) -> dict[TopicPartition, int]:
        """The high watermarks: a mark may be behind an open transaction, where readers of committed records stop."""
        consumer = self._connection.start(KafkaConsumer, group_id=None, isolation_level="read_uncommitted")
        try:
            tps = [TopicPartition(self._topic, partition) for partition in self._connection.partitions()]
            ends: dict[TopicPartition, int] = consumer.end_offsets(tps, timeout_ms=_ANSWER_MS)
            return ends
        except KafkaError as error:
            raise self._connection.source_error(error) from None
        finally:
            consumer.close(autocommit=False, timeout_ms=1000)


class KafkaPythonReplayProducer:
    """See `streampca.sources.dead_letter_topic.ReplayProducer`."""

    def __init__(self, settings: KafkaSettings, topic: str, dead_letter_topic: str) -> None:
        """Both topics must exist."""
        self._connection = Connection(settings, topic)
        self._producer = self._connection.start(
            KafkaProducer,
            transactional_id=f"streampca-replay-{dead_letter_topic}",
            transaction_timeout_ms=_TRANSACTION_MS,
            value_serializer=Unwrap(),
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            linger_ms=5,
            max_block_ms=30_000,
            max_request_size=_REQUEST_BYTES,
        )
        with self._failing():
            self._producer.init_transactions()

    def partitions(self) -> frozenset[int]:
        """The partitions of the topic."""
        return self._connection.partitions()

    def send(self, records: Sequence[Outgoing]) -> None:
        with self._failing():
            self._producer.begin_transaction()
            sent = [self._send(record) for record in records]
            self._producer.flush(_TRANSACTION_MS / 1000)
            for future in sent:
                future.get(0)  # raises its error: the client would commit the other records
            transactional(self._producer, "begin_commit", deadline=time.monotonic() + _TRANSACTION_MS / 1000)

    def close(self) -> None:
        try:
            self._producer.close(timeout=_CLOSE_S)
        except KafkaTimeoutError:
            drop(self._producer, _CLOSE_S)

    def _send(self, record: Outgoing) -> Any:
        # kafka-python 3 cannot write a header without a value: it becomes an empty one.
        headers = [(name, value or b"") for name, value in record.headers]
        timestamp = record.timestamp if record.timestamp >= 0 else None
        return self._producer.send(record.topic, (record.value,), record.key, headers, record.partition, timestamp)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Raise the errors of the client as `SourceError`; the next replay ends the transaction."""
        try:
            yield
        except KafkaError as error:
            drop(self._producer, _CLOSE_S)
            causes = [cause for cause in error.args if isinstance(cause, KafkaError)]
            cause = causes[0] if causes else error
            raise SourceError(
                f"{self._connection.source_error(cause)}; what was sent before is marked: start the replay again for "
                "the rest"
            ) from None
