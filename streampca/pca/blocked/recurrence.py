"""One block: B messages learned one after the other by Algorithm 1, at the speed of matrix products.

Within a block, Algorithm 1 needs nothing of size d but P = YC and G = YYᵀ. For s = 1 … B:

    x_s = S p_s                         h_s = η_s / (1 + η_s‖x_s‖²)             ‖r_s‖² = G_ss − x_s·p_s
    p_t ← p_t + h_s (G_ts − p_t·x_s) x_s    for t > s                           (Cᵀy_t after C ← C − h r xᵀ, eq. 12)
    S ← Sherman–Morrison for CᵀC + h_s²‖r_s‖² x_s x_sᵀ

and then, with X the rows x_s, M = striu(XXᵀ) + diag(1/h) and Z = M⁻¹X:     C ← C(I − XᵀZ) + YᵀZ. The same lines give
what 16 messages do to the p of later ones, P ← P(I − XᵀZ) + GZ, and to the Z of earlier ones, Z ← Z(I − XᵀZ); only 16
are learned one by one. docs/mathematics.md, section 2. Equal to `algorithm1.sherman_morrison` to rounding.
"""

from typing import Any

import numpy as np
from numba import types

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled_within

_PART = 16  # messages
_LANES = 8  # numbers in a vector register: rows are padded with zeros, so that no loop over K has a remainder

# numba's BLAS: precision; forms of the factors; sizes; α, a matrix, its stride; another; β; the product, its stride.
# Pointers are integers, so that one type does for both precisions; letters are no `int`, as each would be compiled.
_gemm: Any = types.ExternalFunction(
    "numba_xxgemm",
    types.intc(
        types.char, types.char, types.char, types.intp, types.intp, types.intp, types.uintp, types.uintp, types.intp,
        types.uintp, types.intp, types.uintp, types.uintp, types.intp,
    ),
)  # fmt: skip
_SINGLE, _DOUBLE, N, T = (np.int8(ord(letter)) for letter in "sdnt")
_ONE, _SINGLE_ONE, _ZERO = np.ones(1), np.ones(1, np.float32), np.zeros(1)


@compiled_within
def product(A: Array, B: Array, form: Any) -> Array:
    """AB, or ABᵀ if `form` is T, of matrices of one type whose rows are contiguous: for BLAS (AB)ᵀ, by columns.

    `@` would take seconds to compile.
    """
    (m, k), n = A.shape, B.shape[0] if form == T else B.shape[1]
    out, is_single = np.empty((m, n), A.dtype), A.itemsize == 4
    _gemm(
        _SINGLE if is_single else _DOUBLE, form, N, n, m, k, _SINGLE_ONE.ctypes.data if is_single else _ONE.ctypes.data,
        B.ctypes.data, B.strides[0] // B.itemsize, A.ctypes.data, A.strides[0] // A.itemsize, _ZERO.ctypes.data,
        out.ctypes.data, n,
    )  # fmt: skip
    return out


@compiled_within
def learn_padded(P: Array, G: Array, S: F64, eta: F64) -> tuple[F64, F64, F64, F64]:
    """Learn a block, from P = YC (B, K), G = YYᵀ (B, B), S = (CᵀC)⁻¹ (K, K) and the steps η (B,).

    Returns X and Z (B, w); each message's p = Cᵀy for the C that it met (B, w); and S (w, w) after the block; all are
    padded with zeros from K to w, whole registers.
    """
    b, wide = len(P), (P.shape[1] + _LANES - 1) // _LANES * _LANES
    Z = resize(P, b, wide)  # rows of later messages hold their p until then: a part moves both alike, except for GZ
    X, h, p = np.zeros((b, wide)), np.zeros(b), np.zeros((b, wide))
    G, S = resize(G, b, b), resize(S, wide, wide)
    for i in range(0, b, _PART):
        e = min(i + _PART, b)
        _learn_part(i, e, Z, G, S, eta, X, h)
        z, change = _solve(X[i:e], h[i:e]), product(Z, X[i:e], T)
        for s in range(e, b):
            for t in range(i, e):
                change[s, t - i] -= G[s, t]
        moved = product(change, z, N)
        for s in range(b):
            if i <= s < e:
                for j in range(wide):
                    p[s, j], Z[s, j] = Z[s, j], z[s - i, j]
            else:
                for j in range(wide):
                    Z[s, j] -= moved[s, j]
    return X, Z, p, S


