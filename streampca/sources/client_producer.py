"""What the producers of both Kafka clients share: dead letters, and waiting for acknowledgements."""

import contextlib
import time
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import structlog

from streampca.formats.record import Record
from streampca.settings.commands import ConsumerSettings, ProduceSettings
from streampca.sources.base import DeadLetters, Headers
from streampca.sources.broker_errors import INVALID_RECORD_CODES
from streampca.sources.client_connection import ClientConnection
from streampca.sources.dead_letters import dead_letter_headers, read_timestamp_of_rejected

_WATCH_EVERY_S = 0.5  # while `flush` waits for acknowledgements, it looks for outages this often

log = structlog.get_logger()


class ProducedRecord(NamedTuple):
    """A record for a producer's topic."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int | None  # None: the key decides
    time_ms: int | None = None  # None: the time of sending


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
    def _produce(self, record: ProducedRecord) -> None:
        """Send a record, and keep it until it is acknowledged. Do not wait for an answer. Raises `SourceError`."""

    def produce(self, value: bytes | None, partition: int | None = None) -> None:
        """Send a value, and do not wait for an answer. Raises `SourceError`."""
        self._produce(ProducedRecord(value, key=None, headers=[], partition=partition))

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        headers = dead_letter_headers(self._settings.topic, partition, record, reason=reason, message=message)
        self._produce(ProducedRecord(record.value, record.key, headers, partition=None))

    def _replace_refused_timestamp(self, refused: ProducedRecord, code: int | None, error: Any) -> ProducedRecord:
        """Return a refused dead letter with the timestamp of its rejected record, to be sent again.

        A dead letter is first sent with the time of sending. If this machine's clock differs from the brokers', they
        refuse this timestamp. If the `code` of the brokers has another cause, or sending again cannot help, raises
        `SourceError` for the error of the client.
        """
        is_time_refused = code in INVALID_RECORD_CODES  # a wrong timestamp is their most likely cause
        was_replaced_before = refused.time_ms is not None
        rejected_record_time_ms = read_timestamp_of_rejected(refused.headers)
        is_time_known = rejected_record_time_ms >= 0
        if not is_time_refused or was_replaced_before or not is_time_known:
            # A compacted topic refuses a record without a key, and the error must say so.
            raise self._connection.source_error(error, lacks_key=refused.key is None) from None
        if not self._is_wrong_clock_logged:
            log.warning("clock differs from brokers, dead letters keep records' times", topic=self._topic)
            self._is_wrong_clock_logged = True
        return refused._replace(time_ms=rejected_record_time_ms)

    def partitions(self) -> frozenset[int]:
        """Return the topic's partitions."""
        return self._connection.partitions()

    def raise_refused(self) -> None:
        """Raise `SourceError` if a record was refused; never waits."""
        self._wait_for_acknowledgements(0)

    def flush(self, timeout_s: float) -> None:
        """Wait until brokers have acknowledged all records.

        Raises `TimeoutError` after `timeout_s`, and `SourceError` if a record or the login is refused, or if the topic
        was deleted.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(deadline - time.monotonic(), 0)
            unacknowledged_count = self._wait_for_acknowledgements(min(left_s, _WATCH_EVERY_S))
            self._connection.log_outages()
            if unacknowledged_count == 0:
                return
            if left_s == 0:
                break
        self._raise_if_topic_is_lost()
        # The text names dead letters, since only members show it. `streampca produce`, which sends other records,
        # catches this error and raises its own.
        raise TimeoutError(f"{unacknowledged_count} dead letters are not acknowledged yet")

    def _raise_if_topic_is_lost(self) -> None:
        """Raise `SourceError` if a broker says that the topic was deleted, or refuses the login."""
        with contextlib.suppress(TimeoutError):  # no broker answers
            self._connection.describe()
