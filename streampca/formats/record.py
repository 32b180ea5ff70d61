"""Records as sources read them, one by one and by columns; and batches, which hold the vectors of records."""

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
    """A message of a partition. kafka-python's ConsumerRecord has the same fields, so it is not copied."""

    offset: int  # position in the partition; some offsets have no record (transactions, compaction)
    value: bytes | None
    timestamp: int = -1  # milliseconds since 1970, set by the producer or the broker; -1: unknown
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    leader_epoch: int = -1  # number of leaders before the one that wrote it; -1, and None of clients: unknown


class LastRecord(NamedTuple):
    """The last record that was read of a partition.

    If the log was cut and has grown again, it holds a record with another epoch at this offset.
    """

    offset: int
    leader_epoch: int


NO_RECORDS: Mapping[int, LastRecord] = MappingProxyType({})


class Columns(Sequence[Record]):
    """Records that provide their columns without creating an object for each record."""

    @abstractmethod
    def column(self, name: str) -> list[Any]:
        """Return the field of this name of each record."""


def values_of(records: Sequence[Record]) -> list[bytes | None]:
    return _column(records, "value")


def timestamps_of(records: Sequence[Record]) -> list[int]:
    return _column(records, "timestamp")


def keys_of(records: Sequence[Record]) -> list[bytes | None]:
    return _column(records, "key")


def headers_of(records: Sequence[Record]) -> list[Sequence[tuple[str, bytes | None]]]:
    return _column(records, "headers")


def offsets_of(records: Sequence[Record]) -> NDArray[np.int64]:
    """Return the offsets of n records, (n,)."""
    if not records:
        return np.zeros(0, np.int64)
    first = records[0].offset
    last = records[-1].offset
    are_consecutive = last - first == len(records) - 1
    if are_consecutive:  # this is faster than reading the offset of each record
        return np.arange(first, last + 1, dtype=np.int64)
    return np.array(_column(records, "offset"), np.int64)


def last_of(records: Sequence[Record]) -> LastRecord | None:
    """Return the last record; None if there is none, or if its epoch is unknown."""
    if len(records) == 0:
        return None
    last = records[-1]
    is_unknown = last.leader_epoch is None or last.leader_epoch < 0
    return None if is_unknown else LastRecord(last.offset, last.leader_epoch)


def _column(records: Sequence[Record], name: str) -> list[Any]:
    if isinstance(records, Columns):
        return records.column(name)
    return [getattr(record, name) for record in records]


@dataclass(frozen=True, slots=True, order=True)
class Reject:
    """A value that is not a vector: its index in the batch, the short name of the reason, and a message."""

    index: int
    reason: str
    message: str


class Decoded(NamedTuple):
    """The vectors of a batch, its rejects, and its deletes.

    If a value holds a valid batch of no vectors, it is in none of these.
    """

    vectors: Array  # (n, d), in order
    indices: NDArray[np.int64]  # (m,), of the values that hold vectors
    rejects: list[Reject]  # in order
    counts: NDArray[np.int64]  # (m,), vectors in each of these values: 1, except in formats that allow several
    skipped: Sequence[int] = ()  # indices of deletes: tombstones, and nulls in place of a vector


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The next records of a stream, decoded: what a fold takes in one step."""

    decoded: Decoded
    timestamps: NDArray[np.int64]  # (m,), milliseconds, of the records that hold vectors; -1: unknown
    records: Sequence[Record]  # all records of the batch; none if the vectors come from a file
    next: int  # the position after them

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
        value_sizes = [len(value) for value in values_of(self.records) if value]
        return self.decoded.vectors.nbytes + sum(value_sizes)

    def reject(self, reason: str, messages: Mapping[int, str]) -> Self:
        """Return this batch with some of its records rejected. `messages` has an error for the offset of each."""
        decoded = self.decoded
        offsets = offsets_of(self.records)
        new_rejects = []
        for index in decoded.indices.tolist():
            message = messages.get(int(offsets[index]))
            if message is not None:
                new_rejects.append(Reject(index, reason, message))
        is_kept = ~np.isin(decoded.indices, [reject.index for reject in new_rejects])
        remaining = Decoded(
            vectors=decoded.vectors[np.repeat(is_kept, decoded.counts)],
            indices=decoded.indices[is_kept],
            rejects=sorted([*decoded.rejects, *new_rejects]),
            counts=decoded.counts[is_kept],
            skipped=decoded.skipped,
        )
        return replace(self, decoded=remaining, timestamps=self.timestamps[is_kept])

    def before(self, index: int) -> Self:
        """Return the part of this batch before the record with this index."""
        decoded = self.decoded
        m = int(np.searchsorted(decoded.indices, index))  # number of records in this part that hold vectors
        n = decoded.counts[:m].sum()  # number of their vectors
        part = Decoded(
            vectors=decoded.vectors[:n],
            indices=decoded.indices[:m],
            rejects=[reject for reject in decoded.rejects if reject.index < index],
            counts=decoded.counts[:m],
            skipped=[skipped for skipped in decoded.skipped if skipped < index],
        )
        return replace(
            self,
            decoded=part,
            timestamps=self.timestamps[:m],
            records=self.records[:index],
            next=self.records[index].offset,
        )


def batch_of_rows(vectors: Array, end: int) -> Batch:
    """Return the vectors (n, d) of a file or an array as a batch without timestamps. `end` is the position after it."""
    n = len(vectors)
    decoded = Decoded(vectors, indices=np.arange(n), rejects=[], counts=np.ones(n, np.int64))
    return Batch(decoded, timestamps=np.full(n, -1), records=(), next=end)
