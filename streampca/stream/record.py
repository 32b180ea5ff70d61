"""What arrives: records, and the events in which a source hands them over."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Record(Protocol):
    """One message of a partition. kafka-python's ConsumerRecord is one as it stands, so none is copied."""

    @property
    def offset(self) -> int:
        """Place in the partition; offsets may have gaps (transactions, compaction)."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, as the producer or the broker wrote them; -1 when unknown."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


@dataclass(frozen=True, slots=True)
class PlainRecord:
    """A record of our own making, for the in-memory source and for tests."""

    offset: int
    value: bytes | None
    timestamp: int = -1
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Batch(Sequence[Record]):
    """Records whose columns can be had without making a record of each."""

    @abstractmethod
    def values(self) -> list[bytes | None]:
        """The value of each."""

    @abstractmethod
    def timestamps(self) -> list[int]:
        """The timestamp of each."""


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    """The value of each record."""
    return records.values() if isinstance(records, Batch) else [record.value for record in records]


def timestamps_of(records: Sequence[Record]) -> list[int]:
    """The timestamp of each record."""
    return records.timestamps() if isinstance(records, Batch) else [record.timestamp for record in records]


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions are ours now. No record of theirs comes before `Source.seek` was called for them."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Revoked:
    """These partitions go to another worker. They are still ours until the next `poll` or `close`: save now."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions went to another worker some time ago: drop what was learned since the last checkpoint."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Records:
    """The next records of one partition, by rising offset, starting at the position asked for or last reached.

    `end` is the position behind the last record that the partition holds now (the high watermark: what an unfinished
    transaction holds back counts as lag).
    `next` is the position behind the records; it may pass over offsets that hold no record, and may move without any:
    then `records` is empty.
    """

    partition: int
    records: Sequence[Record]
    next: int
    end: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The position asked for is not in the log any more (or not yet). Nothing comes until `Source.seek`."""

    partition: int
    position: int
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How a source stands with the brokers."""

    connected: bool  # a broker has answered lately
    member: bool  # the group is settled and counts us in, with partitions or without


Event = Assigned | Revoked | Lost | Records | OutOfRange
