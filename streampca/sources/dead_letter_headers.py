"""The headers of dead letters, as Kafka Connect writes them, and the record's timestamp."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from streampca.fold.record import Record

Headers: TypeAlias = list[tuple[str, bytes | None]]

_NAMES = [
    f"__connect.errors.{name}"
    for name in ("topic", "partition", "offset", "exception.class.name", "exception.message", "timestamp")
]


def dead_letter_headers(topic: str, partition: int, record: Record, reason: str, message: str) -> Headers:
    """The record's own headers, then where it comes from and why it was rejected.

    A dead letter has the time of sending, from which retention counts, and which no topic refuses.
    """
    values = (topic, str(partition), str(record.offset), reason, message, str(record.timestamp))
    errors = [(name, value.encode(errors="backslashreplace")) for name, value in zip(_NAMES, values, strict=True)]
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
    """The origin that the headers of a dead letter name; None if they are not those of a dead letter."""
    own, errors = list(headers[: -len(_NAMES)]), headers[-len(_NAMES) :]
    if [name for name, _ in errors] != _NAMES:
        return None
    try:
        topic, partition, offset, reason, message, timestamp = ((value or b"").decode() for _, value in errors)
        return Origin(topic, int(partition), int(offset), reason, message, int(timestamp), own)
    except ValueError:
        return None
