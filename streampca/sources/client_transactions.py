"""Transactions and dead letters of either client: when a producer is opened, used, and given up."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import structlog

from streampca.errors import NoBrokerError, SourceError
from streampca.formats.record import Record
from streampca.settings.commands import ConsumerSettings, ProduceSettings
from streampca.settings.kafka import KafkaSettings
from streampca.sources.base import (
    Admin,
    Committed,
    DeadLetters,
    Header,
    OutgoingFields,
    RecordRefusedError,
    TransactionFailedError,
    Transactions,
)
from streampca.sources.client_connection import BrokerErrors, ClientConnection
from streampca.sources.dead_letters import dead_letter_headers, own_time
from streampca.sources.record_times import REFUSED_TIME

ABORT_S = 2.0
_REFUSED = {29, 30, 31, 35, 50, 53, 58}  # codes of errors that every transaction meets: missing rights, limits
_TOO_LARGE, _INVALID = {10, 18}, {32, 87}  # those that one with the same record meets
_FEWER = 8  # times as small are the batches after one that was too large
_CONFIGS_S = 120.0  # then a topic's options are read again: an operator may change them while we run
REQUEST_BYTES = 100 * 1024 * 1024  # a broker's own limit: the topic's limit decides
_POLL_S = 0.5

log = structlog.get_logger()


class ClientTransactions(Transactions, ABC):
    """See `streampca.sources.base.Transactions`.

    A producer whose transaction has failed is given up. The next one has the same name, with which a broker ends what
    the old one has left open.
    """

    begin_s, commit_s = 5.0, 10.0  # time limits
    admin: type[Any]  # the client's `Admin`
    client_error: type[Exception]  # what the client raises
    batch_bytes = 0  # a larger record is alone in its batch, which a broker refuses as a whole

    def __init__(
        self, settings: KafkaSettings, topics: Sequence[str], name: str, timeout_s: float, source: Any = None
    ) -> None:
        """`topics` are those that will be written to, outputs to the first; they exist. Raises `SourceError`.

        Brokers abort a transaction after `timeout_s`. Without a source, no offsets are committed.
        """
        self._settings, self._topics, self._name, self._timeout_s = settings, topics, name, timeout_s
        self._source, self._open = source, False
        self._producer: Any = None
        self._configs: Mapping[str, str] = {}
        self._read_configs_at = 0.0
        self._undelivered: list[tuple[Exception, str, int]] = []
        """Errors of this transaction's records, with their topics and sizes (0: unknown)."""
        self._next_batch_bytes = self.batch_bytes  # of the next producer, at most
        for topic in topics:
            self._count_partitions(topic)

    @abstractmethod
    def _start(self) -> None:
        """Set `_producer`, then let it end the transactions of earlier producers of the same name."""

    @abstractmethod
    def _send(self, producer: Any, records: Iterable[OutgoingFields]) -> None:
        """Add records to the transaction; calls `_fail` for those that cannot be sent."""

    @abstractmethod
    def _commit(self, producer: Any, offsets: Mapping[int, Committed], membership: Any) -> None:
        """Commit the transaction with a group member's offsets; calls `_fail` for records that were not delivered."""

    @abstractmethod
    def _abort(self, producer: Any) -> None:
        """Abort the open transaction; raises `client_error`."""

    @abstractmethod
    def _give_up(self, producer: Any) -> None:
        """Close the producer without sending what is left."""

    @abstractmethod
    def _described(self, error: Exception) -> tuple[int | None, str]:
        """The error's code in Kafka's protocol, if it has one, and its text in one line."""

    def partitions(self, topic: str) -> int:
        try:
            return self._count_partitions(topic)
        except NoBrokerError as error:
            raise TimeoutError(str(error)) from None

    def topic_configs(self) -> Mapping[str, str]:
        if time.monotonic() >= self._read_configs_at:
            with contextlib.suppress(SourceError), self._asking(self._topics[0]) as admin:
                self._configs = admin.topic_configs() or self._configs  # empty without the right
            self._read_configs_at = time.monotonic() + _CONFIGS_S
        return self._configs

    def recover(self) -> None:
        if self._producer is not None:
            return
        try:
            self._start()
        except NoBrokerError as error:
            raise TimeoutError(str(error)) from None
        except self.client_error as error:
            self._drop()
            if refusal := self._refusal(error, self._topics[0]):
                raise refusal from None
            raise TimeoutError(f"no transaction can begin: {self._described(error)[1]}") from None

    def send(self, records: Iterable[OutgoingFields]) -> None:
        self._send(self._begun(), records)

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        producer = self._begun()
        membership = self._source.membership if self._source else None  # once: another thread may lose it meanwhile
        if self._source is not None and membership is None:
            self._drop()
            raise TransactionFailedError("the group has given this member up")
        try:
            self._commit(producer, offsets, membership)
        except self.client_error as error:
            self._fail(error, self._topics[0])
        self._open = False

    def abort(self) -> None:
        if self._producer is None or not self._open:
            return
        self._open = False
        try:
            self._abort(self._producer)
        except self.client_error:
            self._drop()  # the next producer of this name ends the transaction

    def close(self) -> None:
        self.abort()
        self._drop()

    def _asking(self, topic: str) -> contextlib.closing[Admin]:
        return contextlib.closing(self.admin(self._settings, topic))

    def _count_partitions(self, topic: str) -> int:
        with self._asking(topic) as admin:
            return len(admin.require_topic().in_sync)

    def _begun(self) -> Any:
        """The producer, in a transaction."""
        if self._producer is None:
            raise TransactionFailedError("the last transaction has failed")
        if not self._open:
            try:
                self._producer.begin_transaction()
            except self.client_error as error:
                self._fail(error, self._topics[0])
            self._open, self._undelivered = True, []
        return self._producer

    def _fail(self, error: Exception, topic: str, size: int = 0) -> NoReturn:
        """Give the producer up; raise the error of a record to that topic, or of the transaction."""
        self._drop()
        for cause, its_topic, its_size in [*self._undelivered, (error, topic, size)]:
            if refusal := self._refusal(cause, its_topic, its_size):
                raise refusal from None
        raise TransactionFailedError(self._described(error)[1]) from None

    def _refusal(self, error: Exception, topic: str, size: int = 0) -> SourceError | RecordRefusedError | None:
        """The error as one that waiting cannot fix; None if the next transaction may succeed."""
        code, text = self._described(error)
        refusal = BrokerErrors(self._settings, topic).of(code, text)
        if code in _TOO_LARGE | _INVALID:
            self._read_configs_at = 0.0  # the topic's options may have changed
        if code in _INVALID:
            return RecordRefusedError(str(refusal), code)
        if code in _TOO_LARGE and size <= self.batch_bytes:  # others may have been in its batch
            self._next_batch_bytes = self.batch_bytes // _FEWER
            return None if self.batch_bytes else refusal
        if code in _TOO_LARGE and topic == self._topics[0]:
            return RecordRefusedError(str(refusal), code, size)
        return refusal if code in _TOO_LARGE | _REFUSED else None

    def _drop(self) -> None:
        """Give the producer up, and what it has not sent."""
        if self._producer is not None:
            self._give_up(self._producer)
        self._producer, self._open = None, False


