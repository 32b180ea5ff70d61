"""Reads a dead-letter topic, and sends records again in transactions, on kafka-python."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager

from kafka import KafkaConsumer, TopicPartition

from streampca.errors import SourceError
from streampca.formats.record import Record
from streampca.settings.kafka import KafkaSettings
from streampca.sources.base import OutgoingFields, RecordRefusedError, TransactionFailedError
from streampca.sources.client_source import FETCH_BYTES
from streampca.sources.kafka_python.connection import Connection
from streampca.sources.kafka_python.patches import position_of
from streampca.sources.kafka_python.transactions import KafkaPythonTransactions
from streampca.sources.record_times import RecordTimes

_ANSWER_MS = 5000
_POLL_RECORDS = 10_000
_STALLED_S = 60.0  # without progress


class KafkaPythonReader:
    """Reads the committed records of a topic, from the earliest to the ends when the reader was opened.

    All methods raise `SourceError` if brokers refuse or do not answer.
    """

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._connection = Connection(settings, topic)
        # The high watermarks: a mark may be behind an open transaction, where readers of committed records stop.
        uncommitted = self._connection.start(KafkaConsumer, group_id=None, isolation_level="read_uncommitted")
        with closing(uncommitted), self._connection.answers():
            tps = [TopicPartition(topic, partition) for partition in self._connection.partitions()]
            self._ends: dict[TopicPartition, int] = uncommitted.end_offsets(tps, timeout_ms=_ANSWER_MS)
        self._consumer = self._connection.start(
            KafkaConsumer,
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_poll_records=_POLL_RECORDS,
            max_partition_fetch_bytes=FETCH_BYTES,
        )

    def read(self) -> Iterator[tuple[int, Record]]:
        """The records with their partitions; the same ones at every call."""
        self._consumer.assign(list(self._ends))
        self._consumer.seek_to_beginning()
        yield from self._read_to(self._ends)

    def between(self, partition: int, start: int, end: int) -> Iterator[Record]:
        """The records of a partition from one offset to before another. Raises `SourceError` if they are gone."""
        tp = TopicPartition(self._topic, partition)
        if end > self._ends.get(tp, 0):
            raise SourceError(f"partition {partition} of {self._topic} ends at offset {self._ends.get(tp, 0)}")
        if start < (first := self._consumer.beginning_offsets([tp], timeout_ms=_ANSWER_MS)[tp]):
            raise SourceError(f"partition {partition} of {self._topic} begins at offset {first}: older ones are gone")
        self._consumer.assign([tp])
        self._consumer.seek(tp, start)
        yield from (record for _, record in self._read_to({tp: end}))

    def ends(self) -> dict[int, int]:
        """The high watermark of each partition when the reader was opened."""
        return {tp.partition: end for tp, end in self._ends.items()}

    def bounds(self) -> dict[int, tuple[int, int]]:
        """The earliest offset and the end of each partition."""
        with self._connection.answers():
            first = self._consumer.beginning_offsets(list(self._ends), timeout_ms=_ANSWER_MS)
            end = self._consumer.end_offsets(list(self._ends), timeout_ms=_ANSWER_MS)
        return {tp.partition: (first[tp], end[tp]) for tp in sorted(self._ends)}

    def newest_records(self, bounds: Mapping[int, tuple[int, int]], count: int) -> list[tuple[int, Record]]:
        """About `count` of the last records of these partitions, as many of each, the newest last; with its partition.

        They are those that came in time: an open transaction may block others.
        """
        tps = {TopicPartition(self._topic, partition): end for partition, (_, end) in bounds.items()}
        self._consumer.assign(list(tps))
        for tp, end in tps.items():
            self._consumer.seek(tp, max(end - -(-count // len(tps)), bounds[tp.partition][0]))
        deadline, records = time.monotonic() + _ANSWER_MS / 1000, list[tuple[int, Record]]()
        while time.monotonic() < deadline and any((position_of(self._consumer, tp) or 0) < tps[tp] for tp in tps):
            with self._connection.answers():
                fetched = self._consumer.poll(200)
            records += [(tp.partition, record) for tp, found in fetched.items() for record in found]
        return sorted(records, key=lambda found: int(found[1].timestamp))

    def _read_to(self, ends: Mapping[TopicPartition, int]) -> Iterator[tuple[int, Record]]:
        left = {tp: end for tp, end in ends.items() if end}
        deadline = time.monotonic() + _STALLED_S
        while left:
            with self._connection.answers():
                fetched = self._consumer.poll(200)
            for tp, records in fetched.items():
                yield from ((tp.partition, record) for record in records if record.offset < ends[tp])
            if fetched:
                deadline = time.monotonic() + _STALLED_S
            left = {tp: end for tp, end in left.items() if (position_of(self._consumer, tp) or 0) < end}
            if left and time.monotonic() > deadline:
                raise SourceError(
                    f"partition {min(left).partition} of {self._topic} cannot be read to its end: no broker answers, "
                    "or a transaction of another producer is open; try again later"
                )

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close(autocommit=False, timeout_ms=1000)


class KafkaPythonReplayProducer(KafkaPythonTransactions):
    """Sends records in transactions. Opening one ends the transactions of any other with the same dead-letter topic.

    All methods raise `SourceError`; then nothing of the transaction is visible to readers of committed records, unless
    `send` was in its end: then all of it may be.
    """

    begin_s, commit_s = 30.0, 60.0  # a person waits; brokers abort the transaction of a killed one after the latter

    def __init__(self, settings: KafkaSettings, topic: str, dead_letter_topic: str) -> None:
        """Both topics must exist."""
        super().__init__(settings, [topic, dead_letter_topic], f"streampca-replay-{dead_letter_topic}", self.commit_s)
        self._times, self.replaced = RecordTimes(topic, self), 0  # records with the time of sending, so far
        with _failing():
            self.recover()

    def send(self, records: Iterable[OutgoingFields]) -> None:
        """Send records as one transaction, and return when it is committed."""
        records = list(records)
        with _failing():
            while True:
                sendable, replaced = self._times.sendable(records)
                try:
                    super().send(sendable)
                    self.commit({})
                    break
                except RecordRefusedError as error:
                    self._times.retry(error)
                    self.recover()
        self._times.tries = 0
        self.replaced += replaced


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except (TransactionFailedError, TimeoutError, SourceError) as error:
        raise SourceError(f"{error}; what was sent before is marked: start the replay again for the rest") from None
