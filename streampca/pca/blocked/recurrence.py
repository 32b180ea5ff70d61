"""Learns the B messages of a block one after the other by Algorithm 1, at the speed of matrix products.

Within a block, Algorithm 1 needs no vectors of length d, but only their products P = YC and G = YYᵀ. For s = 1 … B:

    x_s = S p_s                         h_s = η_s / (1 + η_s‖x_s‖²)             ‖r_s‖² = G_ss − x_s·p_s
    p_t ← p_t + h_s (G_ts − p_t·x_s) x_s    for t > s                           (Cᵀy_t after C ← C − h r xᵀ, eq. 12)
    S ← Sherman–Morrison for CᵀC + h_s²‖r_s‖² x_s x_sᵀ

and then, with X the rows x_s, M = striu(XXᵀ) + diag(1/h) and Z = M⁻¹X:     C ← C(I − XᵀZ) + YᵀZ. Messages are learned
one by one only within parts of 16. The same formula gives what a part does to the p of later messages,
P ← P(I − XᵀZ) + GZ, and to the Z of earlier messages, Z ← Z(I − XᵀZ). This equals
`algorithm1.sherman_morrison` to rounding. docs/mathematics.md, section 2.
"""

from typing import Any

import numpy as np
from numba import types

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled_within

_PART = 16  # number of messages that are learned one by one
_LANES = 8  # numbers in a vector register: rows are padded with zeros, so that no loop over K has a remainder

# numba's BLAS. Parameters: the precision; the forms of the two factors (N: plain, T: transposed); three sizes; α; a
# matrix and its stride; a second matrix and its stride; β; the product and its stride. Pointers are integers, so that
# one type serves both precisions. Letters are int8: for Python integers, code would be compiled for each value.
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
    """Return AB, or ABᵀ if `form` is T, for matrices of one type whose rows are contiguous.

    It calls BLAS directly, because `@` would take seconds to compile. BLAS reads matrices by columns, so it computes
    (AB)ᵀ = BᵀAᵀ.
    """
    m, k = A.shape
    n = B.shape[0] if form == T else B.shape[1]
    out = np.empty((m, n), A.dtype)
    is_single = A.itemsize == 4
    _gemm(
        _SINGLE if is_single else _DOUBLE, form, N, n, m, k, _SINGLE_ONE.ctypes.data if is_single else _ONE.ctypes.data,
        B.ctypes.data, B.strides[0] // B.itemsize, A.ctypes.data, A.strides[0] // A.itemsize, _ZERO.ctypes.data,
        out.ctypes.data, n,
    )  # fmt: skip
    return out


@compiled_within
def learn_padded(P: Array, G: Array, S: F64, eta: F64) -> tuple[F64, F64, F64, F64]:
    """Learn the B messages of a block, given P = YC (B, K), G = YYᵀ (B, B), S = (CᵀC)⁻¹ (K, K) and the steps η (B,).

    Returns X and Z (B, w), the p = Cᵀy of each message with the C before it (B, w), and S (w, w) after the block. All
    are padded with zeros from K columns to w, which fill whole registers.
    """
    b = len(P)
    # w: K, rounded up to a multiple of `_LANES`.
    wide = (P.shape[1] + _LANES - 1) // _LANES * _LANES
    # Each message has a row: until the message is learned, the row holds its p, and then its z. So one product updates
    # the p of later messages and the z of earlier messages. Only the p also get the term GZ.
    p_or_z = resize(P, b, wide)
    X = np.zeros((b, wide))
    h = np.zeros(b)
    p = np.zeros((b, wide))
    G = resize(G, b, b)
    S = resize(S, wide, wide)
    for first in range(0, b, _PART):
        end = min(first + _PART, b)
        _learn_part(first, end, p_or_z, G, S, eta, X, h)
        # For later messages P ← P − (PXᵀ − G)Z, and for earlier messages Z ← Z − ZXᵀZ, with X and Z of this part.
        z = _solve(X[first:end], h[first:end])
        change = product(p_or_z, X[first:end], T)
        for s in range(end, b):
            for t in range(first, end):
                change[s, t - first] -= G[s, t]
        moved = product(change, z, N)
        for s in range(b):
            if first <= s < end:
                for j in range(wide):
                    p[s, j] = p_or_z[s, j]
                    p_or_z[s, j] = z[s - first, j]
            else:
                for j in range(wide):
                    p_or_z[s, j] -= moved[s, j]
    return X, p_or_z, p, S


