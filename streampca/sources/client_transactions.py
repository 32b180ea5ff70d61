"""Transactions and dead letters, as far as they are the same for both clients.

A module of each client says how its own producer is opened, used, and given up.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

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
from streampca.sources.dead_letters import dead_letter_headers, read_own_time
from streampca.sources.record_times import REFUSED_TIME

ABORT_S = 2.0
REQUEST_BYTES = 100 * 1024 * 1024  # a broker's own limit: the topic's limit decides

# Codes of errors in Kafka's protocol:
_EVERY_TRANSACTION_REFUSED = {29, 30, 31, 35, 50, 53, 58}  # missing rights, limits
_TOO_LARGE = {10, 18}
_INVALID = {32, 87}  # a record would be refused in any transaction, such as for its timestamp

_SMALLER_BY = 8  # if a batch was too large, the next batches are smaller by this factor
_CONFIGS_S = 120.0  # then a topic's options are read again: an operator may change them while we run
_POLL_S = 0.5

log = structlog.get_logger()


class Undelivered(NamedTuple):
    """A record of a transaction that was not delivered."""

    error: Exception
    topic: str
    size: int  # bytes, as `record_size` counts them; 0: unknown


class ClientTransactions(Transactions, ABC):
    """See `streampca.sources.base.Transactions`.

    If a transaction fails, its producer is given up. The next producer has the same transactional id, by which a broker
    knows it and ends what the old producer has left open.
    """

    begin_s = 5.0  # time limits
    commit_s = 10.0
    admin: type[Any]  # the client's `Admin`
    client_error: type[Exception]  # what the client raises
    # A record that is larger than this is sent in a batch of its own. A broker refuses a batch as a whole, so if the
    # refused record is smaller, another one in its batch may be too large. 0: every record that fails was alone.
    batch_bytes = 0

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Sequence[str],
        transactional_id: str,
        timeout_s: float,
        source: Any = None,
    ) -> None:
        """`topics` exist, and will be written to; the first is that of outputs. Raises `SourceError`.

        If a transaction stays open for `timeout_s`, brokers abort it. Without a source, no offsets are committed.
        """
        self._settings = settings
        self._topics = topics
        self._transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._source = source
        self._open = False
        self._producer: Any = None  # None before the first one, and after one was given up
        self._configs: Mapping[str, str] = {}  # options of the first topic
        self._reread_configs_at = 0.0  # by time.monotonic
        self._undelivered: list[Undelivered] = []  # records of this transaction
        self._next_batch_bytes = self.batch_bytes  # the most `batch_bytes` of the next producer
        for topic in topics:
            self._count_partitions(topic)  # raises if the topic does not exist

    @abstractmethod
    def _start(self) -> None:
        """Set `_producer`, then let it end the transactions of earlier producers with the same transactional id."""

    @abstractmethod
    def _send(self, producer: Any, records: Iterable[OutgoingFields]) -> None:
        """Add records to the transaction. If a record cannot be sent, call `_fail`."""

    @abstractmethod
    def _commit(self, producer: Any, offsets: Mapping[int, Committed], membership: Any) -> None:
        """Commit the transaction with a group member's offsets. If a record was not delivered, call `_fail`."""

    @abstractmethod
    def _abort(self, producer: Any) -> None:
        """Abort the open transaction; raises `client_error`."""

    @abstractmethod
    def _give_up(self, producer: Any) -> None:
        """Close the producer without sending what is left."""

    @abstractmethod
    def _code_and_text(self, error: Exception) -> tuple[int | None, str]:
        """Return the error's code in Kafka's protocol, None if it has no code, and its text in one line."""

    def partitions(self, topic: str) -> int:
        try:
            return self._count_partitions(topic)
        except NoBrokerError as error:
            raise TimeoutError(str(error)) from None

    def topic_configs(self) -> Mapping[str, str]:
        if time.monotonic() >= self._reread_configs_at:
            with contextlib.suppress(SourceError), self._open_admin(self._topics[0]) as admin:
                self._configs = admin.topic_configs() or self._configs  # empty without the right to read them
            self._reread_configs_at = time.monotonic() + _CONFIGS_S
        return self._configs

    def recover(self) -> None:
        if self._producer is not None:
            return
        try:
            self._start()  # ends what an earlier producer has left open
        except NoBrokerError as error:
            raise TimeoutError(str(error)) from None
        except self.client_error as error:
            self._drop_producer()
            if refusal := self._refusal(error, self._topics[0]):
                raise refusal from None
            _, text = self._code_and_text(error)
            raise TimeoutError(f"no transaction can begin: {text}") from None

    def send(self, records: Iterable[OutgoingFields]) -> None:
        self._send(self._begin_unless_open(), records)

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        producer = self._begin_unless_open()
        membership = None
        if self._source is not None:
            membership = self._source.membership  # read once: another thread may lose it meanwhile
            if membership is None:
                self._drop_producer()
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
            self._drop_producer()  # the next producer ends the transaction

    def close(self) -> None:
        self.abort()
        self._drop_producer()

    def _open_admin(self, topic: str) -> contextlib.closing[Admin]:
        return contextlib.closing(self.admin(self._settings, topic))

    def _count_partitions(self, topic: str) -> int:
        with self._open_admin(topic) as admin:
            return len(admin.require_topic().in_sync)

    def _begin_unless_open(self) -> Any:
        """Begin a transaction unless one is open, and return its producer."""
        if self._producer is None:
            raise TransactionFailedError("the last transaction has failed")
        if not self._open:
            try:
                self._producer.begin_transaction()
            except self.client_error as error:
                self._fail(error, self._topics[0])
            self._open = True
            self._undelivered = []
        return self._producer

    def _fail(self, error: Exception, topic: str, size: int = 0) -> NoReturn:
        """Give the producer up, and raise why the transaction failed.

        `error` is of a record to this topic, with its size if it is known, or of the transaction. If brokers refused
        one of the records that were not delivered before, that is raised instead.
        """
        self._drop_producer()
        for failed in [*self._undelivered, Undelivered(error, topic, size)]:
            if refusal := self._refusal(*failed):
                raise refusal from None
        _, text = self._code_and_text(error)
        raise TransactionFailedError(text) from None

    def _refusal(self, error: Exception, topic: str, size: int = 0) -> SourceError | RecordRefusedError | None:
        """Return what to raise for an error that waiting cannot fix; None if the next transaction may succeed.

        The error is of a record to this topic, or of the transaction. `size` is 0 if the record's size is unknown.
        """
        code, text = self._code_and_text(error)
        refusal = BrokerErrors(self._settings, topic).explain(code, text)
        if code in _TOO_LARGE | _INVALID:
            self._reread_configs_at = 0.0  # the topic's options may have changed
        if code in _INVALID:
            return RecordRefusedError(str(refusal), code)
        if code in _TOO_LARGE:
            if self.batch_bytes and size <= self.batch_bytes:
                # Another record of its batch may have been too large: the next batches are smaller.
                self._next_batch_bytes = self.batch_bytes // _SMALLER_BY
                return None
            is_output = topic == self._topics[0]
            return RecordRefusedError(str(refusal), code, size) if size and is_output else refusal
        return refusal if code in _EVERY_TRANSACTION_REFUSED else None

    def _drop_producer(self) -> None:
        """Give the producer up, and what it has not sent."""
        if self._producer is not None:
            self._give_up(self._producer)
        self._producer = None
        self._open = False


