"""What arrives: records, the events in which a source hands them over, and what decoding makes of them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array


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

    @abstractmethod
    def offsets(self) -> list[int]:
        """The offset of each."""


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    """The value of each record."""
    return records.values() if isinstance(records, Batch) else [record.value for record in records]


def timestamps_of(records: Sequence[Record]) -> list[int]:
    """The timestamp of each record."""
    return records.timestamps() if isinstance(records, Batch) else [record.timestamp for record in records]


def offsets_of(records: Sequence[Record]) -> Sequence[int]:
    """The offset of each record; where none is missing between the first and the last, without a look at the others."""
    if not records:
        return ()
    first, last = records[0].offset, records[-1].offset
    if last - first == len(records) - 1:
        return range(first, last + 1)
    return records.offsets() if isinstance(records, Batch) else [record.offset for record in records]


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

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.records)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(len(value) for value in values_of(self.records) if value is not None)


class Reject(NamedTuple):
    """A value that is no vector: its place in the batch, the short name of the fault, and what was wrong."""

    place: int
    reason: str
    message: str


class Decoded(NamedTuple):
    """The vectors (n, d) of a batch in order, and the rest by rising place.

    `places` (m,) are those of the values that hold vectors, `counts` (m,) how many each holds: 1, but for formats whose
    values hold several. A value that holds none and is no fault is in neither.
    """

    vectors: Array
    places: NDArray[np.int64]
    rejects: list[Reject]
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """What was decoded of `Records`; of these, only those that hold no vector are left.

    `timestamps` (m,) are those of the records that hold vectors; `rejected` are the others, as in `decoded.rejects`.
    `offsets` are those of all records, by their places.
    """

    partition: int
    decoded: Decoded
    timestamps: NDArray[np.int64]
    rejected: Sequence[Record]
    offsets: Sequence[int]
    next: int
    end: int

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.timestamps) + len(self.rejected)

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors, and of the values that hold none."""
        return self.decoded.vectors.nbytes + sum(len(record.value or b"") for record in self.rejected)

    def first(self, most: int) -> "Vectors":
        """The leading records, as many as hold no more than so many vectors together; `next` is that of the others."""
        places, counts = self.decoded.places, self.decoded.counts
        taken = int(np.searchsorted(counts.cumsum(), most, side="right"))
        return self if taken == len(places) else self.before(int(places[taken]))

    def before(self, place: int) -> "Vectors":
        """The records before that place of the batch; `next` is the offset of the record there."""
        vectors, places, rejects, counts = self.decoded
        taken = int(np.searchsorted(places, place))
        rejects = [reject for reject in rejects if reject.place < place]
        return replace(
            self,
            decoded=Decoded(vectors[: counts[:taken].sum()], places[:taken], rejects, counts[:taken]),
            timestamps=self.timestamps[:taken],
            rejected=self.rejected[: len(rejects)],
            offsets=self.offsets[:place],
            next=self.offsets[place],
        )


@dataclass(frozen=True, slots=True)
class Undecoded:
    """So many `Records`, from this position on, that cannot be decoded now, through no fault of theirs."""

    partition: int
    position: int
    count: int
    end: int  # of the partition's log
    cause: str


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The position asked for is not in the log any more (or not yet). Nothing comes until `Source.seek`."""

    partition: int
    position: int
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source stands with the brokers."""

    connected: bool  # a broker has answered lately
    member: bool  # the group is settled and counts us in, with partitions or without


Event = Assigned | Revoked | Lost | Records | Vectors | Undecoded | OutOfRange
