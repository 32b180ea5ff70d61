"""Symmetric matrices packed: the rows of the lower triangle one after the other, half the memory of the square."""

import numpy as np

from streampca.pca.arrays import F64
from streampca.pca.blocked.jit import compiled_without_lock

_TILE = 32  # rows and columns that are mirrored at a time, in the processor's cache


@compiled_without_lock
def plus(triangle: F64, past: float, A: F64) -> tuple[F64, F64]:
    """past · triangle + A for a symmetric A (d, d): packed, and as a square."""
    d, n = len(A), 0
    total, square = np.empty(len(triangle)), np.empty((d, d))
    for i in range(d):
        for j in range(i + 1):
            total[n + j] = square[i, j] = past * triangle[n + j] + A[i, j]
        n += i + 1
    for i in range(0, d, _TILE):
        for j in range(0, i + 1, _TILE):
            for row in range(i, min(i + _TILE, d)):
                for column in range(j, min(j + _TILE, row)):
                    square[column, row] = square[row, column]
    return total, square


def square(triangle: F64, d: int) -> F64:
    """The symmetric matrix (d, d)."""
    return plus(triangle, 1.0, np.zeros((d, d)))[1]
