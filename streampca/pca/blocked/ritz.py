"""Rayleigh–Ritz after a block: the strongest axes of past and block, within span(C) and what lies outside it.

C moves only along r xᵀ, so what is orthogonal to C is not learned, and what C turns away from is lost. So directions F
are kept beside it. After Algorithm 1 has moved C through a block Y (B, d),

1. E are the strongest directions outside span(C) of past and block together, by one step of subspace iteration;
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


def rows(N: F64, P: F64, G: F64, c: F64, past: float) -> Rows:
    """From N (r, r) of [C | F], P = Y [C | F] (B, r), G = YYᵀ (B, B), and the shares c (B,) and past."""
    gram = np.block([[N, P.T], [P, G]])  # its scale changes no coefficient, but squares must not overflow
    root = np.sqrt(np.concatenate([np.full(len(N), past), c]))
    return Rows(gram / power_of_two(float(gram.diagonal().max())), root, len(N))


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
    gram, root, past = rows
    products = gram @ moved
    unit = 1 / np.sqrt(np.vecdot(moved.T, products.T))  # their lengths may differ by many orders of magnitude
    moved, products = moved * unit, products * unit
    inverse = np.linalg.inv(np.linalg.cholesky(moved.T @ products)).T
    Q, along_Q = (
        moved @ inverse,
        root[:, None] * (products @ inverse),
    )  # an orthonormal basis; the rows' products with it
    outside = root[:, None] * gram * root - along_Q @ along_Q.T  # of the rows without their part in span(C)
    guess = np.hstack([outside[:, moved.shape[1] : past], outside[:, past:] @ combinations(len(gram) - past)])
    E = np.linalg.qr(guess)[0]
    along_E = outside @ E
    variance, U = np.linalg.eigh(E.T @ along_E)
    kept = _kept(variance, len(gram), rounding * float(np.vdot(root**2, gram.diagonal())))
    U = U[:, kept] / np.sqrt(variance[kept])
    E, along_E = E @ U, along_E @ U  # an orthonormal basis outside, as coefficients of the rows' parts there
    along = np.hstack([along_Q, along_E])
    variance, U = np.linalg.eigh(along.T @ along)
    kept = _kept(variance, limit, rounding * variance[-1])
    basis = np.hstack([Q, root[:, None] * E - Q @ (along_Q.T @ E)])
    coefficients: F64 = basis @ (U[:, kept] * np.sqrt(variance[kept]))
    return coefficients


def _kept(variance: F64, limit: int, smallest: float) -> NDArray[np.intp]:
    """Indices of the up to `limit` largest of the ascending variances, above `smallest`, largest first."""
    return np.flatnonzero(variance > max(smallest, _TINY))[::-1][:limit]


@cache
def combinations(n: int) -> F64:
    """The same random combinations (n, SKETCH) of n rows each time."""
    return np.random.default_rng(0).standard_normal((n, SKETCH))
