"""The outcome of decoding a batch of values: vectors and rejects."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
