"""Records of librdkafka: a batch of messages whose columns can be read without creating a record for each."""

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from streampca.stream.record import Batch, Record

Message: TypeAlias = Any  # confluent_kafka.Message, whose types allow None everywhere


class ConfluentRecord:
    """A message as a `Record`."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    @property
    def offset(self) -> int:
        return int(self._message.offset())

    @property
    def timestamp(self) -> int:
        return _timestamp(self._message)

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self._message.key()
        return key

    @property
    def value(self) -> bytes | None:
        value: bytes | None = self._message.value()
        return value

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        return self._message.headers() or ()

    @property
    def leader_epoch(self) -> int | None:
        epoch: int | None = self._message.leader_epoch()
        return epoch


class ConfluentBatch(Batch):
    """Messages of one partition; a record is created only when it is indexed."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> "ConfluentBatch": ...
    def __getitem__(self, index: int | slice) -> "Record | ConfluentBatch":
        if isinstance(index, slice):
            return ConfluentBatch(self._messages[index])
        return ConfluentRecord(self._messages[index])

    def values(self) -> list[bytes | None]:
        return [message.value() for message in self._messages]

    def timestamps(self) -> list[int]:
        kinds_and_timestamps = [message.timestamp() for message in self._messages]
        return [-1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp for kind, timestamp in kinds_and_timestamps]

    def offsets(self) -> list[int]:
        return [message.offset() for message in self._messages]

    def keys(self) -> list[bytes | None]:
        return [message.key() for message in self._messages]

    def headers(self) -> list[Sequence[tuple[str, bytes | None]]]:
        return [message.headers() or () for message in self._messages]


def _timestamp(message: Message) -> int:
    kind, timestamp = message.timestamp()
    return -1 if kind == TIMESTAMP_NOT_AVAILABLE else int(timestamp)
