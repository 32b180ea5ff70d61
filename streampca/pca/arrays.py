"""Defines types of arrays for annotations, and small functions of arrays for the whole package."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32 or float64
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def power_of_two(scale: float) -> float:
    """Return the smallest power of two above a positive number, or 1 for 0: a divisor that does not round."""
    return float(np.ldexp(1.0, np.frexp(scale)[1])) if scale else 1.0


def fill_masked(array: Any) -> Any:
    """Return a masked array with NaN in place of each masked entry, and any other array unchanged."""
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
    """Return rows of Python objects with NaN in place of null, and rows of numbers unchanged."""
    is_frame = hasattr(rows, "isna")  # pandas
    if is_frame:
        # Only columns of objects need `mask`: pandas turns the NA of other types into NaN when it makes an array.
        has_objects = object in list(rows.dtypes)
        return rows.mask(rows.isna()) if has_objects else rows
    if isinstance(rows, list | tuple):
        rows = np.asarray(rows)
    if not (isinstance(rows, np.ndarray) and rows.dtype == object):
        return rows
    is_null_entry = np.frompyfunc(is_null, 1, 1)(rows).astype(bool)
    filled = rows.copy()
    filled[is_null_entry] = np.nan
    return filled


def find_incomplete_rows(V: Array) -> NDArray[np.bool_]:
    """Return which of the vectors V (n, d) have missing entries, (n,).

    A vector also counts as incomplete if its sum becomes ∞ − ∞.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isnan(V.sum(axis=1)))


def compute_observed_mean(V: Array) -> F64:
    """Return the mean of the values of each entry in V (n, d) that are not missing, (d,); 0 if there are none."""
    counts = (~np.isnan(V)).sum(axis=0)
    return np.asarray(np.nansum(V, axis=0) / np.maximum(counts, 1), np.float64)


def find_unusable_entries(V: Array, *, impute: bool) -> NDArray[np.bool_]:
    """Return which entries can be neither learned nor projected: infinities, and NaN unless `impute`."""
    return np.isinf(V) if impute else ~np.isfinite(V)


def as_kernel_input(V: Array) -> Array:
    """Return V with contiguous rows, aligned and read-only.

    numba compiles a function for each type of array, and this gives all arrays one type.
    """
    V = np.require(V, None, ["C", "A"]).view()
    V.flags.writeable = False
    return V


def limit_correlations(S: F64) -> F64:
    """Clip Σ (d, d) so that no correlation is beyond ±1."""
    return limit_covariances(S, S.diagonal(), S.diagonal())


def limit_covariances(covariances: F64, row_variances: F64, column_variances: F64) -> F64:
    """Clip covariances (n, m) of entries with these variances, (n,) and (m,), so that no correlation is beyond ±1."""
    row_deviations = np.sqrt(np.maximum(row_variances, 0.0))
    column_deviations = np.sqrt(np.maximum(column_variances, 0.0))
    largest = np.outer(row_deviations, column_deviations)
    return np.clip(covariances, -largest, largest)


def find_packed_diagonal(d: int) -> NDArray[np.int64]:
    """Return the indices (d,) of the diagonal of a symmetric matrix (d, d) in its packed lower triangle."""
    return np.cumsum(np.arange(1, d + 1)) - 1


def take_entry_shares(shares: F64, d: int) -> F64:
    """Return the shares of the d entries, (d,), also from the packed shares of all pairs."""
    return shares if len(shares) == d else shares[find_packed_diagonal(d)]


def find_smaller_of_each_pair(values: NDArray[Any]) -> NDArray[Any]:
    """Return min(value_i, value_j) of all pairs of d values, as a packed lower triangle."""
    minima: NDArray[Any] = np.minimum.outer(values, values)
    return minima[np.tril_indices(len(values))]
