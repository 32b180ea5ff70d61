"""Types of arrays for annotations, their scale, and missing entries."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32 or float64
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def power_of_two(scale: float) -> float:
    """The power of two next to a scale, or 1 if it is 0: dividing by it changes no bit, and squares do not overflow."""
    return float(np.ldexp(1.0, np.frexp(scale)[1])) if scale else 1.0


def rows_with_missing(V: Array) -> NDArray[np.bool_]:
    """Which of the vectors V (n, d) lack entries, (n,). Also true where the sum of the entries overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isnan(V.sum(axis=1)))  # quicker than to look at each entry


def not_finite(V: Array, *, impute: bool) -> NDArray[np.bool_]:
    """Which entries can be neither learned nor projected; with `impute` they may be missing, NaN."""
    return np.isinf(V) if impute else ~np.isfinite(V)


def of_one_type(V: Array) -> Array:
    """V as compiled code takes it, whatever array the caller has: in order, aligned and read-only."""
    V = np.require(V, None, ["C", "A"]).view()
    V.flags.writeable = False
    return V


def with_possible_correlations(S: F64) -> F64:
    """Σ (d, d) with correlations of at most 1. Those of pairs that few messages have shown may seem larger."""
    deviation = np.sqrt(np.maximum(S.diagonal(), 0.0))
    largest = np.outer(deviation, deviation)
    return np.clip(S, -largest, largest)


def packed_diagonal(d: int) -> NDArray[np.int64]:
    """Where the diagonal of a symmetric matrix (d, d) is in its packed lower triangle, (d,)."""
    return np.cumsum(np.arange(1, d + 1)) - 1


def of_entries(shares: F64, d: int) -> F64:
    """The shares of the d entries, (d,): the diagonal of packed shares of all pairs, or shares of the entries alone."""
    return shares if len(shares) == d else shares[packed_diagonal(d)]
