"""The state of the algorithm, and the losses of what it learned: small frozen values."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array, of_entries, packed_diagonal


@dataclass(frozen=True, eq=False)
class State:
    """Factor, mean and weight of a stream: CCᵀ estimates the covariance.

    The first K columns are the C that Algorithm 1 learns, and the rest F, which is kept beside it. All columns are
    orthogonal (to rounding of the longest), longest first, and linearly independent: a stream that has shown few
    directions has fewer columns. Where the covariance is kept, the columns are its leading axes.
    """

    C: Array  # (d, r): [C | F]
    mean: F64  # (d,)
    weight: float  # effective number of messages
    total_variance: float  # of all d dimensions
    count: int  # messages learned
    concentration: float = 1.0  # κ, the sum of the squares of their shares: 1/weight if nothing is forgotten
    clipped: int = 0  # of these, the messages that were moved towards the mean
    missing: F64 | None = None  # (d,): share of messages that lack each entry; None: every message was complete
    covariance: F64 | None = None  # (d(d + 1)/2,): Σ of v, packed as in blocked/triangle.py; None: not kept, or empty
    scale: F64 | None = None  # (d,): D, where the stream is standardised: C and the total variance are those of Dv
    variances: F64 | None = None  # (d,): of the entries of v, where the stream is standardised and Σ is not kept
    # N, packed: the share of the weight for which two entries have been known together; without Σ, of each entry (d,).
    known: F64 | None = None  # None: 1 everywhere
    pinv_error: float = 0.0  # of the last block: how far S had moved from (CᵀC)⁻¹; not part of a checkpoint

    @classmethod
    def empty(cls, d: int, dtype: str = "float64") -> "State":
        """The state before the first message."""
        return cls(np.zeros((d, 0), dtype), np.zeros(d), 0.0, 0.0, 0)

    @property
    def entry_variances(self) -> F64:
        """The variance of each entry of v, (d,); zeros where it is not known."""
        variances = np.zeros(len(self.mean)) if self.variances is None else self.variances
        if self.covariance is not None:
            variances = self.covariance[packed_diagonal(len(self.mean))]
        return variances

    @cached_property
    def known_entries(self) -> F64:
        """The share of the weight for which each entry has been known, (d,); 0 before the first message."""
        d = len(self.mean)
        if self.known is None:
            return np.full(d, float(self.count > 0))
        return of_entries(self.known, d)

    def age(self, shown: NDArray[np.bool_]) -> float:
        """The share of the weight for which the newest of the entries that are true in `shown` (d,) has been known."""
        return 1.0 if self.known is None else float(self.known_entries[shown].min(initial=1.0))

    @property
    def rank(self) -> int:
        return int(self.C.shape[1])

    @cached_property
    def variance(self) -> F64:
        """The squared lengths of the columns, (r,)."""
        return np.asarray(np.square(self.C, dtype=np.float64).sum(axis=0))

    @property
    def variance_outside(self) -> float:
        """The mean variance along the directions outside of the columns; at most that of the shortest column.

        What [C | F] has forgotten is spread evenly: the covariance is CCᵀ, and this variance in all other directions.
        """
        directions = int((self.known_entries > 0).sum()) - self.rank
        if directions <= 0 or not self.rank:
            return 0.0
        mean = (self.total_variance - float(self.variance.sum())) / directions
        return float(np.clip(mean, 0.0, self.variance[-1]))

    @property
    def C_pinv(self) -> Array:  # noqa: N802
        """C† = (CᵀC)⁻¹ Cᵀ, (r, d)."""
        length = np.sqrt(self.variance)
        unit = self.C / length
        return (np.linalg.inv(unit.T @ unit) @ unit.T / length[:, None]).astype(self.C.dtype)


def with_added_variance(C: Array, added: float) -> Array:
    """The columns of C (d, r), each with this much more variance; `added` may be negative."""
    variance = np.square(C, dtype=np.float64).sum(axis=0)
    ratio = np.maximum(variance + added, 0.0) / np.where(variance > 0, variance, 1.0)
    return np.asarray(C * np.sqrt(ratio).astype(C.dtype))


class Losses(NamedTuple):
    """Losses of n messages, each measured before it was learned, about the running mean m before it."""

    residual: F64  # (n,): ‖r‖², the part of v − m outside the span of the k served components
    norm: F64  # (n,): ‖v − m‖²


NO_LOSSES = Losses(np.zeros(0), np.zeros(0))
