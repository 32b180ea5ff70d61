"""Matrix products in compiled code. They call numba's BLAS themselves: `@` takes seconds to compile."""

from typing import Any

import numpy as np
from numba import types

from streampca.pca.arrays import Array
from streampca.pca.blocked.jit import compiled_within

_letter, _size, _pointer = types.char, types.intp, types.uintp  # an integer, so that one type does for both precisions
_gemm: Any = types.ExternalFunction(
    "numba_xxgemm",  # precision; forms of the factors; sizes; α, a matrix and its stride; another; β, the product
    types.intc(
        _letter, _letter, _letter, _size, _size, _size, _pointer, _pointer, _size, _pointer, _size, _pointer, _pointer,
        _size,
    ),
)  # fmt: skip
_SINGLE, _DOUBLE = map(ord, "sd")
N, T = np.int8(ord("n")), np.int8(ord("t"))  # not int: it would be compiled for each value
_ONE, _SINGLE_ONE, _ZERO = np.ones(1), np.ones(1, np.float32), np.zeros(1)


@compiled_within
def product(A: Array, B: Array, form: Any) -> Array:
    """AB, or ABᵀ if `form` is T, of matrices of one type whose rows are contiguous: to BLAS, by columns, (Bᵀ)Aᵀ."""
    (m, k), n = A.shape, B.shape[0] if form == T else B.shape[1]
    out, is_single = np.empty((m, n), A.dtype), A.itemsize == 4
    _gemm(
        _SINGLE if is_single else _DOUBLE, form, N, n, m, k, _SINGLE_ONE.ctypes.data if is_single else _ONE.ctypes.data,
        B.ctypes.data, B.strides[0] // B.itemsize, A.ctypes.data, A.strides[0] // A.itemsize, _ZERO.ctypes.data,
        out.ctypes.data, n,
    )  # fmt: skip
    return out
