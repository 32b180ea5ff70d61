"""Rayleigh–Ritz after a block: the next [C | F], the strongest axes of past and block in a subspace that holds them.

The subspace starts from C′, which is C after Algorithm 1, from F and from a few combinations of the block's rows. If Σ
is kept, one step of subspace iteration on Σ follows. Otherwise Σ is AᵀA, where A holds the rows of the past above those
of the block, and only one pass over A is made. The rows of the past are √past·[C | F]ᵀ, less the variance outside of
these columns. docs/mathematics.md, section 4.
"""

import contextlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from streampca.pca.arrays import F64, Array, power_of_two

_LENGTH = 1e-4  # share of the longest diagonal entry of a Cholesky factor: below it, too many digits are lost
_ROUNDING = 10  # units of rounding of the largest variance: inverting a smaller one would magnify rounding

RANK_TOLERANCE = 1e-13  # share of the largest variance below which a direction is rounding, in float64


class Limits(NamedTuple):
    """Which axes are kept."""

    columns: int  # the largest number of axes
    rounding: float  # variances below this share of the largest are rounding errors
    smallest: float  # standard deviations below this one count as zero

    def select(self, variance: F64) -> NDArray[np.intp]:
        """Return the indices of the axes to keep, of ascending `variance` (n,); the largest variance comes first."""
        least = max(self.rounding * variance[-1], 0.0) if len(variance) else 0.0
        kept = (variance > least) & (np.sqrt(np.maximum(variance, 0.0)) > self.smallest)
        return np.flatnonzero(kept)[::-1][: self.columns]


def decompose_covariance(covariance: Array, limits: Limits) -> F64:
    """Return the [C | F] of Σ (d, d): its leading axes times their standard deviations."""
    variance, U = _leading_eigenvectors(covariance.astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(_scale_axes(U, variance, limits))


def update_on_covariance(covariance: Array, start: Array, limits: Limits) -> Array:
    """Return the next [C | F] by one step of subspace iteration on Σ (d, d).

    `start` (d, m) is [C′ | F | combinations of the block's rows], of the same type as Σ.
    """
    if start.shape[1] >= len(covariance):
        return decompose_covariance(covariance, limits)
    W = orthonormalise(covariance @ _normalise_columns(start))
    variance, U = _leading_eigenvectors((W.T @ (covariance @ W)).astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(W @ _scale_axes(U, variance, limits).astype(W.dtype, copy=False))


def update_on_rows(A: Array, start: Array, limits: Limits, units: Array | float = 1.0) -> Array:
    """Return the next [C | F] from the rows A (n, d) in one pass over them, after multiplication by `units` (d,).

    `start` (d, m) is [C′ | F | combinations of the block's rows]. This is Nyström's approximation: with X a basis of
    `start` and S = AᵀAX, the matrix S(XᵀS)⁻¹Sᵀ equals AᵀA on span(X). The equation holds for any basis, so half of the
    digits are enough for the orthonormality of X.
    """
    column = np.reshape(units, (-1, 1)).astype(A.dtype)
    X = orthonormalise(column * start, passes=1)
    S = column * ((A @ (column * X)).T @ A).T  # in this order and layout the products are quickest
    product = (X.T @ S).astype(np.float64)
    variance, U = _leading_eigenvectors((product + product.T) / 2, len(product))
    kept = variance > max(limits.rounding, _ROUNDING * np.finfo(S.dtype).eps) * variance[-1]
    B = S @ (U[:, kept] / np.sqrt(variance[kept])).astype(S.dtype)  # BBᵀ is S(XᵀS)⁻¹Sᵀ
    variance, U = _leading_eigenvectors((B.T @ B).astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(B @ U[:, limits.select(variance)].astype(B.dtype))


def decompose_rows(A: Array, limits: Limits) -> Array:
    """Return the [C | F] of AᵀA exactly, for rows A (n, d), from the smaller of the matrices AᵀA and AAᵀ."""
    n, d = A.shape
    if n >= d:
        return decompose_covariance((A.T @ A).astype(np.float64, copy=False), limits).astype(A.dtype, copy=False)
    variance, U = _leading_eigenvectors((A @ A.T).astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(A.T @ U[:, limits.select(variance)].astype(A.dtype, copy=False))


def orthonormalise(A: Array, passes: int = 2) -> Array:
    """Return an orthonormal basis (d, m) of the columns of A (d, m), in its precision.

    One pass gives half of the digits. A pass divides by a Cholesky factor; two passes take a quarter of the time of a
    QR decomposition, which remains for columns that are nearly dependent.
    """
    basis = unit = _normalise_columns(A)
    with contextlib.suppress(np.linalg.LinAlgError):
        for _ in range(passes):
            L = np.linalg.cholesky((basis.T @ basis).astype(np.float64, copy=False))
            length = L.diagonal()
            if length.min(initial=np.inf) < _LENGTH * length.max(initial=0.0):
                break
            basis = basis @ np.linalg.inv(L).T.astype(A.dtype, copy=False)
        else:
            return basis
    return np.linalg.qr(unit)[0]


def _normalise_columns(A: Array) -> Array:
    """Divide the columns of A (d, m) by their lengths; a column of zeros stays."""
    A = A / A.dtype.type(power_of_two(float(np.abs(A).max(initial=0.0))))  # squares must not overflow
    length = np.sqrt(np.square(A, dtype=np.float64).sum(axis=0))
    return np.asarray(A / np.where(length > 0, length, 1.0).astype(A.dtype))


def _leading_eigenvectors(A: F64, limit: int) -> tuple[F64, F64]:
    """Compute the `limit` largest eigenvalues of a symmetric matrix (n, n), ascending, and their eigenvectors."""
    n = len(A)
    unit = power_of_two(float(A.trace()))  # otherwise LAPACK would scale an extreme matrix, by another factor
    is_subset_faster = 4 * limit < n
    if is_subset_faster:
        variance, U = eigh(A / unit, subset_by_index=(n - limit, n - 1))
    else:
        variance, U = np.linalg.eigh(A / unit)
    return variance[-limit:] * unit, U[:, -limit:]


def _scale_axes(U: F64, variance: F64, limits: Limits) -> F64:
    """Return the axes within the limits, times their standard deviations; U (n, m) has ascending variances."""
    index = limits.select(variance)
    return np.asarray(U[:, index] * np.sqrt(variance[index]))
