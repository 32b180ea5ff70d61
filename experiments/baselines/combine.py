"""Factors of several machines averaged.

    C = Σ αᵢ Cᵢ / Σ αᵢ; for Oja's and Krasulina's orthonormal factors then QR         eq. 17

`merge` in streampca.pca pools covariances instead, and is far closer to one pass over everything.
"""

from collections.abc import Sequence

import numpy as np

from streampca.pca.arrays import Array


def average(factors: Sequence[Array], weights: Sequence[float] | None = None) -> Array:
    """Eq. 17 of factors (d, k): weighted by αᵢ ≥ 0, such as each one's number of messages; None: all alike."""
    combined: Array = np.average(np.stack(factors), axis=0, weights=weights)
    return combined


def aligned(C: Array, reference: Array) -> Array:
    """The factor C (d, k), rotated from the right to be nearest to another (orthogonal Procrustes problem)."""
    U, _, Vt = np.linalg.svd(C.T @ reference)
    turned: Array = C @ (U @ Vt)
    return turned
