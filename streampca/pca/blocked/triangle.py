"""Symmetric matrices packed: the rows of the lower triangle one after the other, half the memory of the square."""

import numpy as np

from streampca.pca.arrays import F64
from streampca.pca.blocked.jit import compiled_without_lock

_TILE = 32  # rows and columns that are mirrored at a time, in the processor's cache


@compiled_without_lock
def plus(triangle: F64, past: float, A: F64, before: F64, after: F64) -> tuple[F64, F64]:
    """past · triangle + A/bbᵀ for a symmetric A (d, d) and b = `before` (d,): packed, and, times aaᵀ, as a square.

    So A may be in other units than the triangle, and the square in others again, a = `after` (d,).
    """
    d, n = len(A), 0
    total, square, inverse = np.empty(len(triangle)), np.empty((d, d)), 1.0 / before
    for i in range(d):
        for j in range(i + 1):
            total[n + j] = past * triangle[n + j] + A[i, j] * (inverse[i] * inverse[j])
            square[i, j] = total[n + j] * (after[i] * after[j])
        n += i + 1
    for i in range(0, d, _TILE):
        for j in range(0, i + 1, _TILE):
            for row in range(i, min(i + _TILE, d)):
                for column in range(j, min(j + _TILE, row)):
                    square[column, row] = square[row, column]
    return total, square


def square(triangle: F64, d: int, scale: F64 | None = None) -> F64:
    """The symmetric matrix (d, d), times ssᵀ for a `scale` s (d,)."""
    return plus(triangle, 1.0, np.zeros((d, d)), np.ones(d), np.ones(d) if scale is None else scale)[1]
