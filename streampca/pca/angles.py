"""The principal angles between subspaces, accurate near 0 and near π/2.

For orthonormal rows A and B, the cosines of the principal angles are the singular values of ABᵀ, and the sines are the
singular values of the residual B − BAᵀA. An angle from a cosine near 1 would have too few digits, and so would an angle
from a sine near 1 (Knyazev and Argentati, 2002).
"""

import numpy as np

from streampca.pca.arrays import F64


def principal_angles(A: F64, B: F64) -> F64:
    """Return the angles in radians between the spans of orthonormal rows (a, d) and (b, d), ascending, (min(a, b),)."""
    larger, smaller = (A, B) if len(A) >= len(B) else (B, A)
    if not len(smaller):
        return np.empty(0)
    products = smaller @ larger.T
    cosines = np.linalg.svd(products, compute_uv=False)
    sines = np.linalg.svd(smaller - products @ larger, compute_uv=False)[::-1]
    by_sine = np.arcsin(np.minimum(sines, 1.0))
    by_cosine = np.arccos(np.minimum(cosines, 1.0))
    return np.asarray(np.where(cosines**2 > 0.5, by_sine, by_cosine))
