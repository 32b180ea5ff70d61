"""The outcome of decoding a batch of values: vectors and rejects; and a batch of records, decoded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from streampca.fold.record import LastRecord, Record, last_of, values_of
from streampca.pca.arrays import Array


class Reject(NamedTuple):
    """A value that is not a vector: its place in the batch, the short name of the reason, and a message."""

    place: int
    reason: str
    message: str


class Decoded(NamedTuple):
    """The vectors (n, d) of a batch in order, and the rejected values in order.

    `places` (m,) are the places in the batch of the values that hold vectors, `counts` (m,) the number of vectors of
    each: 1, except in formats whose values hold several. A valid value without vectors is in neither.
    """

    vectors: Array
    places: NDArray[np.int64]
    rejects: list[Reject]
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The next records of a stream, decoded: what a fold takes in one step.

    `timestamps` (m,) are those of the records that hold vectors, in milliseconds; -1: unknown. `records` are all of
    them by their places in the batch; none, if the vectors come from a file. `next` is the position after them.
    """

    decoded: Decoded
    timestamps: NDArray[np.int64]
    records: Sequence[Record]
    next: int

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

    def before(self, place: int) -> Self:
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


def batch_of_rows(vectors: Array, end: int) -> Batch:
    """Vectors (n, d) of a file or an array as a batch before the position `end`, without times."""
    n = len(vectors)
    return Batch(Decoded(vectors, np.arange(n), [], np.ones(n, np.int64)), np.full(n, -1), (), end)
