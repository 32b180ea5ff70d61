"""Records, the events that sources return, and decoded records."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streampca.stream.decoded import Decoded


class Record(Protocol):
    """One message of a partition. kafka-python's ConsumerRecord satisfies this, so it is not copied."""

    @property
    def offset(self) -> int:
        """Position in the partition; offsets may have gaps (transactions, compaction)."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, set by the producer or the broker; -1 if unknown."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...

    @property
    def leader_epoch(self) -> int | None:
        """How often the partition had changed its leader when the record was written; -1 or None if unknown."""


class LastRecord(NamedTuple):
    """The last record that was read of a partition: a log that was cut and has grown again has another one there."""

    offset: int
    leader_epoch: int


NO_RECORDS: Mapping[int, LastRecord] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PlainRecord:
    """A record of the in-memory source and of tests."""

    offset: int
    value: bytes | None
    timestamp: int = -1
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    leader_epoch: int = -1


class UnreadValue(bytes):
    """The empty value of a record that stands for others, which the source cannot read; says why."""

    def __new__(cls, message: str) -> "UnreadValue":
        value = super().__new__(cls)
        value.message = message
        return value

    message: str


class Batch(Sequence[Record]):
    """Records that provide their columns without creating an object for each record."""

    @abstractmethod
    def values(self) -> list[bytes | None]:
        """The value of each record."""

    @abstractmethod
    def timestamps(self) -> list[int]:
        """The timestamp of each record."""

    @abstractmethod
    def offsets(self) -> list[int]:
        """The offset of each record."""

    @abstractmethod
    def keys(self) -> list[bytes | None]:
        """The key of each record."""

    @abstractmethod
    def headers(self) -> list[Sequence[tuple[str, bytes | None]]]:
        """The headers of each record."""


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    """The value of each record."""
    return records.values() if isinstance(records, Batch) else [record.value for record in records]


def timestamps_of(records: Sequence[Record]) -> list[int]:
    """The timestamp of each record."""
    return records.timestamps() if isinstance(records, Batch) else [record.timestamp for record in records]


def keys_of(records: Sequence[Record]) -> list[bytes | None]:
    """The key of each record."""
    return records.keys() if isinstance(records, Batch) else [record.key for record in records]


def headers_of(records: Sequence[Record]) -> list[Sequence[tuple[str, bytes | None]]]:
    """The headers of each record."""
    return records.headers() if isinstance(records, Batch) else [record.headers for record in records]


def offsets_of(records: Sequence[Record]) -> Sequence[int]:
    """The offset of each record; a range if there are no gaps, which does not read the records in between."""
    if not records:
        return ()
    first, last = records[0].offset, records[-1].offset
    if last - first == len(records) - 1:
        return range(first, last + 1)
    return records.offsets() if isinstance(records, Batch) else [record.offset for record in records]


def last_of(records: Sequence[Record]) -> LastRecord | None:
    """The last of these records; None if its epoch is unknown."""
    epoch = records[-1].leader_epoch if len(records) else None
    return None if epoch is None or epoch < 0 else LastRecord(records[-1].offset, epoch)


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions were assigned to us. Their records come after `Source.seek` was called for them."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Revoked:
    """These partitions are about to be assigned to another worker; ours until the next `poll` or `close`: save now."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions belong to another worker already: drop what was learned since the last checkpoint."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Records:
    """The next records of one partition in the order of their offsets.

    `next` is the position after them. It may skip offsets without a record, and may advance with no records at all.
    `end` is the partition's high watermark (records of an unfinished transaction count as lag).
    """

    partition: int
    records: Sequence[Record]
    next: int
    end: int

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.records)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(len(value) for value in values_of(self.records) if value is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Decoded `Records`.

    `timestamps` (m,) are those of the records that hold vectors. `records` are all records by their places in the
    batch: any of them may still be rejected, and is then a dead letter.
    """

    partition: int
    decoded: Decoded
    timestamps: NDArray[np.int64]
    records: Sequence[Record]
    next: int
    end: int

    @property
    def count(self) -> int:
        """Number of records that hold vectors or are rejected."""
        return len(self.timestamps) + len(self.decoded.rejects)

    @property
    def last(self) -> LastRecord | None:
        """The last record; None if its leader epoch is unknown."""
        return last_of(self.records)

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors and values."""
        return self.decoded.vectors.nbytes + sum(map(len, filter(None, values_of(self.records))))

    def before(self, place: int) -> "Vectors":
        """The records before that place in the batch; `next` is the offset of the record at the place."""
        vectors, places, rejects, counts = self.decoded
        taken = int(np.searchsorted(places, place))
        rejects = [reject for reject in rejects if reject.place < place]
        return replace(
            self,
            decoded=Decoded(vectors[: counts[:taken].sum()], places[:taken], rejects, counts[:taken]),
            timestamps=self.timestamps[:taken],
            records=self.records[:place],
            next=self.records[place].offset,
        )


@dataclass(frozen=True, slots=True)
class Undecoded:
    """Records that cannot be decoded for now, although nothing may be wrong with them; `count` of them."""

    partition: int
    position: int
    count: int
    end: int  # of the partition's log
    cause: str


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The position is not in the log any more (or not yet). No records come until `Source.seek`.

    If the log was cut and has grown again, it holds other records than those that were read: at least from `diverged`
    on, and maybe from an earlier offset, which not every client reports.
    """

    partition: int
    position: int
    earliest: int
    latest: int
    diverged: int | None = None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A source's state in the cluster."""

    connected: bool  # a broker has answered recently
    member: bool  # of a stable group, with partitions or without


Event = Assigned | Revoked | Lost | Records | Vectors | Undecoded | OutOfRange
