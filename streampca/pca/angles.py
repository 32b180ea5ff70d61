"""Computes the principal angles between subspaces."""

import numpy as np
from scipy.linalg import subspace_angles

from streampca.pca.arrays import F64


def principal_angles(A: F64, B: F64) -> F64:
    """Return the angles in radians between the spans of orthonormal rows (a, d) and (b, d), ascending, (min(a, b),)."""
    if not len(A) or not len(B):
        return np.empty(0)
    return np.sort(subspace_angles(A.T, B.T))
