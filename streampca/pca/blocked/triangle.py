"""Symmetric matrices packed: the rows of the lower triangle one after the other, half the memory of the square."""

import numpy as np
from scipy.linalg import blas

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled_within, compiled_without_lock

_TILE = 32  # rows and columns that are mirrored at a time, in the processor's cache


def of_rows(Y: Array) -> Array:
    """The lower triangle of YᵀY in a square (d, d), whose upper one is 0: mirroring it would cost a tenth more."""
    syrk = blas.ssyrk if Y.dtype == np.float32 else blas.dsyrk
    return np.asarray(syrk(1.0, Y.T).T)


@compiled_without_lock
def plus(triangle: F64, past: float, A: Array, inverse: F64, after: F64) -> tuple[F64, Array]:
    """past · triangle + A·bbᵀ for the lower triangle of A (d, d), b = `inverse` (d,): packed, and as a square.

    The square is of A's type and times aaᵀ, a = `after` (d,): A may be in other units than the triangle, and the square
    in others again.
    """
    d, n = len(A), 0
    total, square = np.empty(len(triangle)), np.empty((d, d), A.dtype)
    for i in range(d):
        for j in range(i + 1):
            total[n + j] = past * triangle[n + j] + A[i, j] * (inverse[i] * inverse[j])
            square[i, j] = total[n + j] * (after[i] * after[j])
        n += i + 1
    mirror(square)
    return total, square


@compiled_within
def mirror(square: Array) -> None:
    """Copy the lower triangle of a square (d, d) to the upper one."""
    d = len(square)
    for i in range(0, d, _TILE):
        for j in range(0, i + 1, _TILE):
            for row in range(i, min(i + _TILE, d)):
                for column in range(j, min(j + _TILE, row)):
                    square[column, row] = square[row, column]


def outer(x: F64) -> F64:
    """xxᵀ for a vector x (d,), packed."""
    return np.concatenate([x[i] * x[: i + 1] for i in range(len(x))])


def square(triangle: F64, d: int, scale: F64 | None = None) -> F64:
    """The symmetric matrix (d, d), times ssᵀ for a `scale` s (d,)."""
    full, n = np.empty((d, d)), 0
    for i in range(d):
        full[i, : i + 1] = full[: i + 1, i] = triangle[n : n + i + 1]
        n += i + 1
    return full if scale is None else full * np.outer(scale, scale)
