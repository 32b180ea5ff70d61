"""The matrix products of size d, which take most of the time of a block, cut into tiles.

OpenBLAS has kernels for small products, of at most a million multiplications, that do not pack their operands. For the
long and thin matrices of a block they are up to 1.6 times as fast as the general ones. So d is cut into panels, and the
products with a panel into tiles; of G only the tiles on and right of the diagonal are computed. A panel is contiguous:
rows thousands of numbers apart would compete for the same cache lines.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401 - numba's BLAS: loaded with this module, so that limits on threads find it
from numba.extending import overload
from numba.np.linalg import _BLAS, get_blas_kind

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled, inlined

_WIDEST = 256  # columns of a panel
_ROWS = 8  # rows of a tile of G
_MOST = 1_000_000  # multiplications in a tile
_AS_IT_IS, _TRANSPOSED = ord("n"), ord("t")


@inlined
def panels(B: int, d: int, dtype: Any) -> Array:  # pragma: no cover - compiled
    """An empty array (n, B, w) for a matrix (B, d) in n panels, of which the last may be narrower than w."""
    n = -(-d // _WIDEST)
    return np.empty((n, B, -(-d // n)), dtype)


@compiled
def project_and_gram(D: Array, C: Array) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """P = DC (B, K) and G = DDᵀ (B, B), from the panels D (n, B, w) of a matrix (B, d), and C (d, K)."""
    (n, B, w), (d, K) = D.shape, C.shape
    P, G = np.empty((B, K), D.dtype), np.empty((B, B), D.dtype)
    rows = _tile(w * K)
    for j in range(n):
        panel, C_j = D[j, :, : d - j * w], C[j * w : j * w + w]
        for i in range(0, B, rows):
            _product(P[i : i + rows], j > 0, panel[i : i + rows], _AS_IT_IS, C_j, _AS_IT_IS)
        for i in range(0, B, _ROWS):
            _product(G[i : i + _ROWS, i:], j > 0, panel[i : i + _ROWS], _AS_IT_IS, panel[i:], _TRANSPOSED)
    for s in range(B):
        for t in range(s):
            G[s, t] = G[t, s]
    return P, G


@compiled
def update_factor(C: Array, A: F64, D: Array, Z: F64) -> Array:  # pragma: no cover - compiled
    """CA + DᵀZ (d, K), from C (d, K), A (K, K), the panels D (n, B, w) of a matrix (B, d), and Z (B, K)."""
    (n, B, w), (d, K) = D.shape, C.shape
    A_, Z_, after = A.astype(C.dtype), Z.astype(C.dtype), np.empty((d, K), C.dtype)
    rows = _tile(max(B, K) * K)
    for j in range(n):
        for i in range(j * w, min(j * w + w, d), rows):
            end = min(i + rows, j * w + w, d)
            _product(after[i:end], False, C[i:end], _AS_IT_IS, A_, _AS_IT_IS)
            _product(after[i:end], True, D[j, :, i - j * w : end - j * w], _TRANSPOSED, Z_, _AS_IT_IS)
    return after


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


@compiled
def _tile(multiplications: int) -> int:  # pragma: no cover - compiled
    """Rows of a tile, if each takes so many multiplications; a multiple of 8, which suits the kernels."""
    rows: int = max(8, min(256, _MOST // max(multiplications, 1) // 8 * 8))
    return rows


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
