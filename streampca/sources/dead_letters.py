"""Dead letters: their headers, as Kafka Connect writes them, and the marks of those that were replayed.

A mark is a record of the dead-letter topic itself, in the same partition as the letters and written in the transaction
that sends them. So the two cannot disagree, and a log never loses a mark before its letters.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from streampca.formats.record import Record
from streampca.sources.base import Headers, Outgoing

_NAMES = [
    f"__connect.errors.{name}"
    for name in ("topic", "partition", "offset", "exception.class.name", "exception.message", "timestamp")
]
_HEADER = "streampca.replayed"
_REPLAYS = "streampca.replays"
_LETTER = "streampca.dead-letter"

ReadTopic: TypeAlias = Callable[[], Iterator[tuple[int, Record]]]
"""Reads the committed records with their partitions, each partition's in order; the same ones at every call."""


def dead_letter_headers(topic: str, partition: int, record: Record, reason: str, message: str) -> Headers:
    """The record's own headers, then where it comes from and why it was rejected.

    A dead letter has the time of sending, from which retention counts. A topic refuses that time if this machine's
    clock is wrong; then the letter is sent with the record's time (`own_time`).
    """
    values = (topic, str(partition), str(record.offset), reason, message, str(record.timestamp))
    errors = ((name, value.encode(errors="backslashreplace")) for name, value in zip(_NAMES, values, strict=True))
    return [*record.headers, *errors]


class Origin(NamedTuple):
    """The record that a dead letter was made of, and why it was rejected."""

    topic: str
    partition: int
    offset: int
    reason: str
    message: str
    timestamp: int  # milliseconds since 1970; -1 if unknown
    headers: Headers  # the record's own


def origin_of(headers: Sequence[tuple[str, bytes | None]]) -> Origin | None:
    """The origin that the headers of a dead letter name; None if the record is no dead letter."""
    own, errors = list(headers[: -len(_NAMES)]), headers[-len(_NAMES) :]
    if [name for name, _ in errors] != _NAMES:
        return None
    try:
        topic, partition, offset, reason, message, timestamp = ((value or b"").decode() for _, value in errors)
        return Origin(topic, int(partition), int(offset), reason, message, int(timestamp), own)
    except ValueError:
        return None


def own_time(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """The time of the rejected record (milliseconds since 1970), which a dead letter's headers name; -1 if unknown."""
    origin = origin_of(headers)
    return -1 if origin is None else origin.timestamp


class LetterStatus(StrEnum):
    """The letter's part in a replay."""

    WAITING = "waiting"  # sends it
    REPLAYED = "replayed"  # was sent
    REPEATED = "repeated"  # an earlier letter is of the same record, which a worker has rejected twice after a crash


class DeadLetter(NamedTuple):
    """A dead letter and where it lies."""

    partition: int
    offset: int
    record: Record
    origin: Origin
    status: LetterStatus

    def to_replay(self, dead_letter_topic: str) -> Outgoing:
        """The rejected record, as it is sent again: with how often it was replayed, and where its dead letter lies."""
        origin, record = self.origin, self.record
        before = [value or b"" for name, value in origin.headers if name == _REPLAYS]
        replays = int(before[-1]) if before and before[-1].isdigit() else 0
        kept = [header for header in origin.headers if header[0] not in (_REPLAYS, _LETTER)]
        letter = f"{dead_letter_topic}/{self.partition}/{self.offset}".encode()
        headers = [*kept, (_REPLAYS, str(replays + 1).encode()), (_LETTER, letter)]
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
        """All letters, each partition's in order."""
        seen: set[bytes] = set()
        for partition, record in self._read():
            origin = origin_of(record.headers)
            if origin is None:
                continue
            # A topic that was created again has other records at its offsets.
            content = (origin.topic, origin.partition, origin.offset, record.key, record.value)
            identity = hashlib.blake2b(repr(content).encode(), digest_size=16).digest()
            if (partition, record.offset) in self._replayed:
                status = LetterStatus.REPLAYED
            else:
                status = LetterStatus.REPEATED if identity in seen else LetterStatus.WAITING
            seen.add(identity)
            yield DeadLetter(partition, record.offset, record, origin, status)


def mark_of(offsets: Iterable[int]) -> tuple[bytes, Headers]:
    """The value and the headers of a mark for these offsets."""
    return json.dumps(list(offsets)).encode(), [(_HEADER, b"offsets")]


def marked_in(record: Record) -> list[int] | None:
    """The offsets in a mark; None if the record is not a mark."""
    if [name for name, _ in record.headers] != [_HEADER]:
        return None
    try:
        return [int(offset) for offset in json.loads(record.value or b"")]
    except (ValueError, TypeError):
        return None
