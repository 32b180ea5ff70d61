"""The interfaces to Kafka: where records come from, and where rejected ones and outputs are written to.

Positions are always the *next* offset to read, never the last one read.

A source returns events in the order in which they happened. The next call of `poll` or `close` says that they have been
handled. Until then a `Revoked` partition is still ours: the worker saves a checkpoint while it handles the event, and
no other worker can read the partition. There are no callbacks: the worker is one thread with one loop.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from streampca.formats.record import NO_RECORDS, LastRecord, Record
from streampca.sources.events import Event, SourceStatus

MAX_POLL_RECORDS = 2000
"""Maximum records per poll: enough to share its overhead, few enough that the next poll is soon."""

MAX_POLL_INTERVAL_S = 60
"""The group removes a member that polls less often; a rebalance waits this long for the slowest."""

IN_FLIGHT_MIB = 32
"""Limit of the records and vectors in flight: several fetches, so that learning never waits for one."""


class TopicDescription(NamedTuple):
    """A topic, as a broker describes it to this user."""

    id: str  # as Kafka's own tools print it; empty if the brokers give topics none
    in_sync: Mapping[int, int]  # partition → number of its replicas that are in sync; 0 if it has no leader
    is_writable: bool = True  # also if the brokers do not say so (before Kafka 2.3)


class Committed(NamedTuple):
    """An offset that the group has committed, with the text that the member which committed it has added."""

    offset: int
    metadata: str = ""


Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = list[Header]


class Source(Protocol):
    """A member of the consumer group that reads one topic.

    All methods raise `SourceError` for errors that waiting cannot fix (unknown topic, wrong login, missing rights).
    While the brokers are away, `poll` returns no events; the outage is logged once.
    """

    def topic_id(self) -> str:
        """The id that the cluster gave the topic when it was created; requested from a broker at each call.

        Empty if the brokers give topics no id (Kafka before 2.8).
        Raises `SourceError` if the topic does not exist, `TimeoutError` if no broker answers in time.
        """

    def partitions(self) -> frozenset[int]:
        """All partitions of the topic, as last reported by a broker; never waits."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """The next events, at most one with records for each partition; empty if none came within `timeout_s`.

        The first call joins the group.
        """

    def status(self) -> SourceStatus:
        """Return whether brokers answer and the group counts us in, as last known; never waits."""

    def seek(self, positions: Mapping[int, int | None], last: Mapping[int, LastRecord] = NO_RECORDS) -> None:
        """Read these partitions from these positions; None means from the earliest record.

        `last` are the last records read before them, where they are known. If the log does not hold such a record any
        more, `OutOfRange` is returned with the position after it.
        """

    def pause(self, partitions: frozenset[int]) -> None:
        """Return no records of these partitions until `seek` is called for them."""

    def commit(self, positions: Mapping[int, int], metadata: str = "") -> None:
        """Commit offsets to the group, for lag tools and `committed`, with `metadata` of at most 4096 bytes.

        A failure is logged and otherwise ignored.
        """

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        """The group's committed offsets of these partitions; those without one are left out.

        May be called before the first poll, and for partitions that are not assigned.
        Raises `TimeoutError` if no broker answers within some seconds, and `SourceError` for what waiting cannot fix.
        """

    def offsets_at(self, partitions: Collection[int], time_ms: int | None) -> dict[int, int]:
        """The offset of each partition's first record with this timestamp or a later one, or its end; None: the end.

        Raises `TimeoutError` if no broker answers within some seconds, and `SourceError` for what waiting cannot fix.
        """

    def close(self) -> None:
        """Leave the group, within 3 seconds. Closing twice is harmless. No events are returned afterwards."""


class DeadLetters:
    """Writes rejected records to the dead-letter topic; this one is for a worker without: it has nothing to send."""

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        """Send one record; `reason` is a short name for the kind of error, `message` describes it.

        Raises `SourceError` if it cannot be kept until the brokers have it.
        """
        raise NotImplementedError("there is no dead-letter topic")

    def flush(self, timeout_s: float) -> None:
        """Return when the brokers have acknowledged all records sent so far.

        Raises `TimeoutError` if that takes longer (the records are kept, and sent when the brokers are back), and
        `SourceError` if a record is refused finally.
        """

    def close(self) -> None:
        """Drop what is not flushed; within 2 seconds."""


class TransactionFailedError(Exception):
    """The transaction was not committed, or nobody knows: the offsets that the group has committed say which."""


class RecordRefusedError(TransactionFailedError):
    """A record of the transaction was refused, and would be again: it has to be sent in another way, or not at all."""

    def __init__(self, message: str, code: int, size: int = 0) -> None:
        """With the error's code in Kafka's protocol, and the record's size (`record_size`) if that is the reason."""
        super().__init__(message)
        self.code, self.size = code, size


class Outgoing(NamedTuple):
    """A record to be written; without a partition, its key decides."""

    topic: str
    partition: int | None
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int  # milliseconds since 1970; negative: the time of sending


OutgoingFields: TypeAlias = tuple[str, int | None, bytes | None, bytes | None, Headers, int]
"""The fields of an `Outgoing`: a plain tuple takes a quarter of its time, which counts where each record makes one."""


class Transactions(Protocol):
    """Writes records to topics and offsets to the group of one source in one transaction: both are there or neither.

    The consumer group's metadata go with the offsets (KIP-447): a member that the group has given up cannot commit.
    `send` and `commit` raise `TransactionFailedError`; then `recover` must succeed before the next call. All methods
    but `topic_configs` raise `SourceError` for errors that waiting cannot fix; all return within some seconds.
    """

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic; requested from a broker. Raises `TimeoutError`."""

    def topic_configs(self) -> Mapping[str, str]:
        """The options of the topic for outputs, at most some minutes old; empty if the brokers never said them."""

    def recover(self) -> None:
        """Be ready for a transaction: end the one that failed, or that an earlier process of this id has left open.

        Also to be called before the first one. Raises `TimeoutError` while the brokers do not answer.
        """

    def send(self, records: Iterable[OutgoingFields]) -> None:
        """Add records to the transaction, which begins if none is open."""

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        """Commit the records sent and these next offsets of the source's topic, with metadata of at most 4096 bytes.

        The offsets are of partitions that the source was assigned by its last event.
        """

    def abort(self) -> None:
        """Abort the open transaction, if there is one; never raises."""

    def close(self) -> None:
        """Abort the open transaction and close the connections, within 3 seconds."""


class Admin(Protocol):
    """Asks brokers about a topic for an operator, and creates it. All methods raise `SourceError`."""

    def brokers(self) -> list[tuple[str, str, int]]:
        """Each broker's id, and the host and port that it advertises."""

    def require_topic(self, timeout_s: float = 6.0, missing_s: float = 1.0) -> TopicDescription:
        """The topic; one that is missing is asked for again for `missing_s`."""

    def topic_configs(self) -> Mapping[str, str]:
        """The topic's options, also those with default values; empty without the right to read them."""

    def log_ends(self) -> dict[int, tuple[int, int]]:
        """The earliest offset and the high watermark of each partition."""

    def create(self, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        """Create the topic, unless somebody else has a moment ago; -1: with the brokers' number."""

    def close(self) -> None:
        """Close the connection."""
