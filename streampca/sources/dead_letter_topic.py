"""The letters of a dead-letter topic, with what was replayed of them."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from streampca.fold.record import Record
from streampca.sources.dead_letter_headers import Origin, origin_of
from streampca.sources.replay_marks import marked_in, replay_headers
from streampca.sources.transactions import Outgoing

ReadTopic: TypeAlias = Callable[[], Iterator[tuple[int, Record]]]
"""Reads the committed records with their partitions, those of a partition in order; the same ones at every call."""


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

    def to_replay(self, dead_letter_topic: str) -> Outgoing:
        """The rejected record, as it is sent again."""
        origin, record = self.origin, self.record
        headers = replay_headers(origin.headers, dead_letter_topic, self.partition, self.offset)
        return Outgoing(origin.topic, origin.partition, record.value, record.key, headers, origin.timestamp)


class DeadLetterTopic:
    """All dead letters of a topic, as it is now."""

    def __init__(self, read: ReadTopic) -> None:
        """Reads the topic once, for the marks. Raises `SourceError`."""
        self._read, self.others = read, 0
        """Records that are neither dead letters nor marks."""
        self._replayed: set[tuple[int, int]] = set()  # partitions and offsets
        for partition, record in read():
            if offsets := marked_in(record):
                self._replayed.update((partition, offset) for offset in offsets)
            elif offsets is None and origin_of(record.headers) is None:
                self.others += 1

    def letters(self) -> Iterator[DeadLetter]:
        """All letters, those of a partition in order."""
        seen: set[bytes] = set()
        for partition, record in self._read():
            origin = origin_of(record.headers)
            if origin is None:
                continue
            identity = _identity(record, origin)
            if (partition, record.offset) in self._replayed:
                status = LetterStatus.REPLAYED
            else:
                status = LetterStatus.REPEATED if identity in seen else LetterStatus.WAITING
            seen.add(identity)
            yield DeadLetter(partition, record.offset, record, origin, status)


def _identity(record: Record, origin: Origin) -> bytes:
    """The same for two letters of one record; a topic that was created again has other records at its offsets."""
    content = (origin.topic, origin.partition, origin.offset, record.key, record.value)
    return hashlib.blake2b(repr(content).encode(), digest_size=16).digest()
