"""Merge the states of several streams into one: pooled covariance about the common mean.

With weights w_i, W = Σ w_i and m = Σ w_i m_i / W, the columns √(w_i/W) C_i and √(w_i/W) (m_i − m), side by side as F,
give F Fᵀ = the pooled covariance (within the spans of the states). Its K leading directions are the merged factor. The
order of the states changes the result to rounding only; with K = d it is exact.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from streampca.pca import axes
from streampca.pca.arrays import F64, Array
from streampca.pca.state import State

_WIDE = 512  # columns from which on the singular directions are computed from a Gram matrix
_MOST = 2048  # columns from which on states are merged in groups first


def merge(states: Sequence[State], columns: int, decay: Sequence[float] | None = None) -> State:
    """The pooled state with at most `columns` columns; `decay` in (0, 1] discounts each state to a common time.

    `count` is the sum of the counts, `weight` is W. States without messages are left out.
    """
    parts = weighted(states, decay)
    if not parts:
        return states[0]
    W, mean, F = stacked(parts)
    dtype = parts[0][0].C.dtype
    C, variance = _leading(_reduced(F, columns, dtype), columns, dtype)
    total = sum(w / W * s.total_variance for s, w in parts) + sum(float(f[:, -1] @ f[:, -1]) for f in F)
    return State(C, np.diag(variance), mean, W, float(total), sum(s.count for s in states), 0)


def weighted(states: Sequence[State], decay: Sequence[float] | None) -> list[tuple[State, float]]:
    """The states that have messages, each with its weight at the common time."""
    shares = decay if decay is not None else [1.0] * len(states)
    return [(s, s.weight * share) for s, share in zip(states, shares, strict=True) if s.weight * share > 0]


def stacked(parts: Sequence[tuple[State, float]]) -> tuple[float, F64, list[Array]]:
    """W, the common mean m, and the columns of F that each part contributes, that of its mean last."""
    W = sum(w for _, w in parts)
    mean = sum((w / W * s.mean for s, w in parts), start=np.zeros_like(parts[0][0].mean))
    F = [np.column_stack([np.sqrt(w / W) * s.C, np.sqrt(w / W) * (s.mean - mean)]) for s, w in parts]
    return float(W), mean, F


def _reduced(F: list[Array], columns: int, dtype: Any) -> Array:
    """All columns side by side; if there are too many for one step, groups of them are reduced to 2K columns first."""
    d = F[0].shape[0]
    while min(d, sum(f.shape[1] for f in F)) > _MOST and len(F) > 1:
        size = max(2, _MOST // max(f.shape[1] for f in F))
        groups = [np.hstack(F[i : i + size]) for i in range(0, len(F), size)]
        if len(groups) == len(F):
            break
        F = [_leading(group, 2 * columns, dtype)[0] for group in groups]
    return np.hstack(F)


def _leading(F: Array, most: int, dtype: Any) -> tuple[Array, F64]:
    """As `axes.leading`, but for wide F from the smaller Gram matrix, which is faster and accurate enough."""
    d, n = F.shape
    if min(d, n) <= _WIDE:
        return axes.leading(F, most, dtype)
    F = F.astype(np.float64, copy=False)
    variance, vectors = np.linalg.eigh(F @ F.T if d <= n else F.T @ F)
    variance, vectors = variance[::-1][:most], vectors[:, ::-1][:, :most]
    r = int(np.sum(variance > axes.tolerance(np.float64) * variance[0])) if variance[0] > 0 else 0
    variance, vectors = variance[:r], vectors[:, :r]
    C = vectors * np.sqrt(variance) if d <= n else F @ vectors
    return np.ascontiguousarray(C.astype(dtype)), variance
