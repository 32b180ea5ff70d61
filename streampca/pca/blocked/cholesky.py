"""The Cholesky decomposition, for compiled code."""

import math

import numpy as np

from streampca.pca.arrays import F64
from streampca.pca.blocked.jit import compiled_with_free_sums

_EPS = float(np.finfo(np.float64).eps)


@compiled_with_free_sums
def cholesky(A: F64) -> tuple[F64, bool]:  # pragma: no cover - compiled
    """Lower-triangular L with LLᵀ = A, and whether A is numerically positive definite; if not, L is undefined."""
    K = len(A)
    L = np.zeros((K, K))
    for i in range(K):
        for j in range(i + 1):
            left = A[i, j]
            for m in range(j):
                left -= L[i, m] * L[j, m]
            if j < i:
                L[i, j] = left / L[j, j]
            elif left > K * _EPS * A[i, i] and left < np.inf:  # else the rest of the column is rounding
                L[i, i] = math.sqrt(left)
            else:
                return L, False
    return L, True
