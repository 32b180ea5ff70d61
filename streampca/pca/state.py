"""The state of the algorithm, and the losses of what it learned: small frozen values."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array, packed_diagonal


@dataclass(frozen=True, eq=False)
class MissingShares:
    """Running shares, by weight, of messages that lack entries."""

    messages: float  # that lack any
    entries: F64  # (d,): that lack this one
    unseen: F64  # (d,): before the first message that has this one; 1: there was none

    @classmethod
    def none(cls, d: int, *, seen: bool) -> "MissingShares":
        """Of a stream whose messages are complete; not `seen`: of one without messages."""
        return cls(0.0, np.zeros(d), np.zeros(d) if seen else np.ones(d))

    def times(self, share: float) -> "MissingShares":
        """These shares as parts of a larger weight, of which theirs is `share`."""
        return MissingShares(share * self.messages, share * self.entries, share * self.unseen)

    @property
    def never(self) -> NDArray[np.bool_]:
        """Entries that no message had, (d,)."""
        return np.asarray(self.unseen > 1 - 1e-12)

    def normalised(self, covariance: Array) -> F64:
        """Σ_ij/(1 − max(u_i, u_j)) with u = `unseen`: Σ (d, d) by the messages since both entries had been seen.

        Eigenvalues may be negative.
        """
        return covariance / np.minimum.outer(self.seen, self.seen)

    @property
    def seen(self) -> F64:
        """The weight since an entry was first seen, (d,); 1 for one that was never seen, of which all sums are 0."""
        return np.where(self.never, 1.0, 1.0 - self.unseen)

    @property
    def observed(self) -> F64:
        """π, the share of the incomplete messages since an entry was first seen that have it, (d,)."""
        lacking, incomplete = self.entries - self.unseen, self.messages - self.unseen
        return 1.0 - lacking / np.where(incomplete > 1e-12, incomplete, 1.0)

    def age(self, V: Array) -> float:
        """The share of the weight since the newest entry was first seen; 0 if it appears in V (n, d)."""
        shown = ~self.never
        shown[~shown] = (~np.isnan(V[:, self.never])).any(axis=0)
        return 1.0 - float(self.unseen[shown].max(initial=0.0))

    def plus(self, other: "MissingShares") -> "MissingShares":
        """The sum of shares of one weight."""
        return MissingShares(self.messages + other.messages, self.entries + other.entries, self.unseen + other.unseen)


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
    concentration: float = 1.0  # κ, the sum of the squares of their shares: 1/weight if nothing is forgotten
    clipped: int = 0  # of these, the messages that were moved towards the mean
    missing: MissingShares | None = None  # None: every message was complete
    covariance: F64 | None = None  # (d(d + 1)/2,): Σ of v, packed as in blocked/triangle.py; None: not kept, or empty
    scale: F64 | None = None  # (d,): D, where the stream is standardised: C and the total variance are those of Dv
    variances: F64 | None = None  # (d,): of the entries of v, where the stream is standardised and Σ is not kept
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
        return variances / self.missing.seen if self.missing else variances

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
