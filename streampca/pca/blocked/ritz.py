"""Rayleigh–Ritz after a block: the strongest axes of past and block, within span(C) and what lies outside it.

C moves only along r xᵀ, so what is orthogonal to C is not learned, and what C turns away from is lost. So directions F
are kept beside it. After Algorithm 1 has moved C through a block Y (B, d),

1. E are the strongest directions outside span(C) of past and block together, by two steps of subspace iteration;
2. the covariance of past and block, restricted to span(C) ⊕ span(E), is decomposed: its K strongest axes times their
   standard deviations are the next C, the next ℓ are F.

This is the unit gauge on a larger space: CCᵀ estimates the covariance, nothing that C turns away from is lost, and with
K + ℓ ≥ d it is exact. Everything lies in the span of the r + B rows of [C | F]ᵀ and Y, so all but three products of
size d (Y [C | F], YYᵀ and the new [C | F]) is done with coefficients of these rows. `plain.py` does the same with
vectors. Derivation: docs/mathematics.md, section 4.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, power_of_two

SPARE = 40  # ℓ, columns of F; measured, see docs/mathematics.md
SKETCH = 8  # random combinations of a block in which new directions are looked for, beside F
_TINY = float(np.finfo(np.float64).tiny)


class Rows(NamedTuple):
    """The rows [C | F]ᵀ (r, d) and Y (B, d), of which only products are needed."""

    gram: F64  # (n, n), n = r + B
    root: F64  # (n,): √ of each row's share in the covariance
    past: int  # r


def rows(variance: F64, P: F64, G: F64, c: F64, past: float) -> Rows:
    """From the squared lengths (r,) of [C | F], P = Y [C | F] (B, r), G = YYᵀ (B, B), the shares c (B,) and past."""
    r = len(variance)
    root = np.sqrt(np.concatenate([np.full(r, past), c]))
    gram = np.empty((len(root), len(root)))
    gram[:r, :r], gram[r:, :r], gram[:r, r:], gram[r:, r:] = np.diag(variance), P, P.T, G
    gram /= power_of_two(float(gram.diagonal().max()))  # changes no coefficient, but squares must not overflow
    return Rows(gram, root, r)


def strongest(rows: Rows, limit: int, rounding: float) -> F64:
    """Coefficients (n, ·) of up to `limit` strongest axes, times their standard deviations.

    Variances below the share `rounding` of the largest are left out.
    """
    gram, root, _ = rows
    variance, U = np.linalg.eigh(root[:, None] * gram * root)
    kept = _kept(variance, limit, rounding * variance[-1])
    coefficients: F64 = root[:, None] * U[:, kept]
    return coefficients


def restricted(rows: Rows, moved: F64, limit: int, rounding: float) -> F64:
    """As `strongest`, but restricted to span(C) and the strongest directions outside it.

    `moved` (n, K) holds the coefficients of C after Algorithm 1. Raises `LinAlgError` if its columns have become
    linearly dependent.
    """
    (gram, root, past), products = rows, rows.gram @ moved
    unit = 1 / np.sqrt(np.vecdot(moved.T, products.T))  # their lengths may differ by many orders of magnitude
    moved, products = moved * unit, products * unit
    inverse = np.linalg.inv(np.linalg.cholesky(moved.T @ products)).T
    Q, along_Q = moved @ inverse, root[:, None] * (products @ inverse)  # an orthonormal basis; rows in it

    def outside(X: F64) -> F64:
        """X times the Gram matrix of what the rows have outside span(C)."""
        found: F64 = root[:, None] * (gram @ (root[:, None] * X)) - along_Q @ (along_Q.T @ X)
        return found

    F = slice(moved.shape[1], past)
    of_F = root[:, None] * gram[:, F] * root[F] - along_Q @ along_Q[F].T
    sketch = np.vstack([np.zeros((past, SKETCH)), combinations(len(gram) - past)])
    E = orthonormal(outside(orthonormal(np.hstack([of_F, outside(sketch)]))))
    along_E = outside(E)
    variance, U = np.linalg.eigh(E.T @ along_E)
    kept = _kept(variance, len(gram), rounding * float(np.square(along_Q).sum(axis=0).max()))
    U = U[:, kept] / np.sqrt(variance[kept])
    E, along_E = E @ U, along_E @ U  # orthonormal directions, as coefficients of the rows' parts outside; rows in them
    along = np.hstack([along_Q, along_E])
    variance, U = np.linalg.eigh(along.T @ along)
    kept = _kept(variance, limit, rounding * variance[-1])
    basis = np.hstack([Q, root[:, None] * E - Q @ (along_Q.T @ E)])
    coefficients: F64 = basis @ (U[:, kept] * np.sqrt(variance[kept]))
    return coefficients


def orthonormal(A: F64) -> F64:
    """An orthonormal basis of the columns of A (n, m)."""
    A = A / np.maximum(np.linalg.norm(A, axis=0), _TINY)
    try:
        basis: F64 = A @ np.linalg.inv(np.linalg.cholesky(A.T @ A)).T  # half the time of a QR decomposition
    except np.linalg.LinAlgError:
        basis = np.linalg.qr(A)[0]
    return basis


def _kept(variance: F64, limit: int, smallest: float) -> NDArray[np.intp]:
    """Indices of the up to `limit` largest of the ascending variances, above `smallest`, largest first."""
    return np.flatnonzero(variance > max(smallest, _TINY))[::-1][:limit]


@cache
def combinations(n: int) -> F64:
    """The same random combinations (n, SKETCH) of n rows each time."""
    return np.random.default_rng(0).standard_normal((n, SKETCH))
