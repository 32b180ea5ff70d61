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
        """Ask a broker for the id that the cluster gave the topic when it was created.

        The id is empty if the brokers give topics no ids (Kafka before 2.8).
        Raises `SourceError` if the topic does not exist, `TimeoutError` if no broker answers in time.
        """

    def partitions(self) -> frozenset[int]:
        """Return all partitions of the topic, as last reported by a broker; never waits."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Return the next events, of each partition at most one with records; [] if nothing happens in `timeout_s`.

        The first call joins the group.
        """

    def status(self) -> SourceStatus:
        """Return whether brokers answer and whether the group counts us in, as last known; never waits."""

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        """Read these partitions from these positions; None stands for the earliest record.

        `last` holds the last record that was read before the position, for each partition where it is known. If the
        log does not hold this record any more, `poll` returns `OutOfRange`.
        """

    def pause(self, partitions: frozenset[int]) -> None:
        """Return no records of these partitions until `seek` is called for them."""

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        """Commit offsets to the group, for lag tools and `committed`, with `metadata` of at most 4096 bytes.

        A failure is only logged.
        """

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        """Ask for the group's committed offsets of these partitions; a partition without one is left out.

        May be called before the first poll, and for partitions that are not assigned.
        Raises `TimeoutError` if no broker answers within some seconds, `SourceError` if waiting cannot fix the error.
        """

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        """Ask for the offset of each partition's first record with this timestamp or a later one.

        For a partition without such a record, and if `time_ms` is None, return the end of its committed records.
        Raises `TimeoutError` if no broker answers within some seconds, `SourceError` if waiting cannot fix the error.
        """

    def close(self) -> None:
        """Leave the group, within 3 seconds. Closing twice is harmless. No events are returned afterwards."""


class DeadLetters:
    """Writes rejected records to the dead-letter topic.

    This class itself serves a worker without a dead-letter topic, which never calls `send`.
    """

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        """In a subclass, send one rejected record. The base class has no dead-letter topic: nobody calls its `send`.

        `reason` is a short name for the kind of error, `message` describes it. A subclass raises `SourceError` if it
        cannot keep the record until the brokers have acknowledged it.
        """
        raise NotImplementedError("there is no dead-letter topic")

    def flush(self, timeout_s: float) -> None:
        """Wait until the brokers have acknowledged all records sent so far.

        Raises `TimeoutError` after `timeout_s` (the records are kept, and sent when the brokers are back), and
        `SourceError` if a record is refused and would be refused again.
        """

    def close(self) -> None:
        """Drop the records that are not acknowledged, and close the connections, within 2 seconds."""


class TransactionFailedError(Exception):
    """The transaction was not committed, or this is unknown. The group's committed offsets tell which."""


class RecordRefusedError(TransactionFailedError):
    """A record of the transaction was refused, and would be refused again: it must be changed, or left out."""

    def __init__(self, message: str, code: int, size: int = 0) -> None:
        """`code` is the code of the error in Kafka's protocol.

        If the record is too large, `size` is its size in bytes, as `record_size` counts it; else `size` is 0.
        """
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
        """Return the options of the topic for outputs, at most some minutes old; empty if no broker ever told them."""

    def recover(self) -> None:
        """End the transaction that has failed, or that an earlier process with the same transactional id has left open.

        Must also be called before the first transaction. Raises `TimeoutError` while the brokers do not answer.
        """

    def send(self, records: Iterable[OutgoingFields]) -> None:
        """Add records to the open transaction. If there is none, begin one."""

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        """Commit the records that were sent, and these next offsets with metadata of at most 4096 bytes.

        The offsets are of partitions that the source was assigned by its last event.
        """

    def abort(self) -> None:
        """Abort the open transaction, if there is one; never raises."""

    def close(self) -> None:
        """Abort the open transaction and close the connections, within 3 seconds."""


class Admin(Protocol):
    """Asks brokers about a topic for an operator, and creates it. All methods raise `SourceError`."""

    def brokers(self) -> list[tuple[str, str, int]]:
        """Return each broker's id, and the host and the port that it advertises."""

    def require_topic(self, timeout_s: float = 6.0, missing_s: float = 1.0) -> TopicDescription:
        """Ask for the topic; while it is missing, ask again for `missing_s`."""

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
