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
        return Record(**{name: read(message) for name, read in _FIELD_READERS.items()})

    def column(self, name: str) -> list[Any]:
        return list(map(_FIELD_READERS[name], self._messages))


def _read_timestamp(message: Message) -> int:
    timestamp_type, timestamp = message.timestamp()
    return -1 if timestamp_type == TIMESTAMP_NOT_AVAILABLE else timestamp


def _read_headers(message: Any) -> Sequence[tuple[str, bytes | None]]:
    try:
        return message.headers() or ()
    except UnicodeDecodeError:  # if the name of a header is not UTF-8, the client returns no header at all
        return [("__connect.errors.headers", b"a header name is not UTF-8")]


# Field of `Record` → function that reads it from a message. As an optimisation, these are methods of the class, which
# take a quarter of the time of `methodcaller`.
_FIELD_READERS: Mapping[str, Callable[[Message], Any]] = {
    "offset": Message.offset,
    "value": Message.value,
    "timestamp": _read_timestamp,
    "key": Message.key,
    "headers": _read_headers,
    "leader_epoch": Message.leader_epoch,
}
