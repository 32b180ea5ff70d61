"""The state of the algorithm, and the losses of what it learned: small frozen values."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array


@dataclass(frozen=True, eq=False)
class MissingShares:
    """Running shares, by weight: of messages that lack entries, and of messages that lack each entry."""

    messages: float
    entries: F64  # (d,)

    def times(self, share: float) -> "MissingShares":
        """These shares as parts of a larger weight, of which theirs is `share`."""
        return MissingShares(share * self.messages, share * self.entries)

    def plus(self, other: "MissingShares") -> "MissingShares":
        """The sum of shares of one weight."""
        return MissingShares(self.messages + other.messages, self.entries + other.entries)


@dataclass(frozen=True, eq=False)
class State:
    """Factor, mean and weight of a stream: CCᵀ estimates the covariance.

    The first K columns are the C that Algorithm 1 learns, the others F, kept beside it. All are orthogonal (to rounding
    of the longest), longest first, and linearly independent: a stream that has shown few directions has fewer. Where
    the covariance is kept, the columns are its leading axes.
    """

    C: Array  # (d, r): [C | F]
    mean: F64  # (d,)
    weight: float  # effective number of messages
    total_variance: float  # of all d dimensions
    count: int  # messages learned
    clipped: int = 0  # of these, the messages that were moved towards the mean
    missing: MissingShares | None = None  # None: every message was complete
    covariance: F64 | None = None  # (d(d + 1)/2,), packed as in blocked/triangle.py; None: not kept, or no message yet
    pinv_error: float = 0.0  # of the last block: how far S had moved from (CᵀC)⁻¹; not part of a checkpoint

    @classmethod
    def empty(cls, d: int, dtype: str = "float64") -> "State":
        """The state before the first message."""
        return cls(np.zeros((d, 0), dtype), np.zeros(d), 0.0, 0.0, 0)

    @property
    def rank(self) -> int:
        return int(self.C.shape[1])

    @cached_property
    def variance(self) -> F64:
        """The squared lengths of the columns, (r,)."""
        return np.asarray(np.square(self.C, dtype=np.float64).sum(axis=0))

    @property
    def C_pinv(self) -> Array:  # noqa: N802
        """C† = (CᵀC)⁻¹ Cᵀ, (r, d)."""
        length = np.sqrt(self.variance)
        unit = self.C / length
        return (np.linalg.inv(unit.T @ unit) @ unit.T / length[:, None]).astype(self.C.dtype)


class Losses(NamedTuple):
    """Losses of n messages, each measured before it was learned, about the running mean m before it."""

    residual: F64  # (n,): ‖r‖², the part of v − m outside the span of the k served components
    norm: F64  # (n,): ‖v − m‖²


NO_LOSSES = Losses(np.zeros(0), np.zeros(0))