class ClientProducer(DeadLetters, ABC):
    """Writes records to one topic, such as dead letters, and keeps them until the brokers have acknowledged them."""

    _connection: ClientConnection

    def __init__(
        self,
        settings: ConsumerSettings | ProduceSettings,
        topic: str,
        room_timeout_s: float = 5.0,
        *,
        is_idempotent: bool,
    ) -> None:
        """If the client's queue is full of records without acknowledgement, a new record waits for `room_timeout_s`.

        An idempotent producer never writes a record twice, but it may fail if brokers were away for long. Another
        producer waits for brokers without limit, and may write a record twice.
        """
        self._settings = settings
        self._topic = topic
        self._room_timeout_s = room_timeout_s
        self._is_idempotent = is_idempotent
        self._is_clock_reported = False

    @abstractmethod
    def _wait_for_acknowledgements(self, timeout_s: float) -> int:
        """Wait until all records are acknowledged, and return how many are not. Raises `SourceError` if one is refused.

        It may return earlier, once some are acknowledged.
        """

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
        headers = dead_letter_headers(self._settings.topic, partition, record, reason=reason, message=message)
        self.produce(record.value, partition=None, key=record.key, headers=headers)

    def _time_to_resend_with(self, code: int | None, headers: Sequence[Header]) -> int | None:
        """Return the time with which a refused dead letter is sent again: that of the record that it was made of.

        None if it is not sent again: it was not refused for its time (`code`), or the record's time is unknown.
        """
        time_ms = read_own_time(headers)
        if code not in REFUSED_TIME or time_ms < 0:
            return None
        if not self._is_clock_reported:
            log.warning("clock differs from brokers, dead letters keep records' times", topic=self._topic)
            self._is_clock_reported = True
        return time_ms

    def partitions(self) -> frozenset[int]:
        """Return the topic's partitions."""
        return self._connection.partitions()

    def raise_refused(self) -> None:
        """Raise `SourceError` if a record is known to be refused; never waits."""
        self._wait_for_acknowledgements(0)

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(deadline - time.monotonic(), 0)
            unacknowledged = self._wait_for_acknowledgements(min(_POLL_S, left_s))
            if not unacknowledged:
                break
            self._connection.watch()
            if time.monotonic() >= deadline:
                with contextlib.suppress(TimeoutError):
                    self._connection.topic_id()  # raises what waiting cannot fix: a deleted topic, a refused login
                # `streampca produce`, which does not send dead letters, replaces this message.
                raise TimeoutError(f"{unacknowledged} dead letters are not acknowledged yet")
        self._connection.watch()
