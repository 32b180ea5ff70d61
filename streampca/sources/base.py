"""The seam between the worker and Kafka: where records come from, and where those that cannot be learned go.

Positions are always the *next* offset to read, never the last one read.

A source hands over events in the order in which they happened. Handling an event is finished by the next call
of `poll` or `close`; until then a `Revoked` partition is still ours, so a worker saves while it handles the event
and no other worker can read the partition meanwhile. No callback ever runs: the worker is one thread, one loop.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from streampca.stream.record import Event, Record, SourceStatus


class Source(Protocol):
    """One member of the consumer group, reading one topic.

    All methods raise `SourceError` for what waiting cannot cure (unknown topic, wrong credentials, not authorized).
    A broker that is away is waited out: `poll` returns no events meanwhile and says so in the log once.
    """

    def topic_id(self) -> str:
        """The identity that the cluster gave the topic when it was created; asked of the broker afresh each time.

        Empty when the brokers give topics none (Kafka before 2.8).
        Raises `SourceError` when the topic does not exist, `TimeoutError` when no broker answers in time.
        """

    def partitions(self) -> frozenset[int]:
        """All partitions that the topic has, as last heard; never waits."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """The next events, of each partition's records no more than one; empty when none came within `timeout_s`."""

    def status(self) -> SourceStatus:
        """How we stand with the brokers, as last heard; never waits."""

    def seek(self, positions: Mapping[int, int | None]) -> None:
        """Read these partitions from these positions on; None means from the earliest record there is."""

    def pause(self, partitions: frozenset[int]) -> None:
        """Hand over no records of these partitions until `seek` is called for them."""

    def commit(self, positions: Mapping[int, int]) -> None:
        """Tell the group how far we are, for lag tools only: a failure is logged and otherwise ignored."""

    def close(self) -> None:
        """Leave the group, within 3 seconds. Closing twice is harmless. No events are handed over any more."""


class TopicInspector(Protocol):
    """Answers questions about a topic and the consumer group, without joining the group.

    All methods raise `SourceError` when brokers refuse or do not answer within some seconds.
    """

    def topic_id(self) -> str:
        """As `Source.topic_id`."""

    def check_topic(self, name: str) -> None:
        """Raise `SourceError` unless the other topic exists and may be used."""

    def offsets(self) -> dict[int, tuple[int, int]]:
        """The earliest offset and the end of each partition."""

    def committed(self) -> dict[int, int]:
        """The group's committed offsets, of the partitions that have one."""

    def newest_record(self, ends: Mapping[int, int]) -> tuple[int, Record] | None:
        """The newest of the last records of these partitions, with its partition; None if none came in time."""

    def close(self) -> None:
        """Close the connections."""


class DeadLetters(Protocol):
    """Where records go that cannot be learned."""

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        """Hand over one record; `reason` is the short name of the class of fault, `message` says what was wrong."""

    def flush(self, timeout_s: float) -> None:
        """Return when every record sent so far is acknowledged by the broker.

        Raises `TimeoutError` when that takes longer (the records are kept and sent as soon as the broker is back), and
        `SourceError` when a record is refused for good.
        """

    def close(self) -> None:
        """Give up what is not flushed; within 2 seconds."""


class NoDeadLetters:
    """For a worker that stops at a bad record, or skips it: nothing is ever sent."""

    def send(self, partition: int, record: Record, reason: str, message: str) -> None:
        """Never called: the worker only sends where a dead-letter topic is set."""
        raise NotImplementedError("there is no dead-letter topic")

    def flush(self, timeout_s: float) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to give up."""
