"""The headers of dead letters, as Kafka Connect writes them."""

from dataclasses import dataclass, replace
from typing import TypeAlias

Headers: TypeAlias = list[tuple[str, bytes | None]]

_PREFIX = "__connect.errors."


def dead_letter_headers(topic: str, partition: int, offset: int, reason: str, message: str) -> Headers:
    """Where the record comes from and why it was rejected.

    Append them to the record's own headers: a dead letter that was read from a dead-letter topic has such headers.
    """
    values = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "exception.class.name": reason,
        "exception.message": message,
    }
    return [(_PREFIX + name, value.encode(errors="backslashreplace")) for name, value in values.items()]


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it is sent, kept until the broker has acknowledged it."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int | None

    def without_timestamp(self) -> "Letter":
        """The same with the time of sending, for topics that accept no other; the original one is in a header."""
        header = (f"{_PREFIX}timestamp", str(self.timestamp).encode())
        return replace(self, timestamp=None, headers=[*self.headers, header])
