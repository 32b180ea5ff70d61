"""The principal angles between subspaces, accurate near 0 and near π/2; of two axes, the angle between them.

For orthonormal rows A and B, the cosines of the principal angles are the singular values of ABᵀ, and the sines those of
the residual B − BAᵀA. A cosine near 1 has too few digits, and so has a sine near 1 (Knyazev and Argentati, 2002).
"""

import numpy as np

from streampca.pca.arrays import F64


def principal_angles(A: F64, B: F64) -> F64:
    """The angles in radians between the spans of orthonormal rows (a, d) and (b, d), ascending, (min(a, b),)."""
    if len(A) < len(B):
        A, B = B, A
    if not len(B):
        return np.empty(0)
    products = B @ A.T
    cosines = np.linalg.svd(products, compute_uv=False)
    sines = np.linalg.svd(B - products @ A, compute_uv=False)[::-1]
    by_sine, by_cosine = np.arcsin(np.minimum(sines, 1.0)), np.arccos(np.minimum(cosines, 1.0))
    return np.asarray(np.where(cosines**2 > 0.5, by_sine, by_cosine))
