"""Rayleigh–Ritz after a block: the next [C | F], the strongest axes of past and block in a subspace that holds them.

C moves only along r xᵀ, so what is orthogonal to C is not learned, and what C turns away from is lost. So directions F
are kept beside it. After Algorithm 1 has moved C to C′, the covariance of past and block is restricted to a subspace W
and decomposed: its K strongest axes, times their standard deviations, are the next C, the next ones are F.

- Where Σ is kept, W is one step of subspace iteration on it: Σ [C′ | F | eight combinations of the block].
- Elsewhere [C | F] of the past and the rows of the block stand in for Σ, and W is span(C′) and the strongest directions
  outside it, by subspace iteration from F and eight combinations of the block. All products of size d have few columns.

This is the unit gauge on a larger space: CCᵀ estimates the covariance. docs/mathematics.md, section 4.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from streampca.pca.arrays import F64, Array, power_of_two

_LENGTH = 1e-4  # share of the longest diagonal entry of a Cholesky factor: below it, too many digits are lost
_MOSTLY = 0.5  # share of a direction's square outside a subspace: one with less is a rounding error


class Limits(NamedTuple):
    """Which axes are kept."""

    columns: int  # at most so many
    rounding: float  # variances below this share of the largest are rounding errors
    smallest: float  # standard deviations below this one count as zero

    def of(self, variance: F64, unit: float = 1.0) -> NDArray[np.intp]:
        """The indices of those among ascending variances, in this unit squared, largest first."""
        real = variance > max(self.rounding * variance[-1], 0.0) if len(variance) else np.zeros(0, bool)
        large = np.sqrt(np.maximum(variance, 0.0)) * unit > self.smallest
        return np.flatnonzero(real & large)[::-1][: self.columns]


class Rows(NamedTuple):
    """Past and block where Σ is not kept: Σ = past · [C | F][C | F]ᵀ + YᵀY."""

    CF: Array  # (d, r)
    past: float
    Y: Array  # (n, d): rows √c·y

    def times(self, X: Array) -> Array:
        """Σ X."""
        of_block: Array = ((self.Y @ X).T @ self.Y).T  # in this order and layout the products are quickest
        return of_block + self.CF @ (self.past * (self.CF.T @ X))

    def within(self, W: Array) -> F64:
        """WᵀΣW, in double precision."""
        of_past, of_block = self.CF.T @ W, self.Y @ W
        return self.past * (of_past.T @ of_past).astype(np.float64) + (of_block.T @ of_block).astype(np.float64)


def of_covariance(covariance: F64, limits: Limits) -> F64:
    """[C | F] of Σ (d, d): its leading axes times their standard deviations."""
    variance, U = _decomposed(covariance, limits.columns)
    return _columns(U, variance, limits)


def on_covariance(covariance: F64, start: Array, limits: Limits) -> F64:
    """The next [C | F] from Σ (d, d) and [C′ | F | combinations of the block's rows] (d, m)."""
    if start.shape[1] >= len(covariance):
        return of_covariance(covariance, limits)
    W = orthonormal(covariance @ _scaled(start.astype(np.float64)))
    variance, U = _decomposed(W.T @ (covariance @ W), limits.columns)
    return _columns(W @ U, variance, limits)


def on_rows(rows: Rows, C: Array, F: Array, sketch: Array, limits: Limits) -> Array:
    """The next [C | F] from C′ (d, K), F and combinations of the block's rows (d, m)."""
    Q = orthonormal(C)
    X = _outside(Q, np.hstack([F, rows.times(_scaled(sketch))]))  # a sketch is rough, F is of the blocks before
    W = np.hstack([Q, _complement(Q, _outside(Q, rows.times(_scaled(X))))])
    variance, U = _decomposed(rows.within(W), limits.columns)
    coefficients = _columns(U, variance, limits)
    return np.asarray(W @ coefficients.astype(W.dtype))


def strongest(rows: Rows, limits: Limits) -> Array:
    """The next [C | F] from all directions of past and block, by the smaller of the two Gram matrices."""
    A = np.vstack([np.asarray(np.sqrt(rows.past) * rows.CF.T, rows.Y.dtype), rows.Y])
    (n, d), unit = A.shape, power_of_two(float(np.abs(A).max(initial=0.0)))
    A = A / np.asarray(unit, A.dtype)
    variance, U = _decomposed((A @ A.T if n < d else A.T @ A).astype(np.float64, copy=False), limits.columns)
    index = limits.of(variance, unit)
    U = U[:, index] if n < d else U[:, index] * np.sqrt(variance[index])
    return np.asarray((A.T @ U.astype(A.dtype) if n < d else U.astype(A.dtype)) * np.asarray(unit, A.dtype))


def orthonormal(A: Array) -> Array:
    """An orthonormal basis (d, m) of the columns of A (d, m), in its precision.

    By two Cholesky factors of Gram matrices, in a quarter of the time of a QR decomposition, unless columns are nearly
    dependent.
    """
    basis = _scaled(A)
    for _ in range(2):
        try:
            L = np.linalg.cholesky((basis.T @ basis).astype(np.float64, copy=False))
        except np.linalg.LinAlgError:
            return np.linalg.qr(_scaled(A))[0]
        length = L.diagonal()
        if len(length) and length.min() < _LENGTH * length.max():
            return np.linalg.qr(_scaled(A))[0]
        basis = basis @ np.linalg.inv(L).T.astype(A.dtype, copy=False)
    return basis


def _scaled(A: Array) -> Array:
    """The columns at length one; zeros stay."""
    A = A / A.dtype.type(power_of_two(float(np.abs(A).max(initial=0.0))))  # squares must not overflow
    length = np.sqrt(np.square(A, dtype=np.float64).sum(axis=0))
    return np.asarray(A / np.where(length > 0, length, 1.0).astype(A.dtype))


def _outside(Q: Array, X: Array) -> Array:
    """X without its part in the span of the orthonormal Q."""
    return np.asarray(X - Q @ (Q.T @ X))


def _complement(Q: Array, X: Array) -> Array:
    """An orthonormal basis of the part of X outside the span of Q. Columns of X that are rounding are left out."""
    B = _outside(Q, orthonormal(X))
    share, U = np.linalg.eigh((B.T @ B).astype(np.float64))
    kept = share > _MOSTLY
    return _outside(Q, B @ (U[:, kept] / np.sqrt(share[kept])).astype(B.dtype))


def _decomposed(A: F64, limit: int) -> tuple[F64, F64]:
    """The `limit` largest eigenvalues of a symmetric matrix (n, n), ascending, and their vectors."""
    n, unit = len(A), power_of_two(float(A.trace()))  # LAPACK would scale an extreme matrix by other factors
    few = 4 * limit < n
    variance, U = eigh(A / unit, subset_by_index=(n - limit, n - 1)) if few else np.linalg.eigh(A / unit)
    return variance[-limit:] * unit, U[:, -limit:]


def _columns(U: F64, variance: F64, limits: Limits) -> F64:
    """Axes (d, m) of ascending variances, times their standard deviations, those within the limits."""
    index = limits.of(variance)
    return np.ascontiguousarray(U[:, index] * np.sqrt(variance[index]))
