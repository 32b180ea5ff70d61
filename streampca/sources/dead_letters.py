"""Dead letters: their headers, as Kafka Connect writes them, and the notes about those that were replayed.

To replay a dead letter is to send its record to its topic again. A replay note lists offsets of dead letters that were
replayed. It is a record of the dead-letter topic itself, in the same partition as the letters, and written in the
transaction that sends their records. So notes and sent records cannot disagree, and a log never loses a note before its
letters.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from streampca.formats.record import Record
from streampca.sources.base import Header, Headers, Outgoing

ADDED_BYTES = 64 * 1024  # more than a dead letter's headers add to its record

_ERROR_HEADERS = [  # the last headers of a dead letter, in this order
    f"__connect.errors.{name}"
    for name in ("topic", "partition", "offset", "exception.class.name", "exception.message", "timestamp")
]
_NOTE_HEADER = "streampca.replayed"  # the only header of a replay note
_REPLAYS_HEADER = "streampca.replays"  # of a replayed record: how often it was replayed
_LONGEST_COUNT = 9  # digits; a header with more does not come from a replay
_LETTER_HEADER = "streampca.dead-letter"  # of a replayed record: topic, partition and offset of its dead letter

ReadTopic: TypeAlias = Callable[[], Iterator[tuple[int, Record]]]
"""Reads the committed records of a topic with their partitions.

Each partition's records come in order, and the same ones at every call.
"""


def dead_letter_headers(topic: str, partition: int, record: Record, reason: str, message: str) -> Headers:
    """Return the headers of a dead letter: the record's own, then where it comes from and why it was rejected."""
    # In the order of `_ERROR_HEADERS`:
    values = (topic, str(partition), str(record.offset), reason, message, str(record.timestamp))
    headers = list(record.headers)
    for name, value in zip(_ERROR_HEADERS, values, strict=True):
        headers.append((name, value.encode(errors="backslashreplace")))
    return headers


class Origin(NamedTuple):
    """The record that a dead letter was made of, and why it was rejected."""

    topic: str
    partition: int
    offset: int
    reason: str
    message: str
    timestamp: int  # milliseconds since 1970; -1 if unknown
    headers: Headers  # the record's own


def read_origin(headers: Sequence[Header]) -> Origin | None:
    """Return the origin of a dead letter from its headers; None for any other record."""
    count = len(_ERROR_HEADERS)
    own_headers = headers[:-count]
    error_headers = headers[-count:]
    if [name for name, _ in error_headers] != _ERROR_HEADERS:
        return None
    try:
        texts = [(value or b"").decode() for _, value in error_headers]
        topic, partition, offset, reason, message, timestamp = texts  # in the order of `_ERROR_HEADERS`
        return Origin(
            topic=topic,
            partition=int(partition),
            offset=int(offset),
            reason=reason,
            message=message,
            timestamp=int(timestamp),
            headers=list(own_headers),
        )
    except ValueError:  # a header is not text, or not a number
        return None


def read_timestamp_of_rejected(headers: Sequence[Header]) -> int:
    """Return the timestamp of a rejected record, from the headers of its dead letter, in milliseconds since 1970.

    Return -1 if the timestamp is unknown, or if these are not the headers of a dead letter.
    """
    origin = read_origin(headers)
    return -1 if origin is None else origin.timestamp


class LetterStatus(StrEnum):
    """Whether a replay sends a dead letter's record."""

    WAITING = "waiting"  # yes
    REPLAYED = "replayed"  # no: an earlier replay has sent it
    REPEATED = "repeated"  # no: an earlier letter is of the same record, which was rejected again


class DeadLetter(NamedTuple):
    """A dead letter, and its partition and offset in the dead-letter topic."""

    partition: int
    offset: int
    record: Record  # the dead letter itself
    origin: Origin  # the rejected record
    status: LetterStatus

    def to_replay(self, dead_letter_topic: str) -> Outgoing:
        """Return the record that a replay sends: the rejected record, to the topic that it came from.

        Two headers are added: how often the record was sent again, and where its dead letter is.
        """
        rejected = self.origin
        letter = self.record
        earlier_replays = dict(rejected.headers).get(_REPLAYS_HEADER) or b"0"
        is_count = earlier_replays.isdigit() and len(earlier_replays) <= _LONGEST_COUNT
        replays = int(earlier_replays) + 1 if is_count else 1
        letter_position = f"{dead_letter_topic}/{self.partition}/{self.offset}"
        added_by_earlier_replay = (_REPLAYS_HEADER, _LETTER_HEADER)
        return Outgoing(
            topic=rejected.topic,
            partition=rejected.partition,
            value=letter.value,  # a dead letter has the value and the key of the rejected record
            key=letter.key,
            headers=[
                *[(name, value) for name, value in rejected.headers if name not in added_by_earlier_replay],
                (_REPLAYS_HEADER, str(replays).encode()),
                (_LETTER_HEADER, letter_position.encode()),
            ],
            timestamp=rejected.timestamp,
        )


class DeadLetterTopic:
    """All dead letters of a topic, as it is now."""

    def __init__(self, read: ReadTopic) -> None:
        """Read the topic once, to find which letters were replayed. Raises `SourceError`."""
        self._read = read
        self.other_records = 0  # neither dead letters nor replay notes
        self._replayed: set[tuple[int, int]] = set()  # partition and offset of each replayed letter
        for partition, record in read():
            replayed_offsets = read_replay_note(record)
            if replayed_offsets is not None:
                # A replay writes its note into the partition of the letters that it has replayed.
                self._replayed.update((partition, offset) for offset in replayed_offsets)
            elif read_origin(record.headers) is None:
                self.other_records += 1

    def letters(self) -> Iterator[DeadLetter]:
        """Yield all letters with their status. The letters of one partition come in order."""
        earlier_hashes: set[bytes] = set()
        for partition, record in self._read():
            origin = read_origin(record.headers)
            if origin is None:
                continue
            record_hash = _hash_rejected_record(origin, record)
            if (partition, record.offset) in self._replayed:
                status = LetterStatus.REPLAYED
            elif record_hash in earlier_hashes:
                status = LetterStatus.REPEATED
            else:
                status = LetterStatus.WAITING
            earlier_hashes.add(record_hash)
            yield DeadLetter(partition=partition, offset=record.offset, record=record, origin=origin, status=status)


def _hash_rejected_record(origin: Origin, letter: Record) -> bytes:
    """Return a hash that is the same for all letters of one rejected record.

    The record's offset is not enough: a topic that was created again has other records at the same offsets.
    """
    content = (origin.topic, origin.partition, origin.offset, letter.key, letter.value)
    return hashlib.blake2b(repr(content).encode(), digest_size=16).digest()


def make_replay_note(dead_letter_topic: str, partition: int, offsets: Sequence[int]) -> Outgoing:
    """Return a replay note: the record that says which dead letters of a partition were replayed."""
    return Outgoing(
        topic=dead_letter_topic,
        partition=partition,
        value=json.dumps(offsets).encode(),
        key=None,
        headers=[(_NOTE_HEADER, b"offsets")],
        timestamp=-1,  # the time of sending
    )


def read_replay_note(record: Record) -> list[int] | None:
    """Return the offsets of the dead letters that were replayed, if a record is a replay note; otherwise None."""
    if [name for name, _ in record.headers] != [_NOTE_HEADER]:
        return None
    try:
        return [int(offset) for offset in json.loads(record.value or b"")]
    except (ValueError, TypeError, OverflowError, RecursionError):  # a damaged note
        return None
