"""Computes the principal angles between subspaces, accurate near 0 and near π/2.

For orthonormal rows A and B, the cosines of the principal angles are the singular values of ABᵀ, and the sines are the
singular values of the residual B − BAᵀA. An angle from a cosine near 1 would have too few digits, and so would an angle
from a sine near 1 (Knyazev and Argentati, 2002). `scipy.linalg.subspace_angles` (1.17) loses small angles if there are
large ones, too.
"""

import numpy as np

from streampca.pca.arrays import F64


def principal_angles(A: F64, B: F64) -> F64:
    """Return the angles in radians between the spans of orthonormal rows A (a, d) and B (b, d).

    There are min(a, b) angles, in ascending order.
    """
    if len(A) < len(B):
        return principal_angles(B, A)
    if not len(B):
        return np.empty(0)
    products = B @ A.T
    cosines = np.linalg.svd(products, compute_uv=False)
    descending_sines = np.linalg.svd(B - products @ A, compute_uv=False)
    sines = descending_sines[::-1]  # as cosines descend, the i-th cosine and the i-th sine now are of the same angle
    by_sine = np.arcsin(np.minimum(sines, 1.0))
    by_cosine = np.arccos(np.minimum(cosines, 1.0))
    # Small angles are exact from their sines, large ones from their cosines.
    is_below_45_degrees = cosines**2 > 0.5
    return np.asarray(np.where(is_below_45_degrees, by_sine, by_cosine))
