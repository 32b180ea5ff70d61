"""The messages of one partition that a poll of confluent-kafka has returned, as records."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from streampca.formats.record import Columns, Record


class ConfluentBatch(Columns):
    """Messages of one partition, as a sequence of records; each record is created only when it is indexed."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ConfluentBatch(self._messages[index])
        message = self._messages[index]
        return Record(**{name: read([message])[0] for name, read in _COLUMN_READERS.items()})

    def column(self, name: str) -> list[Any]:
        return _COLUMN_READERS[name](self._messages)


def _read_timestamps(messages: Sequence[Message]) -> list[int]:
    return [
        -1 if timestamp_type == TIMESTAMP_NOT_AVAILABLE else timestamp
        for timestamp_type, timestamp in map(Message.timestamp, messages)
    ]


def _read_headers(message: Any) -> Sequence[tuple[str, bytes | None]]:
    try:
        return message.headers() or ()
    except UnicodeDecodeError:  # if the name of a header is not UTF-8, the client returns no header at all
        return [("__connect.errors.headers", b"a header name is not UTF-8")]


def _read_each(read: Callable[[Message], Any]) -> Callable[[Sequence[Message]], list[Any]]:
    """Return a function that reads a field from each message."""
    return lambda messages: list(map(read, messages))


# Field of `Record` → function that reads it from all messages. As optimisations, methods of the class are called, in a
# quarter of the time of `methodcaller`, and timestamps are read without a call of our own for each message.
_COLUMN_READERS: Mapping[str, Callable[[Sequence[Message]], list[Any]]] = {
    "offset": _read_each(Message.offset),
    "value": _read_each(Message.value),
    "timestamp": _read_timestamps,
    "key": _read_each(Message.key),
    "headers": _read_each(_read_headers),
    "leader_epoch": _read_each(Message.leader_epoch),
}
