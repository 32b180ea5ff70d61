"""How a dead letter says where it comes from and what was wrong with it: the headers that Kafka Connect writes."""

from typing import TypeAlias

Headers: TypeAlias = list[tuple[str, bytes | None]]

_PREFIX = "__connect.errors."


def errors_as_headers(topic: str, partition: int, offset: int, reason: str, message: str) -> Headers:
    """To be put behind the record's own headers, of which a dead letter of a dead letter has such ones already."""
    words = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "exception.class.name": reason,
        "exception.message": message,
    }
    return [(_PREFIX + name, word.encode()) for name, word in words.items()]
