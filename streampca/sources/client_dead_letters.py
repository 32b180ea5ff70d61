"""Dead letters of either client: how they are sent, and waited for."""

import time
from abc import ABC, abstractmethod

from streampca.formats.record import Record
from streampca.settings.commands import ConsumerSettings
from streampca.sources.base import DeadLetters, Headers
from streampca.sources.client_connection import ClientConnection
from streampca.sources.dead_letters import dead_letter_headers

_POLL_S = 0.5


class ClientDeadLetters(DeadLetters, ABC):
    """See `streampca.sources.base.DeadLetters`."""

    _connection: ClientConnection

    def __init__(self, settings: ConsumerSettings) -> None:
        if settings.dead_letter_topic is None:
            raise ValueError("dead_letter_topic is not set")
        self._source_topic, self._topic = settings.topic, settings.dead_letter_topic

    @abstractmethod
    def _produce(self, value: bytes | None, key: bytes | None, headers: Headers) -> None:
        """Send a letter, without waiting. Raises `SourceError`."""

    @abstractmethod
    def _await(self, timeout_s: float) -> int:
        """Wait for acknowledgements; the number of letters without one. Raises `SourceError` for what is refused."""

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        headers = dead_letter_headers(self._source_topic, partition, record, reason, message)
        self._produce(record.value, record.key, headers)

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while left := self._await(min(_POLL_S, max(deadline - time.monotonic(), 0))):
            self._connection.watch()
            if time.monotonic() >= deadline:
                if self._connection.connected:
                    self._connection.topic_id()  # raises if the topic was deleted: then waiting is no use
                raise TimeoutError(f"{left} dead letters are not acknowledged yet")
        self._connection.watch()
