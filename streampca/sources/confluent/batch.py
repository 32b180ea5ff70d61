"""Records of librdkafka: a batch of messages whose columns can be read without creating a record for each."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from streampca.fold.record import Batch, PlainRecord

Message: TypeAlias = Any  # confluent_kafka.Message, whose types allow None everywhere


class ConfluentBatch(Batch):
    """Messages of one partition; a record is created only when it is indexed."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ConfluentBatch(self._messages[index])
        message = self._messages[index]
        epoch, (kind, timestamp) = message.leader_epoch(), message.timestamp()
        return PlainRecord(
            message.offset(),
            message.value(),
            -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
            message.key(),
            _headers(message),
            -1 if epoch is None else epoch,
        )

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
        return [_headers(message) for message in self._messages]


def _headers(message: Message) -> Sequence[tuple[str, bytes | None]]:
    try:
        return message.headers() or ()
    except UnicodeDecodeError:  # a name is not UTF-8: the client returns none of them
        return [("__connect.errors.headers", b"a header name is not UTF-8")]
