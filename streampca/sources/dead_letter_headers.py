"""The headers of dead letters, as Kafka Connect writes them."""

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
