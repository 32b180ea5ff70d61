"""What the transactions of both Kafka clients share: when a producer is opened and given up, and what errors mean.

If a transaction fails, its producer is given up. The next producer has the same transactional id, by which a broker
knows it and ends what the old producer has left open.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from streampca.errors import NoBrokerError, SourceError
from streampca.settings.kafka import KafkaSettings
from streampca.sources.base import (
    Admin,
    Committed,
    OutgoingFields,
    RecordRefusedError,
    TransactionFailedError,
    Transactions,
)
from streampca.sources.broker_errors import (
    INVALID_RECORD_CODES,
    INVALID_TRANSACTION_TIMEOUT,
    LOGIN_FAILED,
    NO_KEY,
    NOT_ALLOWED_CODES,
    TOO_LARGE_CODES,
    UNSUPPORTED_VERSION,
    BrokerErrors,
)
from streampca.sources.topic_options import is_compacted

ABORT_S = 2.0
REQUEST_BYTES = 100 * 1024 * 1024  # a broker's own limit: the topic's limit decides

# Codes of errors that no retry can fix: the user lacks a right, or brokers refuse the settings of every transaction.
_PERMANENT_CODES = NOT_ALLOWED_CODES | {UNSUPPORTED_VERSION, INVALID_TRANSACTION_TIMEOUT, LOGIN_FAILED}

# Value of `batch_bytes`: each record that is reported as refused was alone in its batch. A client that splits a refused
# batch does so, since it sends each record of the batch again alone before it reports a failure.
EACH_RECORD_ALONE = 0
_SMALLER_BY = 8  # if a batch was too large, the next batches are smaller by this factor
_REREAD_CONFIGS_AFTER_S = 120.0  # an operator may change a topic's options while we run


class Failure(NamedTuple):
    """The client's error of a record that was not delivered, or of a transaction."""

    error: Exception
    topic: str  # the record's; of a transaction, the topic of outputs
    size: int = 0  # the record's in bytes, as `record_size` counts them; 0: unknown, or a transaction
    lacks_key: bool = False  # whether this is the failure of a record without a key