# The functions below are loops, because numba takes seconds to compile array expressions. No loop both stores and sums:
# such a loop is compiled in two variants, and where arrays lie in memory would decide the order of its sums.


@compiled_within
def resize(A: Array, rows: int, columns: int) -> F64:
    """Return a copy of A with this number of rows and columns, cut or padded with zeros."""
    new = np.zeros((rows, columns))
    for i in range(min(A.shape[0], rows)):
        for j in range(min(A.shape[1], columns)):
            new[i, j] = A[i, j]
    return new


@compiled_within
def _learn_part(first: int, end: int, p: F64, G: F64, S: F64, eta: F64, X: F64, h: F64) -> None:
    """Learn the messages from `first` to before `end` one by one: fill in X and h, and update p and S.

    A message changes S by −shrink u uᵀ, with u = Sx, and the p_t of each later message by q x. So the product Sp_t,
    which is kept, changes by (q − shrink u·(p_t + q x)) u. u·p_t is computed as x·Sp_t, so that an error in Sp_t
    shrinks together with Sp_t, however much S shrinks. An optimisation: S is large, so its change is applied in the
    pass that computes Sx of the next message.
    """
    wide = len(S)
    shrink = 0.0
    Sp = product(p[first:end], S, N)
    u = np.zeros(wide)
    before = np.zeros(wide)  # u of the previous message, by which S is not changed yet
    for s in range(first, end):
        x = X[s]
        xx = xp = xu = 0.0
        for j in range(wide):
            x[j] = Sp[s - first, j]
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
        for t in range(s + 1, end):
            px = Spx = 0.0
            for j in range(wide):
                px += p[t, j] * x[j]
                Spx += Sp[t - first, j] * x[j]
            q = h[s] * (G[s, t] - px)
            factor_of_u = q - shrink * (Spx + q * xu)
            for j in range(wide):
                p[t, j] += q * x[j]
                Sp[t - first, j] += factor_of_u * u[j]
    _shrink_and_multiply(S, shrink, before, before, u)


@compiled_within
def _shrink_and_multiply(S: F64, shrink: float, v: F64, x: F64, out: F64) -> None:
    """Subtract shrink v vᵀ from a symmetric S, and write the product of the new S with x to `out`.

    An optimisation: four rows are taken at a time, which saves writes of `out`. len(S) is a multiple of 4, because S is
    padded. Each v[j] is first multiplied by `shrink`, because products of two entries of v may underflow.
    """
    for i in range(len(x)):
        out[i] = 0.0
    for j in range(0, len(S), 4):
        v0 = shrink * v[j]
        v1 = shrink * v[j + 1]
        v2 = shrink * v[j + 2]
        v3 = shrink * v[j + 3]
        x0 = x[j]
        x1 = x[j + 1]
        x2 = x[j + 2]
        x3 = x[j + 3]
        for i in range(len(x)):
            S0 = S[j, i] - v0 * v[i]
            S1 = S[j + 1, i] - v1 * v[i]
            S2 = S[j + 2, i] - v2 * v[i]
            S3 = S[j + 3, i] - v3 * v[i]
            S[j, i] = S0
            S[j + 1, i] = S1
            S[j + 2, i] = S2
            S[j + 3, i] = S3
            out[i] += S0 * x0 + S1 * x1 + S2 * x2 + S3 * x3


@compiled_within
def _solve(X: F64, h: F64) -> F64:
    """Solve (striu(XXᵀ) + diag(1/h)) Z = X for Z, from the last row up. If an h is 0, its row of Z is 0."""
    XX = product(X, X, T)
    b, wide = X.shape
    Z = resize(X, b, wide)
    for s in range(b - 1, -1, -1):
        for t in range(s + 1, b):
            for i in range(wide):
                Z[s, i] -= XX[s, t] * Z[t, i]
        for i in range(wide):
            Z[s, i] *= h[s]
    return Z
