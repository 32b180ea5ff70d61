"""The headers of dead letters, as Kafka Connect writes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from streampca.stream.record import Record

Headers: TypeAlias = list[tuple[str, bytes | None]]

_PREFIX = "__connect.errors."
_NAMES = [_PREFIX + name for name in ("topic", "partition", "offset", "exception.class.name", "exception.message")]
_TIMESTAMP = f"{_PREFIX}timestamp"


def dead_letter_headers(topic: str, partition: int, offset: int, reason: str, message: str) -> Headers:
    """Where the record comes from and why it was rejected.

    Append them to the record's own headers: a dead letter that was read from a dead-letter topic has such headers.
    """
    values = (topic, str(partition), str(offset), reason, message)
    return [(name, value.encode(errors="backslashreplace")) for name, value in zip(_NAMES, values, strict=True)]


def letter_of(topic: str, partition: int, record: Record, reason: str, message: str) -> "Letter":
    """The dead letter of a record of that topic."""
    errors = dead_letter_headers(topic, partition, record.offset, reason, message)
    timestamp = record.timestamp if record.timestamp >= 0 else None
    return Letter(record.value, record.key, [*record.headers, *errors], timestamp)


class Origin(NamedTuple):
    """The record that a dead letter was made of, and why it was rejected."""

    topic: str
    partition: int
    offset: int
    reason: str
    message: str
    headers: Headers  # the record's own
    timestamp: int | None  # if the letter could not have the record's timestamp


def origin_of(headers: Sequence[tuple[str, bytes | None]]) -> Origin | None:
    """The origin that the headers of a dead letter name; None if they are not those of a dead letter."""
    own, timestamp = list(headers), None
    try:
        if own and own[-1][0] == _TIMESTAMP:
            timestamp = int(own.pop()[1] or b"")
        own, errors = own[: -len(_NAMES)], own[-len(_NAMES) :]
        if [name for name, _ in errors] != _NAMES:
            return None
        topic, partition, offset, reason, message = ((value or b"").decode() for _, value in errors)
        return Origin(topic, int(partition), int(offset), reason, message, own, timestamp)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it is sent, kept until the broker has acknowledged it."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int | None

    def without_timestamp(self) -> "Letter":
        """The same with the time of sending, for topics that accept no other; the original one is in a header."""
        header = (_TIMESTAMP, str(self.timestamp).encode())
        return replace(self, timestamp=None, headers=[*self.headers, header])
