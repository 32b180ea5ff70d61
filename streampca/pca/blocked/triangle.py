"""Packed symmetric matrices: the rows of the lower triangle one after the other, in half the memory of the square."""

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.fortran import load_routine
from streampca.pca.blocked.jit import compiled_for_compiled_callers, compiled_without_lock

_ssyrk = load_routine("blas", "ssyrk", parameter_count=10)
_dsyrk = load_routine("blas", "dsyrk", parameter_count=10)
_dsymm = load_routine("blas", "dsymm", parameter_count=12)

_TILE = 32  # rows and columns that are mirrored at a time, in the processor's cache


def gram(Y: Array) -> Array:
    """Return YᵀY in the lower triangle of a square (d, d). The upper triangle is 0."""
    n, d = Y.shape
    product = np.zeros((d, d), Y.dtype)
    one, zero = np.ones(1, Y.dtype), np.zeros(1, Y.dtype)
    syrk = _ssyrk if Y.dtype == np.float32 else _dsyrk
    # Our rows are columns for BLAS. So it computes YᵀY from the transpose as it is ("N"), and fills what is its upper
    # triangle ("U").
    syrk(b"U", b"N", d, n, one, np.ascontiguousarray(Y), d, zero, product, d)
    return product


def multiply_symmetric(factor: float, S: F64, B: F64) -> F64:
    """Return `factor` · SB for a symmetric S (d, d), of which only the lower triangle is read, and B (d, m)."""
    d, m = B.shape
    product = np.zeros((d, m), order="F")
    # S is the first factor ("L"). Its lower triangle is the upper one ("U") for BLAS, to which our rows are columns.
    _dsymm(b"L", b"U", d, m, factor, np.ascontiguousarray(S), d, np.asfortranarray(B), d, 0.0, product, d)
    return product


@compiled_without_lock
def add_block(
    triangle: F64, past: float, A: Array, to_units_of_triangle: F64, to_units_of_square: F64
) -> tuple[F64, Array]:
    """Add the lower triangle of A (d, d) to a packed triangle: both are covariances of d entries.

        sum_ij = past · triangle_ij + A_ij t_i t_j        square_ij = sum_ij s_i s_j

    `past` is the share of the triangle that is kept. The triangle is in the units of the data. If the stream is
    standardised, A is in the units of the old scale, and the square in the units of the next scale. So t
    (`to_units_of_triangle`, (d,)) is 1/old scale, and s (`to_units_of_square`, (d,)) is the next scale. Returns the sum
    in two forms: packed, and as the square (d, d).
    """
    d = len(A)
    total = np.empty(len(triangle))
    square = np.empty((d, d), A.dtype)
    row = 0  # where row i begins
    for i in range(d):
        for j in range(i + 1):
            total[row + j] = past * triangle[row + j] + A[i, j] * (to_units_of_triangle[i] * to_units_of_triangle[j])
            square[i, j] = total[row + j] * (to_units_of_square[i] * to_units_of_square[j])
        row += i + 1
    mirror(square)
    return total, square


@compiled_for_compiled_callers
def mirror(square: Array) -> None:
    """Copy the lower triangle of a square (d, d) to its upper triangle, tile by tile."""
    d = len(square)
    for i in range(0, d, _TILE):
        for j in range(0, i + 1, _TILE):
            for row in range(i, min(i + _TILE, d)):
                for column in range(j, min(j + _TILE, row)):
                    square[column, row] = square[row, column]


def pack_outer(x: F64) -> F64:
    """Return xxᵀ for a vector x (d,), packed."""
    return np.concatenate([x[i] * x[: i + 1] for i in range(len(x))])


def unpack(triangle: F64, d: int, scale: F64 | None = None) -> F64:
    """Return the square (d, d) of a packed triangle, times ssᵀ if there is a `scale` s (d,)."""
    full = np.empty((d, d))
    row = 0  # where row i begins
    for i in range(d):
        values = triangle[row : row + i + 1]
        full[i, : i + 1] = values
        full[: i + 1, i] = values
        row += i + 1
    return full if scale is None else full * np.outer(scale, scale)
