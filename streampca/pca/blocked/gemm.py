"""Products of small matrices in compiled code, by BLAS."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401 - numba's BLAS: loaded with this module, so that limits on threads find it
from numba.extending import overload
from numba.np.linalg import _BLAS, get_blas_kind

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled

_AS_IT_IS, _TRANSPOSED = ord("n"), ord("t")


@compiled
def times(A: F64, B: F64) -> F64:  # pragma: no cover - compiled
    """AB for small matrices."""
    AB = np.zeros((A.shape[0], B.shape[1]))
    _product(AB, False, A, _AS_IT_IS, B, _AS_IT_IS)
    return AB


@compiled
def transposed_times(A: F64, B: F64) -> F64:  # pragma: no cover - compiled
    """AᵀB for small matrices."""
    AB = np.zeros((A.shape[1], B.shape[1]))
    _product(AB, False, A, _TRANSPOSED, B, _AS_IT_IS)
    return AB


@compiled
def times_transposed(A: F64, B: F64) -> F64:  # pragma: no cover - compiled
    """ABᵀ for small matrices."""
    AB = np.zeros((A.shape[0], B.shape[0]))
    _product(AB, False, A, _AS_IT_IS, B, _TRANSPOSED)
    return AB


def _product(total: Any, more: bool, A: Any, left: Any, B: Any, right: Any) -> None:
    """total = op(A) op(B), or total += op(A) op(B) with `more`, for contiguous rows; `left` and `right` are the ops.

    Matrices may be empty, but where the inner dimension is 0 `more` must be true.
    """
    raise NotImplementedError("only compiled code can call this")


@overload(_product)  # type: ignore[untyped-decorator]  # numba has no types
def _product_compiled(total: Any, more: Any, A: Any, left: Any, B: Any, right: Any) -> Callable[..., None]:
    gemm, kind, dtype = _BLAS().numba_xxgemm(A.dtype), ord(get_blas_kind(A.dtype)), A.dtype

    def product(total: Any, more: Any, A: Any, left: Any, B: Any, right: Any) -> None:  # pragma: no cover - compiled
        if total.size == 0:
            return
        factors = np.ones(2, dtype)
        factors[1] = 1 if more else 0
        inner = A.shape[1] if left == _AS_IT_IS else A.shape[0]
        gemm(  # BLAS expects columns: it sees all matrices transposed, so the factors change places
            kind, right, left, total.shape[1], total.shape[0], inner, factors.ctypes, B.ctypes, _stride(B),
            A.ctypes, _stride(A), factors[1:].ctypes, total.ctypes, _stride(total),
        )  # fmt: skip

    return product


@compiled
def _stride(A: Array) -> int:  # pragma: no cover - compiled
    """The distance of rows, in numbers; NumPy's stride of a single row is arbitrary."""
    stride: int = max(A.strides[0] // A.itemsize, A.shape[1])
    return stride