# Written as loops, not as array expressions: numba takes seconds to compile those. No loop both stores and sums: it
# would be compiled twice, and where arrays lie in memory would decide which code runs, in which order it sums.


@compiled_within
def resize(A: Array, rows: int, columns: int) -> F64:
    """A copy of A with so many rows and columns, cut or padded with zeros."""
    new = np.zeros((rows, columns))
    for i in range(min(A.shape[0], rows)):
        for j in range(min(A.shape[1], columns)):
            new[i, j] = A[i, j]
    return new


@compiled_within
def _learn_part(i: int, e: int, p: F64, G: F64, S: F64, eta: F64, X: F64, h: F64) -> None:
    """Learn messages i … e−1 one by one: fill in X and h, update p and S.

    Sp is kept beside p. With u = Sx, S ← S − shrink u uᵀ and p_t ← p_t + q x, it changes by
    (q − shrink u·(p_t + q x)) u. u·p_t is computed as x·Sp_t: so an error in Sp_t shrinks with Sp_t, however much S
    shrinks. S is large: its change is applied together with the next message's Sx, in one pass.
    """
    wide, shrink = len(S), 0.0
    Sp, u, before = product(p[i:e], S, N), np.zeros(wide), np.zeros(wide)
    for s in range(i, e):
        x = X[s]
        xx = xp = xu = 0.0
        for j in range(wide):
            x[j] = Sp[s - i, j]
        for j in range(wide):
            xx += x[j] * x[j]
            xp += x[j] * p[s, j]
        _shrink_and_multiply(S, shrink, before, x, u)
        for j in range(wide):
            before[j] = u[j]
        for j in range(wide):
            xu += x[j] * u[j]
        h[s] = eta[s] / (1.0 + eta[s] * xx)
        growth = h[s] * h[s] * max(G[s, s] - xp, 0.0)  # of CᵀC along x xᵀ; rounding may make the residual negative
        shrink = growth / (1.0 + growth * xu)
        for t in range(s + 1, e):
            px = Spx = 0.0
            for j in range(wide):
                px += p[t, j] * x[j]
                Spx += Sp[t - i, j] * x[j]
            q = h[s] * (G[s, t] - px)
            of_u = q - shrink * (Spx + q * xu)
            for j in range(wide):
                p[t, j] += q * x[j]
                Sp[t - i, j] += of_u * u[j]
    _shrink_and_multiply(S, shrink, before, before, u)


@compiled_within
def _shrink_and_multiply(S: F64, shrink: float, v: F64, x: F64, out: F64) -> None:
    """S ← S − shrink v vᵀ for a symmetric S, then out = Sx.

    Four rows at a time save writes of `out`. In this order v·v, which may underflow, is never formed.
    """
    for i in range(len(x)):
        out[i] = 0.0
    for j in range(0, len(S), 4):
        v0, v1, v2, v3 = shrink * v[j], shrink * v[j + 1], shrink * v[j + 2], shrink * v[j + 3]
        x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
        for i in range(len(x)):
            S0, S1 = S[j, i] - v0 * v[i], S[j + 1, i] - v1 * v[i]
            S2, S3 = S[j + 2, i] - v2 * v[i], S[j + 3, i] - v3 * v[i]
            S[j, i], S[j + 1, i], S[j + 2, i], S[j + 3, i] = S0, S1, S2, S3
            out[i] += S0 * x0 + S1 * x1 + S2 * x2 + S3 * x3


@compiled_within
def _solve(X: F64, h: F64) -> F64:
    """Z with (striu(XXᵀ) + diag(1/h)) Z = X, from the last row up; h may contain zeros."""
    XX, (b, wide) = product(X, X, T), X.shape
    Z = resize(X, b, wide)
    for s in range(b - 1, -1, -1):
        for t in range(s + 1, b):
            for i in range(wide):
                Z[s, i] -= XX[s, t] * Z[t, i]
        for i in range(wide):
            Z[s, i] *= h[s]
    return Z
