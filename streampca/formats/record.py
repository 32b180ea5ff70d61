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
    leader_epoch: int = -1  # number of leaders before the one that wrote it; unknown if it is -1 or, in a client, None


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


def count_value_bytes(records: Sequence[Record]) -> int:
    return sum(map(len, filter(None, values_of(records))))


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
    if are_consecutive:
        return np.arange(first, last + 1, dtype=np.int64)  # an optimisation: the offset of each record is not read
    return np.array(_column(records, "offset"), np.int64)


def last_of(records: Sequence[Record]) -> LastRecord | None:
    """Return the last record; None if there is none, or if its epoch is unknown."""
    if len(records) == 0:
        return None
    last = records[-1]
    is_epoch_unknown = last.leader_epoch is None or last.leader_epoch < 0
    return None if is_epoch_unknown else LastRecord(last.offset, last.leader_epoch)


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
    skipped: Sequence[Reject] = ()  # values that are not errors: deletes, and records that do not meet `where`
    warning: str = ""  # for the user, on values that were perhaps not read as they were meant

    def keep_values(self, is_kept: NDArray[np.bool_]) -> Self:
        """Return the vectors of some of the m values: those that are marked in `is_kept` (m,)."""
        if is_kept.all():  # the vectors are not copied
            return self
        is_vector_kept = np.repeat(is_kept, self.counts)
        return self._replace(
            vectors=self.vectors[is_vector_kept], indices=self.indices[is_kept], counts=self.counts[is_kept]
        )


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
        return self.decoded.vectors.nbytes + count_value_bytes(self.records)

    def reject(self, reason: str, message_by_offset: Mapping[int, str]) -> Self:
        """Reject the records whose offsets are in `message_by_offset`, and return the batch without their vectors.

        Each of these records has its own message. All have the same `reason`, a short name. Records without vectors are
        left as they are. If m records hold vectors, `decoded.indices` and `timestamps` have an item for each of the m.
        """
        decoded = self.decoded
        offsets = offsets_of(self.records)  # of all records of the batch
        new_rejects = []
        for record_index in decoded.indices.tolist():  # only the m records that hold vectors
            message = message_by_offset.get(int(offsets[record_index]))
            if message is not None:
                new_rejects.append(Reject(record_index, reason, message))
        is_kept = ~np.isin(decoded.indices, [reject.index for reject in new_rejects])  # (m,)
        remaining = decoded.keep_values(is_kept)._replace(
            rejects=sorted([*decoded.rejects, *new_rejects]),
            warning="",  # may be dropped, because the codec gives the same warning with the next batch
        )
        return replace(self, decoded=remaining, timestamps=self.timestamps[is_kept])

    def before(self, index: int) -> Self:
        """Return the part of this batch before the record with this index in `records`."""
        decoded = self.decoded
        is_before = decoded.indices < index  # (m,), of the records that hold vectors
        decoded_before = decoded.keep_values(is_before)._replace(
            rejects=[reject for reject in decoded.rejects if reject.index < index],
            skipped=[skipped for skipped in decoded.skipped if skipped.index < index],
            warning="",  # may be dropped, because the codec gives the same warning with the next batch
        )
        return replace(
            self,
            decoded=decoded_before,
            timestamps=self.timestamps[is_before],
            records=self.records[:index],
            next=self.records[index].offset,
        )


def batch_of_rows(vectors: Array, end: int) -> Batch:
    """Return the vectors (n, d) of a file or an array as a batch without timestamps. `end` is the position after it."""
    n = len(vectors)
    decoded = Decoded(vectors, indices=np.arange(n), rejects=[], counts=np.ones(n, np.int64))
    return Batch(decoded, timestamps=np.full(n, -1), records=(), next=end)
