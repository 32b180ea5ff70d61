"""Defines types of arrays for annotations, and small functions of arrays for the whole package."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32 or float64
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def power_of_two(scale: float) -> float:
    """Return the smallest power of two above a positive number, or 1 for 0.

    Numbers up to `scale` can be divided by it without rounding, and then have squares that do not overflow.
    """
    return float(np.ldexp(1.0, np.frexp(scale)[1])) if scale else 1.0


def fill_masked(array: Any) -> Any:
    """Return a masked array with NaN in place of each masked entry. Anything without a mask stays as it is.

    Masked entries hold numbers such as −9999, which must not be read.
    """
    if isinstance(array, list | tuple) and any(map(np.ma.isMaskedArray, array)):
        array = np.ma.array(array)  # `np.array` would drop the masks
    if not np.ma.isMaskedArray(array):
        return array
    if array.dtype.kind in "biu":  # these types have no NaN
        array = array.astype(np.float64)
    return array.filled(np.nan) if np.ma.is_masked(array) else array.data


def is_null(value: Any) -> bool:
    """Return whether a value is null: None, NumPy's `masked`, or NA or NaT of pandas."""
    return value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType")


def fill_nulls(rows: Any) -> Any:
    """Return rows of Python objects with NaN in place of null. Rows of numbers stay as they are.

    Later, NumPy converts the rows to numbers. NumPy would convert None to NaN, but `pandas.NA` would be an error.
    """
    is_frame = hasattr(rows, "isna")  # of pandas
    if is_frame:
        has_objects = object in list(rows.dtypes)  # pandas itself converts the NA of other types, such as Int64, to NaN
        return rows.mask(rows.isna()) if has_objects else rows  # `mask` puts NaN where an entry is null
    if isinstance(rows, list | tuple):
        rows = np.asarray(rows)
    if not (isinstance(rows, np.ndarray) and rows.dtype == object):
        return rows
    filled = rows.copy()
    filled[np.frompyfunc(is_null, 1, 1)(rows).astype(bool)] = np.nan
    return filled


def find_incomplete_rows(V: Array) -> NDArray[np.bool_]:
    """Return which of the vectors V (n, d) have missing entries, (n,).

    An optimisation: the sum of a vector with NaN is NaN, and a sum is quicker than a test of each entry. In one case a
    complete vector is found, too: if its sum becomes ∞ − ∞.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isnan(V.sum(axis=1)))


def find_unusable_entries(V: Array, *, impute: bool) -> NDArray[np.bool_]:
    """Return which entries can be neither learned nor projected: infinities, and NaN unless `impute`.

    With `impute`, NaN is a missing entry, which is filled.
    """
    return np.isinf(V) if impute else ~np.isfinite(V)


def as_kernel_input(V: Array) -> Array:
    """Return V with its rows one after the other in memory, aligned and read-only.

    numba compiles a function for each type of array. So it compiles for one type, whatever array the caller has.
    """
    V = np.require(V, None, ["C", "A"]).view()
    V.flags.writeable = False
    return V


def limit_correlations(S: F64) -> F64:
    """Clip Σ (d, d) so that no correlation is beyond ±1. It may be beyond if few messages have shown both entries."""
    deviation = np.sqrt(np.maximum(S.diagonal(), 0.0))
    largest = np.outer(deviation, deviation)
    return np.clip(S, -largest, largest)


def find_packed_diagonal(d: int) -> NDArray[np.int64]:
    """Return the indices (d,) of the diagonal of a symmetric matrix (d, d) in its packed lower triangle."""
    return np.cumsum(np.arange(1, d + 1)) - 1


def take_entries(shares: F64, d: int) -> F64:
    """Return the shares of the d entries, (d,). `shares` are either these, or the shares of all pairs, packed."""
    return shares if len(shares) == d else shares[find_packed_diagonal(d)]
