"""What the producers of both Kafka clients share: dead letters, and waiting for acknowledgements."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import structlog

from streampca.formats.record import Record
from streampca.settings.commands import ConsumerSettings, ProduceSettings
from streampca.sources.base import DeadLetters, Header
from streampca.sources.broker_errors import INVALID_RECORD_CODES
from streampca.sources.client_connection import ClientConnection
from streampca.sources.dead_letters import dead_letter_headers, read_own_time

_WATCH_EVERY_S = 0.5  # while `flush` waits for acknowledgements, it looks for outages this often

log = structlog.get_logger()


class ClientProducer(DeadLetters, ABC):
    """Writes records to one topic, such as dead letters, and keeps them until the brokers have acknowledged them."""

    _connection: ClientConnection

    def __init__(
        self,
        settings: ConsumerSettings | ProduceSettings,
        topic: str,
        full_queue_timeout_s: float = 5.0,
        *,
        is_idempotent: bool,
    ) -> None:
        """An idempotent producer never writes a record twice, but may fail after a long outage.

        Any other producer waits for brokers without limit, and may write a record twice.
        """
        self._settings = settings
        self._topic = topic
        self._full_queue_timeout_s = full_queue_timeout_s
        self._is_idempotent = is_idempotent
        self._is_wrong_clock_logged = False

    @abstractmethod
    def _wait_for_acknowledgements(self, timeout_s: float) -> int:
        """Wait at most `timeout_s` for acknowledgements, and return how many records have none yet.

        Raises `SourceError` if a record is refused.
        """

    @abstractmethod
    def produce(
        self,
        value: bytes | None,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        """Send a record, and do not wait for an answer; without a partition, the key decides. Raises `SourceError`."""

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        headers = dead_letter_headers(self._settings.topic, partition, record, reason=reason, message=message)
        self.produce(record.value, partition=None, key=record.key, headers=headers)

    def _find_own_time_to_send(self, code: int | None, headers: Sequence[Header]) -> int | None:
        """If a dead letter is refused for the time of sending, return the time of its rejected record.

        Return None if the letter should not be sent again.
        """
        if code not in INVALID_RECORD_CODES:
            return None
        time_ms = read_own_time(headers)
        if time_ms < 0:  # unknown
            return None
        if not self._is_wrong_clock_logged:
            log.warning("clock differs from brokers, dead letters keep records' times", topic=self._topic)
            self._is_wrong_clock_logged = True
        return time_ms

    def partitions(self) -> frozenset[int]:
        """Return the topic's partitions."""
        return self._connection.partitions()

    def raise_refused(self) -> None:
        """Raise `SourceError` if a record was refused; never waits."""
        self._wait_for_acknowledgements(0)

    def flush(self, timeout_s: float) -> None:
        """Wait until brokers have acknowledged all records.

        Raises `TimeoutError`, or `SourceError` if a record is refused or longer waiting is useless.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(deadline - time.monotonic(), 0)
            unacknowledged_count = self._wait_for_acknowledgements(min(left_s, _WATCH_EVERY_S))
            self._connection.watch()
            if unacknowledged_count == 0:
                return
            if left_s == 0:
                break
        with contextlib.suppress(TimeoutError):
            self._connection.describe()  # raises `SourceError` if the topic was deleted or the login is refused
        raise TimeoutError(f"{unacknowledged_count} dead letters are not acknowledged yet")
