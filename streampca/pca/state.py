"""The state of a stream that was learned, and the losses of its messages: small frozen values."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array, find_packed_diagonal, take_entry_shares

_ALL_KNOWN = 1.0 - 1e-9  # a share of the weight from here on counts as 1, despite rounding


@dataclass(frozen=True, eq=False)
class State:
    """Factor, mean and weight of a stream.

    The factor `C` is [C | F], where C has the first k columns, which Algorithm 1 learns, and F has the rest. The
    product of the factor with its transpose estimates the covariance Σ. The columns are orthogonal (to rounding of the
    longest), longest first. They are linearly independent, so that a stream with few directions has fewer columns. If
    Σ is kept, the columns are its leading axes.
    """

    C: Array  # (d, r): [C | F]
    mean: F64  # (d,)
    weight: float  # effective number of messages
    total_variance: float  # of all d dimensions
    count: int  # messages learned
    concentration: float = 1.0  # κ, the sum of the squares of the messages' shares: 1/weight if nothing is forgotten
    clipped: int = 0  # messages that were moved towards the mean
    missing: F64 | None = None  # (d,): share of messages that lack each entry; None: every message was complete
    covariance: F64 | None = None  # (d(d + 1)/2,): Σ of v, packed as in blocked/triangle.py; None: not kept, or empty
    scale: F64 | None = None  # (d,): D, if the stream is standardised: C and the total variance are those of Dv
    variances: F64 | None = None  # (d,): of the entries of v, if the stream is standardised and Σ is not kept
    # N, packed: the share of the weight for which two entries have been known together; without Σ, of each entry (d,).
    known: F64 | None = None  # None: 1 everywhere
    pinv_error: float = 0.0  # how far S was from (CᵀC)⁻¹ at the end of the last block; not part of a checkpoint

    @classmethod
    def empty(cls, d: int, dtype: str = "float64") -> "State":
        """Make the state before the first message."""
        return cls(C=np.zeros((d, 0), dtype), mean=np.zeros(d), weight=0.0, total_variance=0.0, count=0)

    @property
    def entry_variances(self) -> F64:
        """The variance of each entry of v, (d,); zeros if the state keeps neither Σ nor the variances."""
        d = len(self.mean)
        if self.covariance is not None:
            return self.covariance[find_packed_diagonal(d)]
        return np.zeros(d) if self.variances is None else self.variances

    @cached_property
    def known_shares(self) -> F64:
        """For each entry (d,): the weight since the first message that has the entry, divided by the whole weight.

        If no message has the entry yet, its share is 0. If the state does not keep its covariance Σ, `known` has these
        shares. If the state keeps Σ, `known` is a packed matrix of such shares for all pairs of entries, and the shares
        of the entries are the diagonal of this matrix.
        """
        d = len(self.mean)
        if self.known is None:  # every entry has been known since the first message
            share_of_each_entry = 1.0 if self.count > 0 else 0.0  # 0 before the first message
            return np.full(d, share_of_each_entry)
        return take_entry_shares(self.known, d)

    @property
    def had_gaps(self) -> bool:
        """Whether a learned message lacked an entry. A state that was restored from a model has only `known`."""
        return self.missing is not None or self.known is not None

    @property
    def seen_dimensions(self) -> int:
        """The number of entries that some message has shown."""
        return int((self.known_shares > 0).sum())

    @property
    def rank(self) -> int:
        """The number of columns, r."""
        return int(self.C.shape[1])

    @cached_property
    def variance(self) -> F64:
        """The squared lengths of the columns, (r,)."""
        return np.asarray(np.square(self.C, dtype=np.float64).sum(axis=0))

    @property
    def variance_outside(self) -> float:
        """The mean variance along the directions outside of the columns of C."""
        directions_outside = self.seen_dimensions - self.rank
        if directions_outside <= 0 or not self.rank:
            return 0.0
        mean = (self.total_variance - float(self.variance.sum())) / directions_outside
        smallest_inside = self.variance[-1]  # C has the axes with the most variance: no direction outside has more
        return float(np.clip(mean, 0.0, smallest_inside))

    def split_covariance(self) -> tuple[Array, float]:
        """Return rows R (r, d) and a variance s, so that RᵀR + sI is the covariance of the state."""
        s = self.variance_outside
        return add_variance(self.C, -s).T, s

    @property
    def C_pinv(self) -> Array:  # noqa: N802
        """The pseudo-inverse of the factor, C† = (CᵀC)⁻¹ Cᵀ, (r, d)."""
        length = np.sqrt(self.variance)
        unit = self.C / length
        return (np.linalg.inv(unit.T @ unit) @ unit.T / length[:, None]).astype(self.C.dtype)


def add_variance(C: Array, added: float) -> Array:
    """Scale each column of C (d, r) so that its variance grows by `added`, which may be negative."""
    variance = np.square(C, dtype=np.float64).sum(axis=0)
    ratio = np.maximum(variance + added, 0.0) / np.where(variance > 0, variance, 1.0)
    return np.asarray(C * np.sqrt(ratio).astype(C.dtype))


def none_if_all_known(known: F64 | None) -> F64 | None:
    """Return the shares `known`, or None if all of them are 1, which is how a state keeps them."""
    return None if known is None or known.min(initial=1.0) > _ALL_KNOWN else known


class Losses(NamedTuple):
    """The losses of n messages, each measured before the message was learned, with m the running mean before it."""

    residual: F64  # (n,): ‖r‖², the part of v − m outside the span of the k served components
    norm: F64  # (n,): ‖v − m‖²


NO_LOSSES = Losses(residual=np.zeros(0), norm=np.zeros(0))


def join_losses(parts: Sequence[Losses]) -> Losses:
    """Return the losses of several parts of a stream one after the other."""
    if not parts:
        return NO_LOSSES
    return Losses(
        residual=np.concatenate([losses.residual for losses in parts]),
        norm=np.concatenate([losses.norm for losses in parts]),
    )
