"""The products of size d, cut into tiles: everything dear about a block is one of these three.

OpenBLAS has kernels for small products that do without packing their operands. At the shapes of a block, long and
thin, they are up to 1.6 times as fast as the ordinary ones, and they are used for products of at most a million
multiplications. So d is cut into stretches, and only the tiles on and right of G's diagonal are computed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401 - numba's BLAS: loaded with this module, so that limits on threads find it
from numba.extending import overload
from numba.np.linalg import _BLAS, get_blas_kind
from numpy.typing import NDArray

from streampca.pca.compiled import compiled

Array = NDArray[np.floating[Any]]

_ROWS = 16  # of G to a tile
_DEEP = 512  # entries of d to a tile of G
_MOST = 1_000_000  # multiplications to a tile
_AS_IT_IS, _TRANSPOSED = ord("n"), ord("t")


@compiled
def seen(D: Array, C: Array) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """P = DC (B, K) and G = DDᵀ (B, B), of D (B, d) and C (d, K)."""
    (B, d), K = D.shape, C.shape[1]
    P, G = np.zeros((B, K), D.dtype), np.zeros((B, B), D.dtype)
    deep = max(16, _MOST // (B * max(K, 1)) // 16 * 16)
    if K:
        for j in range(0, d, deep):
            _add(P, D[:, j : j + deep], _AS_IT_IS, C[j : j + deep], _AS_IT_IS)
    for j in range(0, d, _DEEP):
        for i in range(0, B, _ROWS):
            _add(G[i : i + _ROWS, i:], D[i : i + _ROWS, j : j + _DEEP], _AS_IT_IS, D[i:, j : j + _DEEP], _TRANSPOSED)
    for s in range(B):
        for t in range(s):
            G[s, t] = G[t, s]
    return P, G


@compiled
def moved(C: Array, A: Array, D: Array, Z: Array) -> Array:  # pragma: no cover - compiled
    """CA + DᵀZ (d, K), of C (d, K), A (K, K), D (B, d) and Z (B, K)."""
    d, K = C.shape
    after = np.zeros((d, K), C.dtype)
    wide = max(16, _MOST // (max(len(D), K) * K) // 16 * 16)
    for j in range(0, d, wide):
        _add(after[j : j + wide], C[j : j + wide], _AS_IT_IS, A, _AS_IT_IS)
        _add(after[j : j + wide], D[:, j : j + wide], _TRANSPOSED, Z, _AS_IT_IS)
    return after


def _add(total: Any, A: Any, left: Any, B: Any, right: Any) -> None:
    """total += op(A) op(B), of matrices with contiguous rows; `left` and `right` say what op is."""
    raise NotImplementedError("only compiled code can call this")


@overload(_add)  # type: ignore[untyped-decorator]  # numba has no types
def _add_compiled(total: Any, A: Any, left: Any, B: Any, right: Any) -> Callable[..., None]:
    gemm, kind, dtype = _BLAS().numba_xxgemm(A.dtype), ord(get_blas_kind(A.dtype)), A.dtype

    def add(total: Any, A: Any, left: Any, B: Any, right: Any) -> None:  # pragma: no cover - compiled
        one = np.ones(1, dtype)
        inner = A.shape[1] if left == _AS_IT_IS else A.shape[0]
        gemm(  # BLAS counts along columns: for it all are transposed, and so the product goes the other way round
            kind, right, left, total.shape[1], total.shape[0], inner, one.ctypes, B.ctypes, _stride(B),
            A.ctypes, _stride(A), one.ctypes, total.ctypes, _stride(total),
        )  # fmt: skip

    return add


@compiled
def _stride(A: Array) -> int:  # pragma: no cover - compiled
    """From row to row, in numbers; of a single row NumPy may say anything."""
    stride: int = max(A.strides[0] // A.itemsize, A.shape[1])
    return stride
