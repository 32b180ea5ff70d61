"""The interfaces to Kafka: to read records, to write outputs and dead letters, and to ask brokers about a topic.

A position is always the *next* offset to read, never the last offset that was read.

A source returns events in the order in which they happened. When the caller calls `poll` or `close` again, it has
handled the events of the call before. Until then a `Revoked` partition is still ours: the worker saves a checkpoint
while it handles the event, and no other worker can read the partition. There are no callbacks: the worker is one
thread with one loop.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from streampca.formats.record import NO_RECORDS, LastRecord, Record
from streampca.sources.events import Event, SourceStatus

MAX_POLL_RECORDS = 2000
"""The most records that a poll returns: enough that its overhead is small, few enough that the next poll is soon."""

MAX_POLL_INTERVAL_S = 60
"""The group removes a member that does not poll for this long; a rebalance waits this long for the slowest member."""

IN_FLIGHT_MIB = 32
"""Limit of the records and vectors in flight: several fetches fit in, so that learning does not wait for a fetch."""


class TopicDescription(NamedTuple):
    """A topic, as a broker describes it to this user."""

    id: str  # as Kafka's own tools print it; empty if the brokers give topics no ids
    in_sync: Mapping[int, int]  # partition → number of its replicas that are in sync; 0 if it has no leader
    is_writable: bool = True  # whether this user may write; also true if the brokers do not say (before Kafka 2.3)

    @property
    def partitions(self) -> Collection[int]:
        return self.in_sync.keys()


class Committed(NamedTuple):
    """An offset that the group has committed, with the text that the member has stored with it."""

    offset: int
    metadata: str = ""


Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = list[Header]


class Source(Protocol):
    """A member of the consumer group that reads one topic.

    If an error cannot be fixed by waiting (unknown topic, wrong login, missing rights), every method raises
    `SourceError`. While the brokers are away, `poll` returns no events; the outage is logged once.
    """

    def topic_id(self) -> str:
        """Ask a broker for the id of the topic; empty if the brokers give topics no ids (Kafka before 2.8).

        Raises `TimeoutError` if no broker answers.
        """

    def partitions(self) -> frozenset[int]:
        """Return all partitions of the topic, as last reported by a broker; never waits."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Wait at most `timeout_s` for the next events, and return them. The first call joins the group."""

    def status(self) -> SourceStatus:
        """Return whether brokers answer, and whether we are a member of the group; never waits."""

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        """Read these partitions from these positions; None stands for the earliest record.

        `last` holds the known last records before the positions. If the log has lost one, `poll` returns `OutOfRange`.
        """

    def pause(self, partitions: frozenset[int]) -> None:
        """Return no records of these partitions until `seek` is called for them."""

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        """Commit offsets to the group, with `metadata` of at most 4096 bytes. A failure is only logged."""

    def committed(self) -> dict[int, Committed]:
        """Ask for the group's committed offsets of all partitions; a partition without one is left out.

        Raises `TimeoutError` if no broker answers.
        """

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        """Ask for the offset of each partition's first record with this timestamp or a later one.

        Without such a record, or if `time_ms` is None, it is the end of the committed records. Raises `TimeoutError`.
        """

    def close(self) -> None:
        """Leave the group, within 3 seconds. Closing twice is harmless. No events are returned afterwards."""


class DeadLetters(Protocol):
    """Writes rejected records to the dead-letter topic."""

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        """Send one rejected record, and do not wait for the answer. Raises `SourceError`.

        `reason` is a short name for the kind of error, `message` describes it.
        """

    def flush(self, timeout_s: float) -> None:
        """Wait until the brokers have acknowledged all records sent so far.

        After a `TimeoutError`, the records are still kept. Raises `SourceError` if a record is refused.
        """

    def close(self) -> None:
        """Drop the records that are not acknowledged, and close the connections, within 2 seconds."""


class NoDeadLetters(DeadLetters):
    """Stands for a missing dead-letter topic. Nobody may call `send`, and there is nothing to flush or to close."""

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        raise NotImplementedError("without a dead-letter topic, `send` must not be called")

    def flush(self, timeout_s: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class TransactionFailedError(Exception):
    """The transaction was not committed, or this is unknown. The group's committed offsets tell which."""


class RecordRefusedError(TransactionFailedError):
    """A record of the transaction was refused, and would be refused again: it must be changed, or left out."""

    def __init__(self, message: str, code: int, size: int = 0) -> None:
        """`code` is the error's code in Kafka's protocol; `size`, in bytes, is 0 unless the record is too large."""
        super().__init__(message)
        self.code = code
        self.size = size


class Outgoing(NamedTuple):
    """A record to be written."""

    topic: str
    partition: int | None  # None: the key decides
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int  # milliseconds since 1970; negative: the time of sending


OutgoingFields: TypeAlias = tuple[str, int | None, bytes | None, bytes | None, Headers, int]
"""The fields of an `Outgoing` in a plain tuple.

This is an optimisation: a plain tuple is made in a quarter of the time, and one is made for each output.
"""


class Transactions(Protocol):
    """Writes records, and offsets of one source's group, in one transaction: both become visible, or neither does.

    The offsets are committed with the metadata of the consumer group (KIP-447), so a member that the group has given up
    cannot commit. If `send` or `commit` raises `TransactionFailedError`, `recover` must succeed before the next call.
    If an error cannot be fixed by waiting, every method except `topic_configs` raises `SourceError`. All methods return
    within some seconds.
    """

    def partitions(self, topic: str) -> int:
        """Ask a broker for the number of partitions of a topic. Raises `TimeoutError`."""

    def topic_configs(self) -> Mapping[str, str]:
        """Return the options of the topic for outputs, at most some minutes old; empty if they are unknown."""

    def recover(self) -> None:
        """End the transaction that has failed, or that an earlier process with the same transactional id has left.

        Call it also before the first transaction. Raises `TimeoutError` if no broker answers.
        """

    def send(self, records: Iterable[OutgoingFields]) -> None:
        """Add records to the open transaction. If there is none, begin one."""

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        """Commit the records that were sent, and these next offsets with metadata of at most 4096 bytes."""

    def abort(self) -> None:
        """Abort the open transaction, if there is one; never raises."""

    def close(self) -> None:
        """Abort the open transaction and close the connections, within 3 seconds."""


class Admin(Protocol):
    """Asks brokers about a topic for an operator, and creates it. All methods raise `SourceError`."""

    def brokers(self) -> list[tuple[str, str, int]]:
        """Return each broker's id, and the host and the port that it advertises."""

    def require_topic(self, timeout_s: float = 6.0, wait_for_topic_s: float = 1.0) -> TopicDescription:
        """Ask for the topic. If it does not exist, ask again until `wait_for_topic_s` have passed."""

    def topic_configs(self) -> Mapping[str, str]:
        """Return the topic's options, also those with default values; empty without the right to read them."""

    def log_bounds(self) -> dict[int, tuple[int, int]]:
        """Return the earliest offset and the high watermark of each partition."""

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        """Create the topic, unless somebody else has created it meanwhile.

        If `partitions` or `replicas` is -1, the brokers' default number is used.
        """

    def close(self) -> None:
        """Close the connection."""
