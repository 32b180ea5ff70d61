"""The letters of a dead-letter topic, with what was replayed of them, and the interface to read and replay them."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from streampca.sources.dead_letter_headers import Origin, origin_of
from streampca.sources.replay_marks import Range, contains, marked_in, merged, replay_headers
from streampca.sources.transactions import Outgoing, OutgoingFields
from streampca.stream.record import Record


class TopicReader(Protocol):
    """Reads a topic. All methods raise `SourceError` if brokers refuse or do not answer."""

    def read(self) -> Iterator[tuple[int, Record]]:
        """The committed records with their partitions, those of a partition in order.

        Every call returns the same: from the earliest record to the ends when the reader was opened.
        """

    def close(self) -> None:
        """Close the connections."""


class ReplayProducer(Protocol):
    """Sends records in transactions. Opening one ends the transactions of any other with the same dead-letter topic.

    All methods raise `SourceError`; then nothing of the transaction is visible to readers of committed records, unless
    `send` was in its end: then all of it may be.
    """

    def send(self, records: Iterable[OutgoingFields]) -> None:
        """Send records as one transaction, and return when it is committed."""

    def close(self) -> None:
        """Close the connections."""


class LetterStatus(StrEnum):
    """What a replay does with a letter."""

    WAITING = "waiting"  # sends it
    REPLAYED = "replayed"  # was sent
    REPEATED = "repeated"  # an earlier letter is of the same record, which a worker has rejected twice after a crash


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter and where it lies."""

    partition: int
    offset: int
    record: Record
    origin: Origin
    status: LetterStatus

    @property
    def timestamp(self) -> int:
        """Of the rejected record, milliseconds since 1970; -1 if unknown."""
        return self.record.timestamp if self.origin.timestamp is None else self.origin.timestamp

    def to_replay(self, dead_letter_topic: str) -> Outgoing:
        """The rejected record, as it is sent again."""
        origin, record = self.origin, self.record
        headers = replay_headers(origin.headers, dead_letter_topic, self.partition, self.offset)
        return Outgoing(origin.topic, origin.partition, record.value, record.key, headers, self.timestamp)


class DeadLetterTopic:
    """All dead letters of a topic, as it is now."""

    def __init__(self, reader: TopicReader) -> None:
        """Reads the topic once, for the marks."""
        self._reader, self.others = reader, 0
        """Records that are neither dead letters nor marks."""
        marks: dict[int, list[Range]] = {}
        for partition, record in reader.read():
            if ranges := marked_in(record):
                marks.setdefault(partition, []).extend(ranges)
            elif ranges is None and origin_of(record.headers) is None:
                self.others += 1
        self._replayed = {partition: merged(ranges) for partition, ranges in marks.items()}

    def letters(self) -> Iterator[DeadLetter]:
        """All letters, those of a partition in order."""
        seen: set[bytes] = set()
        for partition, record in self._reader.read():
            origin = origin_of(record.headers)
            if origin is None:
                continue
            identity = _identity(record, origin)
            if contains(self._replayed.get(partition, ()), record.offset):
                status = LetterStatus.REPLAYED
            else:
                status = LetterStatus.REPEATED if identity in seen else LetterStatus.WAITING
            seen.add(identity)
            yield DeadLetter(partition, record.offset, record, origin, status)


def _identity(record: Record, origin: Origin) -> bytes:
    """The same for two letters of one record; a topic that was created again has other records at its offsets."""
    content = (origin.topic, origin.partition, origin.offset, record.key, record.value)
    return hashlib.blake2b(repr(content).encode(), digest_size=16).digest()
