"""Records as sources read them, one by one and by columns; and as vectors: batches, which a fold takes in one step."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array


@dataclass(frozen=True, slots=True)
class Record:
    """One message of a partition. kafka-python's ConsumerRecord has the same fields, so it is not copied."""

    offset: int  # position in the partition; offsets may have gaps (transactions, compaction)
    value: bytes | None
    timestamp: int = -1  # milliseconds since 1970, set by the producer or the broker; -1: unknown
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    leader_epoch: int = -1  # number of leaders before the one that wrote it; -1, and None of clients: unknown


class LastRecord(NamedTuple):
    """The last record that was read of a partition: a log that was cut and has grown again has another one there."""

    offset: int
    leader_epoch: int


NO_RECORDS: Mapping[int, LastRecord] = MappingProxyType({})


class Columns(Sequence[Record]):
    """Records that provide their columns without creating an object for each record."""

    @abstractmethod
    def column(self, name: str) -> list[Any]:
        """The field of this name of each record."""


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    return _column(records, "value")


def timestamps_of(records: Sequence[Record]) -> list[int]:
    return _column(records, "timestamp")


def keys_of(records: Sequence[Record]) -> list[bytes | None]:
    return _column(records, "key")


def headers_of(records: Sequence[Record]) -> list[Sequence[tuple[str, bytes | None]]]:
    return _column(records, "headers")


def offsets_of(records: Sequence[Record]) -> NDArray[np.int64]:
    """The offset of each of n records, (n,)."""
    if not records:
        return np.zeros(0, np.int64)
    first, last = records[0].offset, records[-1].offset
    if last - first == len(records) - 1:  # there are no gaps: spares reading the records in between
        return np.arange(first, last + 1, dtype=np.int64)
    return np.array(_column(records, "offset"), np.int64)


def last_of(records: Sequence[Record]) -> LastRecord | None:
    """The last of these records; None if its epoch is unknown."""
    epoch = records[-1].leader_epoch if len(records) else None
    return None if epoch is None or epoch < 0 else LastRecord(records[-1].offset, epoch)


def _column(records: Sequence[Record], name: str) -> list[Any]:
    return records.column(name) if isinstance(records, Columns) else [getattr(record, name) for record in records]


@dataclass(frozen=True, slots=True, order=True)
class Reject:
    """A value that is not a vector: its index in the batch, the short name of the reason, and a message."""

    index: int
    reason: str
    message: str


class Decoded(NamedTuple):
    """The vectors (n, d) of a batch in order, the rejected values in order, and those that are deletes.

    `indices` (m,) list the values that hold vectors, and `counts` (m,) how many vectors each holds: 1, except in
    formats whose values hold several. `skipped` are the indices of deletes: tombstones and nulls in place of a vector.
    A valid batch of no vectors is in none of these.
    """

    vectors: Array
    indices: NDArray[np.int64]
    rejects: list[Reject]
    counts: NDArray[np.int64]
    skipped: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The next records of a stream, decoded: what a fold takes in one step.

    `timestamps` (m,) has the time of each record that holds vectors, in milliseconds; -1: unknown. `records` are all
    records of the batch; none, if the vectors come from a file. `next` is the position after them.
    """

    decoded: Decoded
    timestamps: NDArray[np.int64]
    records: Sequence[Record]
    next: int

    @property
    def count(self) -> int:
        """Number of records that hold vectors, are rejected, or are deletes."""
        return len(self.timestamps) + len(self.decoded.rejects) + len(self.decoded.skipped)

    @property
    def last(self) -> LastRecord | None:
        return last_of(self.records)

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors and values."""
        return self.decoded.vectors.nbytes + sum(map(len, filter(None, values_of(self.records))))

    def rejecting(self, reason: str, messages: Mapping[int, str]) -> Self:
        """The same batch with records rejected, by their offsets."""
        vectors, indices, rejects, counts, skipped = self.decoded
        offsets = offsets_of(self.records)
        new = [Reject(i, reason, messages[o]) for i in indices.tolist() if (o := int(offsets[i])) in messages]
        kept = ~np.isin(indices, [reject.index for reject in new])
        rest = vectors[np.repeat(kept, counts)], indices[kept], sorted([*rejects, *new]), counts[kept], skipped
        return replace(self, decoded=Decoded(*rest), timestamps=self.timestamps[kept])

    def before(self, index: int) -> Self:
        """The records before this one of the batch; `next` is its offset."""
        vectors, indices, rejects, counts, skipped = self.decoded
        m = int(np.searchsorted(indices, index))
        rejects = [reject for reject in rejects if reject.index < index]
        skipped = [i for i in skipped if i < index]
        return replace(
            self,
            decoded=Decoded(vectors[: counts[:m].sum()], indices[:m], rejects, counts[:m], skipped),
            timestamps=self.timestamps[:m],
            records=self.records[:index],
            next=self.records[index].offset,
        )


def batch_of_rows(vectors: Array, end: int) -> Batch:
    """Vectors (n, d) of a file or an array as a batch before the position `end`, without times."""
    n = len(vectors)
    return Batch(Decoded(vectors, np.arange(n), [], np.ones(n, np.int64)), np.full(n, -1), (), end)
