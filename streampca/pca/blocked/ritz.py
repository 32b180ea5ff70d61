"""Rayleigh–Ritz after a block: the next [C | F], the strongest axes of past and block in a subspace that holds them.

The subspace comes from C′, the C that Algorithm 1 has left, F and a few combinations of the block's rows: by one step
of subspace iteration on Σ where that is kept. Elsewhere AᵀA stands for Σ, A the rows of the past above those of the
block, and one pass over A must do. The rows of the past are √past·[C | F]ᵀ, less the variance outside of these columns.
docs/mathematics.md, section 4.
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

    columns: int  # at most so many
    rounding: float  # variances below this share of the largest are rounding errors
    smallest: float  # standard deviations below this one count as zero

    def of(self, variance: F64) -> NDArray[np.intp]:
        """The indices of those among ascending variances, largest first."""
        least = max(self.rounding * variance[-1], 0.0) if len(variance) else 0.0
        kept = (variance > least) & (np.sqrt(np.maximum(variance, 0.0)) > self.smallest)
        return np.flatnonzero(kept)[::-1][: self.columns]


def of_covariance(covariance: Array, limits: Limits) -> F64:
    """[C | F] of Σ (d, d): its leading axes times their standard deviations."""
    variance, U = _decomposed(covariance.astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(_scaled_axes(U, variance, limits))


def on_covariance(covariance: Array, start: Array, limits: Limits) -> Array:
    """The next [C | F] from Σ (d, d) and [C′ | F | combinations of the block's rows] (d, m), of one type."""
    if start.shape[1] >= len(covariance):
        return of_covariance(covariance, limits)
    W = orthonormal(covariance @ _scaled(start))
    variance, U = _decomposed((W.T @ (covariance @ W)).astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(W @ _scaled_axes(U, variance, limits).astype(W.dtype, copy=False))


def on_rows(A: Array, start: Array, limits: Limits, units: Array | float = 1.0) -> Array:
    """The next [C | F] from the rows A (n, d) and [C′ | F | combinations of the block's rows] (d, m), in one pass.

    All in other `units` (d,). By Nyström: with X a basis of `start` and S = AᵀAX, the matrix S(XᵀS)⁻¹Sᵀ equals AᵀA on
    span(X). So X may be orthonormal in its first digits only.
    """
    column = np.reshape(units, (-1, 1)).astype(A.dtype)
    X = orthonormal(column * start, passes=1)
    S = column * ((A @ (column * X)).T @ A).T  # in this order and layout the products are quickest
    product = (X.T @ S).astype(np.float64)
    variance, U = _decomposed((product + product.T) / 2, len(product))
    kept = variance > max(limits.rounding, _ROUNDING * np.finfo(S.dtype).eps) * variance[-1]
    B = S @ (U[:, kept] / np.sqrt(variance[kept])).astype(S.dtype)  # BBᵀ is that matrix
    variance, U = _decomposed((B.T @ B).astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(B @ U[:, limits.of(variance)].astype(B.dtype))


def strongest(A: Array, limits: Limits) -> Array:
    """[C | F] of AᵀA from all directions of the rows A (n, d), by the smaller of the two Gram matrices."""
    n, d = A.shape
    if n >= d:
        return of_covariance((A.T @ A).astype(np.float64, copy=False), limits).astype(A.dtype, copy=False)
    variance, U = _decomposed((A @ A.T).astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(A.T @ U[:, limits.of(variance)].astype(A.dtype, copy=False))


def orthonormal(A: Array, passes: int = 2) -> Array:
    """An orthonormal basis (d, m) of the columns of A (d, m), in its precision; to half its digits by one pass.

    By Cholesky factors, two in a quarter of the time of a QR decomposition, unless columns are nearly dependent.
    """
    basis = unit = _scaled(A)
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


def _scaled(A: Array) -> Array:
    """The columns at length one; zeros stay."""
    A = A / A.dtype.type(power_of_two(float(np.abs(A).max(initial=0.0))))  # squares must not overflow
    length = np.sqrt(np.square(A, dtype=np.float64).sum(axis=0))
    return np.asarray(A / np.where(length > 0, length, 1.0).astype(A.dtype))


def _decomposed(A: F64, limit: int) -> tuple[F64, F64]:
    """The `limit` largest eigenvalues of a symmetric matrix (n, n), ascending, and their vectors."""
    n, unit = len(A), power_of_two(float(A.trace()))  # LAPACK would scale an extreme matrix by other factors
    few = 4 * limit < n
    variance, U = eigh(A / unit, subset_by_index=(n - limit, n - 1)) if few else np.linalg.eigh(A / unit)
    return variance[-limit:] * unit, U[:, -limit:]


def _scaled_axes(U: F64, variance: F64, limits: Limits) -> F64:
    """Axes (n, m) of ascending variances, those within the limits, times their standard deviations."""
    index = limits.of(variance)
    return np.asarray(U[:, index] * np.sqrt(variance[index]))