class ClientProducer(DeadLetters, ABC):
    """Writes records to one topic, such as dead letters, and keeps them until the brokers have acknowledged them."""

    _connection: ClientConnection

    def __init__(
        self, settings: ConsumerSettings | ProduceSettings, topic: str, room_s: float = 5.0, *, is_idempotent: bool
    ) -> None:
        """`room_s` is how long a record waits for room among those that are not acknowledged.

        Only an idempotent producer never writes a record twice; one whose brokers have been away for long may fail.
        """
        self._settings, self._topic, self._room_s, self._is_idempotent = settings, topic, room_s, is_idempotent
        self._is_clock_reported = False

    @abstractmethod
    def _await(self, timeout_s: float) -> int:
        """Wait for acknowledgements; the number of records without one. Raises `SourceError` for what is refused."""

    @abstractmethod
    def produce(
        self,
        value: bytes | None,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        """Send a record, without waiting for an answer; without a partition, its key decides. Raises `SourceError`."""

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        headers = dead_letter_headers(self._settings.topic, partition, record, reason, message)
        self.produce(record.value, None, record.key, headers)

    def _other_time(self, code: int | None, headers: Sequence[Header]) -> int | None:
        """The time with which a record is sent again, if the topic refuses the time of sending: a dead letter's own.

        None if the record was refused for another reason (`code`), or has no other time.
        """
        time_ms = own_time(headers)
        if code not in REFUSED_TIME or time_ms < 0:
            return None
        if not self._is_clock_reported:
            log.warning("clock differs from brokers, dead letters keep records' times", topic=self._topic)
            self._is_clock_reported = True
        return time_ms

    def partitions(self) -> frozenset[int]:
        """The topic's partitions."""
        return self._connection.partitions()

    def raise_refused(self) -> None:
        """Raise `SourceError` if a record is known to be refused; never waits."""
        self._await(0)

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while left := self._await(min(_POLL_S, max(deadline - time.monotonic(), 0))):
            self._connection.watch()
            if time.monotonic() >= deadline:
                with contextlib.suppress(TimeoutError):
                    self._connection.topic_id()  # raises what waiting cannot fix: a deleted topic, a refused login
                raise TimeoutError(f"{left} dead letters are not acknowledged yet")  # `produce` has its own words
        self._connection.watch()