class ClientTransactions(Transactions, ABC):
    """See `streampca.sources.base.Transactions`."""

    begin_s = 5.0  # time limit for starting a producer
    commit_s = 10.0  # time limit of a commit
    admin_class: type[Any]  # the client's `Admin`
    client_error: type[Exception]  # what the client raises
    # The producer fills a batch up to this size, and sends a larger record alone in a batch. Brokers refuse batches as
    # a whole: a smaller record may be refused as too large because another record of its batch is.
    batch_bytes: int

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Sequence[str],
        transactional_id: str,
        timeout_s: float,
        source: Any = None,
    ) -> None:
        """The first of the `topics` is the topic of outputs. Brokers abort a transaction after `timeout_s`.

        Transactions commit the offsets of the group that `source` has joined; without a source, they commit no offsets.
        Raises `SourceError`.
        """
        self._settings = settings
        self._output_topic = topics[0]
        self._transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._source = source
        self._is_transaction_open = False
        self._producer: Any = None  # None while no producer is open
        self._configs: Mapping[str, str] = {}  # of the output topic
        self._next_read_of_configs_at = 0.0  # by time.monotonic; 0: at the next call
        self._failures: list[Failure] = []  # of the current transaction
        # If brokers refuse a batch as too large, the next producer sends smaller batches.
        self._batch_bytes_of_next_producer = self.batch_bytes
        # True once brokers have refused a batch as too large. From then on, the size of each record is measured. A
        # record that is larger than a batch is sent alone: if it is refused, the record itself is too large.
        self._must_measure_records = False
        for topic in topics:
            self._count_partitions(topic)  # raises if the topic is missing

    @abstractmethod
    def _start_producer(self) -> None:
        """Set `_producer`, and let it end the transactions of earlier producers with its transactional id."""

    @abstractmethod
    def _send(self, producer: Any, records: Iterable[OutgoingFields]) -> None:
        """Add records to the transaction. If the client refuses a record, call `_give_up_and_raise`."""

    @abstractmethod
    def _commit(self, producer: Any, offsets: Mapping[int, Committed], membership: Any) -> None:
        """Commit the transaction with the offsets of a group member; without a group, `offsets` is empty.

        If a record was not delivered, call `_give_up_and_raise`.
        """

    @abstractmethod
    def _abort(self, producer: Any) -> None:
        """Abort the open transaction; raises `client_error`."""

    @abstractmethod
    def _close_producer(self, producer: Any) -> None:
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
        """Return the options of the topic for outputs, which are read again every two minutes."""
        if time.monotonic() >= self._next_read_of_configs_at:
            with contextlib.suppress(SourceError), self._open_admin(self._output_topic) as admin:
                configs = admin.topic_configs()
                if configs:  # empty if a broker does not tell the options: keep the earlier options
                    self._configs = configs
            self._next_read_of_configs_at = time.monotonic() + _REREAD_CONFIGS_AFTER_S
        return self._configs

    def recover(self) -> None:
        """Start a producer, unless one is open. The start ends the transaction that an earlier producer has left open.

        Raises `TimeoutError` if a later call may succeed.
        """
        if self._producer is not None:
            return
        try:
            self._start_producer()
        except NoBrokerError as error:  # raised before there is a producer
            raise TimeoutError(str(error)) from None
        except self.client_error as error:  # raised while the producer starts
            self._drop_producer()
            error_to_raise = self._find_error_to_raise(Failure(error, self._output_topic))
            if error_to_raise is not None:
                raise error_to_raise from None
            # A later call may succeed.
            _, text = self._code_and_text(error)
            raise TimeoutError(f"no transaction can begin: {text}") from None

    def send(self, records: Iterable[OutgoingFields]) -> None:
        self._send(self._begin_unless_open(), records)

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        """Commit the records that were sent, and these offsets of the source's group; without a source, no offsets."""
        producer = self._begin_unless_open()  # a transaction without records commits the offsets, too
        membership = None
        if self._source is not None:
            membership = self._source.membership  # read once: another thread may set it to None
            if membership is None:
                self._drop_producer()
                raise TransactionFailedError("the group has given this member up")
        try:
            self._commit(producer, offsets, membership)
        except self.client_error as error:
            self._give_up_and_raise(Failure(error, self._output_topic))
        self._is_transaction_open = False

    def abort(self) -> None:
        if self._producer is None or not self._is_transaction_open:
            return
        self._is_transaction_open = False
        try:
            self._abort(self._producer)
        except self.client_error:
            self._drop_producer()  # the next producer ends the transaction

    def close(self) -> None:
        self.abort()
        self._drop_producer()

    def _open_admin(self, topic: str) -> contextlib.closing[Admin]:
        return contextlib.closing(self.admin_class(self._settings, topic))

    def _count_partitions(self, topic: str) -> int:
        with self._open_admin(topic) as admin:
            return len(admin.require_topic().partitions)

    def _begin_unless_open(self) -> Any:
        """Begin a transaction unless one is open, and return its producer.

        Raises `TransactionFailedError`, or `SourceError` if no retry helps.
        """
        if self._producer is None:
            raise TransactionFailedError("the last transaction has failed")
        if not self._is_transaction_open:
            try:
                self._producer.begin_transaction()
            except self.client_error as error:
                self._give_up_and_raise(Failure(error, self._output_topic))
            self._is_transaction_open = True
            self._failures = []
        return self._producer

    def _give_up_and_raise(self, failure: Failure) -> NoReturn:
        """Give the producer up after a failure. Raise the first error that a retry of the same records cannot fix.

        If such a retry may fix all errors, raise `TransactionFailedError`.
        """
        self._drop_producer()
        # An earlier failure of the transaction may be the cause of this one.
        for possible_cause in [*self._failures, failure]:
            error_to_raise = self._find_error_to_raise(possible_cause)
            if error_to_raise is not None:
                raise error_to_raise from None
        _, text = self._code_and_text(failure.error)
        raise TransactionFailedError(text) from None

    def _find_error_to_raise(self, failure: Failure) -> SourceError | RecordRefusedError | None:
        """Return the error to raise after a failure; None if a retry of the same records may succeed.

        - `RecordRefusedError`: a retry may succeed after the refused record is changed or left out.
        - `SourceError`: no retry can succeed.
        """
        code, text = self._code_and_text(failure.error)
        is_any_key_missing = self._is_any_key_missing(failure)
        error = BrokerErrors(self._settings, failure.topic).explain(code, text, lacks_key=is_any_key_missing)
        if code in _PERMANENT_CODES:
            return error
        if code in TOO_LARGE_CODES or code in INVALID_RECORD_CODES:
            self._next_read_of_configs_at = 0.0  # the topic's limits may have changed: read them again at the next try
        if code in TOO_LARGE_CODES:
            return self._find_too_large_error(failure, code, error)
        if code in INVALID_RECORD_CODES:
            # Either a compacted topic refuses a record without a key, or a timestamp is refused. A retry can replace
            # the timestamp, but not add a key.
            is_missing_key_the_cause = code == NO_KEY and is_any_key_missing and self._is_compacted(failure.topic)
            if is_missing_key_the_cause:
                return error
            return RecordRefusedError(str(error), code)
        return None

    def _is_any_key_missing(self, failure: Failure) -> bool:
        """Return whether the record of this failure, or of another failure for the same topic, has no key.

        A record without a key makes brokers refuse all records of its request, also those with keys.
        """
        all_failures = [*self._failures, failure]
        return any(other.lacks_key for other in all_failures if other.topic == failure.topic)

    def _find_too_large_error(
        self, failure: Failure, code: int, error: SourceError
    ) -> SourceError | RecordRefusedError | None:
        """Return the error to raise for a record that was refused as too large; None if a retry may help.

        - If the record shared its batch, perhaps only the batch is too large. The next producer sends smaller batches,
          and the sizes of records are measured from then on.
        - If the record is an output, the result is `RecordRefusedError`, so that the caller can leave the output out.
        - Otherwise the result is `error`: for a dead letter, or for an output of unknown size.
        """
        # The client sends a record alone if the record is larger than a batch may be. An unknown size is 0, so such a
        # record counts as small.
        is_larger_than_batches = failure.size > self.batch_bytes
        is_each_record_alone = self.batch_bytes == EACH_RECORD_ALONE
        was_alone_in_batch = is_larger_than_batches or is_each_record_alone
        if not was_alone_in_batch:
            self._batch_bytes_of_next_producer = self.batch_bytes // _SMALLER_BY
            self._must_measure_records = True
            return None
        is_output = failure.topic == self._output_topic
        is_size_known = failure.size > 0
        if is_output and is_size_known:
            return RecordRefusedError(str(error), code, failure.size)
        return error

    def _is_compacted(self, topic: str) -> bool:
        """Return whether a topic is compacted; False if no broker tells."""
        with contextlib.suppress(SourceError), self._open_admin(topic) as admin:
            return is_compacted(admin.topic_configs())
        return False

    def _drop_producer(self) -> None:
        """Close the producer, if there is one. Brokers abort its transaction when the next producer starts."""
        if self._producer is not None:
            self._close_producer(self._producer)
        self._producer = None
        self._is_transaction_open = False
