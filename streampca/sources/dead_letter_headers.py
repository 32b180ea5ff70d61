"""What all clients share about dead letters: headers as Kafka Connect writes them, and the error for large records."""

from typing import TypeAlias

from streampca.errors import SourceError

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
    return [(_PREFIX + name, value.encode()) for name, value in values.items()]


def too_large(topic: str) -> SourceError:
    """The error for a record that the dead-letter topic does not accept."""
    return SourceError(
        f"a record is too large for the dead-letter topic {topic}, which must take a little more than "
        f"the topic itself; raise max.message.bytes of {topic}"
    )
