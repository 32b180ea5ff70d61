"""Types of arrays for annotations, and small functions of arrays for the whole package."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32 or float64
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def power_of_two(scale: float) -> float:
    """Return the power of two above a positive scale, or 1 if the scale is 0.

    Division by it rounds nothing, and the squares of numbers up to the scale then do not overflow.
    """
    return float(np.ldexp(1.0, np.frexp(scale)[1])) if scale else 1.0


def rows_with_missing(V: Array) -> NDArray[np.bool_]:
    """Return which of the vectors V (n, d) have missing entries, (n,).

    True also if the sum of the entries overflows to NaN. A sum is quicker than a test of each entry.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isnan(V.sum(axis=1)))


def not_finite(V: Array, *, impute: bool) -> NDArray[np.bool_]:
    """Return which entries can be neither learned nor projected; with `impute`, NaN is a missing entry and allowed."""
    return np.isinf(V) if impute else ~np.isfinite(V)


def as_kernel_input(V: Array) -> Array:
    """Return V as compiled code takes it: row after row, aligned and read-only.

    So there is one type of array to compile for, whatever array the caller has.
    """
    V = np.require(V, None, ["C", "A"]).view()
    V.flags.writeable = False
    return V


def limit_correlations(S: F64) -> F64:
    """Clip Σ (d, d) so that no correlation is beyond ±1; the estimate of a pair that few messages have shown may be."""
    deviation = np.sqrt(np.maximum(S.diagonal(), 0.0))
    largest = np.outer(deviation, deviation)
    return np.clip(S, -largest, largest)


def packed_diagonal(d: int) -> NDArray[np.int64]:
    """Return the indices (d,) of the diagonal of a symmetric matrix (d, d) in its packed lower triangle."""
    return np.cumsum(np.arange(1, d + 1)) - 1


def take_entries(shares: F64, d: int) -> F64:
    """Take the shares of the d entries, (d,), from packed shares of all pairs, or from shares of the entries alone."""
    return shares if len(shares) == d else shares[packed_diagonal(d)]
