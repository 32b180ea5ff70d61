"""Computes the next [C | F] after a block by Rayleigh–Ritz: the strongest axes of past and block within a subspace.

The subspace starts from C′, which is C after Algorithm 1, from F and from a few random sums of the block's rows. If Σ
is kept, one step of subspace iteration on Σ follows. Otherwise Σ is AᵀA, where A holds the rows of the past above those
of the block, and only one pass over A is made. The rows of the past are √past·[C | F]ᵀ, less the variance outside of
these columns. docs/mathematics.md, section 4.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array, power_of_two
from streampca.pca.blocked.eigenvectors import find_leading_eigenvectors

# Smallest diagonal entry of a Cholesky factor, divided by the largest. If it is smaller, too many digits are lost.
_SMALLEST_LENGTH_RATIO = 1e-4
_ROUNDING = 10  # times eps times the largest variance: the inverse of a smaller variance would magnify rounding

RANK_TOLERANCE = 1e-13  # in float64, a variance below this share of the largest is rounding


class Limits(NamedTuple):
    """Which axes are kept."""

    columns: int  # the largest number of axes
    smallest_variance_share: float  # variances below this share of the largest are rounding errors
    smallest_deviation: float  # smaller standard deviations count as zero

    def are_kept(self, variance: F64) -> NDArray[np.bool_]:
        """Return which of the axes with these variances (n,) are above rounding errors, (n,)."""
        smallest_variance = self.smallest_variance_share * variance.max(initial=0.0)
        deviation = np.sqrt(np.maximum(variance, 0.0))
        return np.asarray((variance > smallest_variance) & (deviation > self.smallest_deviation))

    def select(self, variance: F64) -> NDArray[np.intp]:
        """Return the indices of the axes to keep, the largest variance first; `variance` (n,) is ascending."""
        return np.flatnonzero(self.are_kept(variance))[::-1][: self.columns]


def decompose_covariance(covariance: Array, limits: Limits) -> F64:
    """Return [C | F] from Σ (d, d) exactly: its leading axes times their standard deviations."""
    variance, U = _leading_eigenvectors(covariance.astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(_scale_axes(U, variance, limits))


def update_on_covariance(covariance: Array, start: Array, limits: Limits) -> Array:
    """Return the next [C | F] from Σ (d, d): its leading axes within the span of Σ · `start`.

    `start` (d, m) are columns near the leading axes. This is one step of subspace iteration, and then Rayleigh–Ritz.
    """
    start_spans_everything = start.shape[1] >= len(covariance)
    if start_spans_everything:
        return decompose_covariance(covariance, limits)
    unit_columns = _normalise_columns(start)  # otherwise the product of small numbers could underflow
    W = orthonormalise(covariance @ unit_columns)
    # For an eigenvector u of WᵀΣW, Wu is an axis.
    variance, U = _leading_eigenvectors((W.T @ (covariance @ W)).astype(np.float64, copy=False), limits.columns)
    return np.ascontiguousarray(W @ _scale_axes(U, variance, limits).astype(W.dtype, copy=False))


def update_on_rows(A: Array, start: Array, limits: Limits, to_next_units: Array | float = 1.0) -> Array:
    """Return the next [C | F]: the leading axes of the rows A (n, d), approximately, by Nyström's method.

    `start` (d, m) are columns near these axes. If the scale of a standardised stream has changed, entry j of A and of
    `start` must be multiplied by `to_next_units[j]`: D is the diagonal matrix of these factors. The leading axes of BᵀB
    with B = AD are searched, but B itself is not computed. The result is computed in four steps:

    1. X (d, m), an orthonormal basis of the span of D · `start`
    2. S = BᵀBX (d, m)
    3. J with JJᵀ = S(XᵀS)⁻¹Sᵀ, which approximates BᵀB: J = SUΛ^−½, where XᵀS = UΛUᵀ has the eigenvectors U
    4. the leading axes of JJᵀ, times their standard deviations
    """
    D = np.reshape(to_next_units, (-1, 1)).astype(A.dtype)
    X = orthonormalise(D * start, passes=1)  # 1. One pass is enough: any basis of the span gives the same JJᵀ.
    BX = A @ (D * X)
    S = D * (BX.T @ A).T  # 2. BᵀBX = DAᵀ(BX). BLAS is quickest with this order of the factors.
    XS = (X.T @ S).astype(np.float64)
    symmetric_XS = (XS + XS.T) / 2
    eigenvalues, U = _leading_eigenvectors(symmetric_XS, len(XS))
    rounding = max(limits.smallest_variance_share, _ROUNDING * np.finfo(S.dtype).eps)
    largest_eigenvalue = eigenvalues[-1]  # the eigenvalues are ascending
    is_kept = eigenvalues > rounding * largest_eigenvalue  # smaller ones are rounding, which Λ^−½ would magnify
    J = S @ (U[:, is_kept] / np.sqrt(eigenvalues[is_kept])).astype(S.dtype)  # 3.
    # 4. For an eigenvector u of JᵀJ, Ju is an axis of JJᵀ times its standard deviation.
    axis_variance, combinations = _leading_eigenvectors((J.T @ J).astype(np.float64, copy=False), limits.columns)
    selected = limits.select(axis_variance)
    return np.ascontiguousarray(J @ combinations[:, selected].astype(J.dtype))


def decompose_rows(A: Array, limits: Limits) -> Array:
    """Return [C | F], the leading axes of AᵀA for rows A (n, d), times their standard deviations.

    All axes are searched, so the result is exact, apart from rounding. The smaller of AᵀA and AAᵀ is decomposed.
    """
    n, d = A.shape
    if n >= d:
        return decompose_covariance((A.T @ A).astype(np.float64, copy=False), limits).astype(A.dtype, copy=False)
    variance, U = _leading_eigenvectors((A @ A.T).astype(np.float64, copy=False), limits.columns)
    selected = limits.select(variance)
    # For an eigenvector u of AAᵀ, Aᵀu is an axis of AᵀA, times its standard deviation.
    return np.ascontiguousarray(A.T @ U[:, selected].astype(A.dtype, copy=False))


def orthonormalise(A: Array, passes: int = 2) -> Array:
    """Return an orthonormal basis (d, m) of the columns of A (d, m), by Cholesky QR."""
    unit = _normalise_columns(A)
    basis = unit
    for _ in range(passes):
        try:
            L = np.linalg.cholesky((basis.T @ basis).astype(np.float64, copy=False))
        except np.linalg.LinAlgError:  # columns are nearly dependent
            return np.linalg.qr(unit)[0]
        length = L.diagonal()
        if length.min(initial=np.inf) < _SMALLEST_LENGTH_RATIO * length.max(initial=0.0):
            return np.linalg.qr(unit)[0]
        basis = basis @ np.linalg.inv(L).T.astype(A.dtype, copy=False)
    return basis


def _normalise_columns(A: Array) -> Array:
    """Divide the columns of A (d, m) by their lengths; a column of zeros stays."""
    A = A / A.dtype.type(power_of_two(float(np.abs(A).max(initial=0.0))))  # squares must not overflow
    length = np.sqrt(np.square(A, dtype=np.float64).sum(axis=0))
    return np.asarray(A / np.where(length > 0, length, 1.0).astype(A.dtype))


def _leading_eigenvectors(A: F64, limit: int) -> tuple[F64, F64]:
    """Compute the `limit` largest eigenvalues of a symmetric matrix (n, n), ascending, and their eigenvectors."""
    n = len(A)
    # LAPACK scales a matrix of very large or very small numbers, which rounds them. So it is scaled by a power of two
    # before, which does not round.
    unit = power_of_two(float(A.trace()))
    is_subset_faster = 4 * limit < n
    if is_subset_faster:
        variance, U = find_leading_eigenvectors(A / unit, limit)
    else:
        variance, U = np.linalg.eigh(A / unit)
    return variance[-limit:] * unit, U[:, -limit:]


def _scale_axes(U: F64, variance: F64, limits: Limits) -> F64:
    """Return the axes within the limits, times their standard deviations. U (n, m) are axes by ascending variance."""
    index = limits.select(variance)
    return np.asarray(U[:, index] * np.sqrt(variance[index]))
