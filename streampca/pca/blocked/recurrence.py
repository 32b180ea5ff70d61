"""Learns the B messages of a block one after the other by Algorithm 1, at the speed of matrix products.

Within a block, Algorithm 1 needs no vectors of length d, but only their products P = YC and G = YYᵀ. For s = 1 … B:

    x_s = S p_s                         h_s = η_s / (1 + η_s‖x_s‖²)             ‖r_s‖² = G_ss − x_s·p_s
    p_t ← p_t + h_s (G_ts − p_t·x_s) x_s    for t > s                           (Cᵀy_t after C ← C − h r xᵀ, eq. 12)
    S ← Sherman–Morrison for CᵀC + h_s²‖r_s‖² x_s x_sᵀ

and then, with X the rows x_s, M = striu(XXᵀ) + diag(1/h) and Z = M⁻¹X:     C ← C(I − XᵀZ) + YᵀZ. Messages are learned
one by one only within groups of 16. The same formula gives what a group does to the p of later messages,
P ← P(I − XᵀZ) + GZ, and to the Z of earlier messages, Z ← Z(I − XᵀZ). This equals
`algorithm1.sherman_morrison` to rounding. docs/mathematics.md, section 2.
"""

from typing import Any

import numpy as np
from numba import types

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled_for_compiled_callers

_GROUP = 16  # number of messages that are learned one by one
_LANES = 8  # numbers in a vector register: rows are padded with zeros, so that no loop over K has a remainder

# numba's BLAS. Parameters: the precision; the forms of the two factors (n: plain, t: transposed); three sizes; α; a
# matrix and its stride; a second matrix and its stride; β; the product and its stride. Pointers are integers, so that
# one type serves both precisions. Letters are int8: for Python integers, code would be compiled for each value.
_gemm: Any = types.ExternalFunction(
    "numba_xxgemm",
    types.intc(
        types.char, types.char, types.char, types.intp, types.intp, types.intp, types.uintp, types.uintp, types.intp,
        types.uintp, types.intp, types.uintp, types.uintp, types.intp,
    ),
)  # fmt: skip
_SINGLE, _DOUBLE, PLAIN, TRANSPOSED = (np.int8(ord(letter)) for letter in "sdnt")
_ONE, _SINGLE_ONE, _ZERO = np.ones(1), np.ones(1, np.float32), np.zeros(1)


@compiled_for_compiled_callers
def product(A: Array, B: Array, form: Any) -> Array:
    """Return AB if `form` is `PLAIN`, or ABᵀ if it is `TRANSPOSED`, for matrices of one type with contiguous rows.

    `@` would take seconds to compile. BLAS reads and writes matrices by columns, so each of our matrices is the
    transpose for BLAS. So BLAS gets B first, and computes (AB)ᵀ = BᵀAᵀ.
    """
    m, k = A.shape
    n = B.shape[0] if form == TRANSPOSED else B.shape[1]
    out = np.empty((m, n), A.dtype)
    is_single = A.itemsize == 4
    _gemm(
        _SINGLE if is_single else _DOUBLE,  # the letter of the precision
        form,  # of B
        PLAIN,  # of A
        n,
        m,
        k,
        _SINGLE_ONE.ctypes.data if is_single else _ONE.ctypes.data,  # α is 1
        B.ctypes.data,
        B.strides[0] // B.itemsize,  # numbers from one row to the next
        A.ctypes.data,
        A.strides[0] // A.itemsize,
        _ZERO.ctypes.data,  # β is 0
        out.ctypes.data,
        n,
    )
    return out


@compiled_for_compiled_callers
def learn_padded(P: Array, G: Array, S: F64, eta: F64) -> tuple[F64, F64, F64, F64]:
    """Learn B messages, the rows of Y (B, d), by Algorithm 1, from products with C (d, K) and with each other.

    Given are P = YC, G = YYᵀ, S = (CᵀC)⁻¹ and the step sizes η (B,). Algorithm 1 learns message s by the step

        C ← C + h (y_s − Cx) xᵀ        x = S p_s        p_s = Cᵀy_s        h = η_s / (1 + η_s‖x‖²)

    C itself is not needed. Each step updates S by Sherman–Morrison, and p_t = Cᵀy_t of each later message t:

        p_t ← p_t + h (G_ts − p_t·x) x

    Within a group of `_GROUP` messages, messages are learned one by one (`_learn_group`). After each group, matrix
    products bring the rows of all other messages up to date.

    Rows of K numbers are padded with zeros to w numbers, so that they fill whole vector registers. Returns:

        X   (B, w): the coordinates x of each message
        Z   (B, w): C takes all steps at once with it, C ← C + (Y − XCᵀ)ᵀZ
        p   (B, w): the p_s of each message before it is learned
        S   (w, w): the next S
    """
    b = len(P)
    w = (P.shape[1] + _LANES - 1) // _LANES * _LANES
    # One array holds p and Z. The row of a message is its p until the group of the message is learned, and then its row
    # z of Z. So the rows before `first` are z, and the rows from `first` on are p.
    p_or_z = resize(P, b, w)
    X = np.zeros((b, w))
    h = np.zeros(b)
    p = np.zeros((b, w))
    G = resize(G, b, b)
    S = resize(S, w, w)
    for first in range(0, b, _GROUP):
        end = min(first + _GROUP, b)
        _learn_group(first, end, p_or_z, G, S, eta, X, h)
        # All steps of the group change C to C + (Y − XCᵀ)ᵀZ = C(I − XᵀZ) + YᵀZ, where X, Y and Z have the rows of the
        # group. This changes
        #     p ← p − (pXᵀ − G)Z        rows of later messages y, because p = Cᵀy
        #     z ← z − (zXᵀ)Z            rows of earlier messages y, because the part y zᵀ of C becomes y zᵀ(I − XᵀZ)
        group_Z = _solve(X[first:end], h[first:end])
        # The rows of the group itself are computed, too, but not used.
        factors = product(p_or_z, X[first:end], TRANSPOSED)  # zXᵀ for earlier messages, but only pXᵀ for later messages
        for s in range(end, b):  # now pXᵀ − G for later messages
            for t in range(first, end):
                factors[s, t - first] -= G[s, t]
        change = product(factors, group_Z, PLAIN)
        for s in range(b):
            is_in_group = first <= s < end
            for j in range(w):
                if is_in_group:  # the row was p, and becomes z
                    p[s, j] = p_or_z[s, j]
                    p_or_z[s, j] = group_Z[s - first, j]
                else:
                    p_or_z[s, j] -= change[s, j]
    Z = p_or_z
    return X, Z, p, S


# The functions below are loops, because numba takes seconds to compile array expressions. No loop both stores and sums:
# such a loop is compiled in two variants, and where arrays lie in memory would decide the order of its sums.


@compiled_for_compiled_callers
def resize(A: Array, rows: int, columns: int) -> F64:
    """Return a copy of A with this number of rows and columns, cut or padded with zeros."""
    new = np.zeros((rows, columns))
    for i in range(min(A.shape[0], rows)):
        for j in range(min(A.shape[1], columns)):
            new[i, j] = A[i, j]
    return new


@compiled_for_compiled_callers
def _learn_group(first: int, end: int, p: F64, G: F64, S: F64, eta: F64, X: F64, h: F64) -> None:
    """Learn one group of a block's messages, `first` … `end` − 1, one by one: fill in X and h, and update p and S.

    Message s is row y_s of Y, p_s is Cᵀy_s, G = YYᵀ and S = (CᵀC)⁻¹. Message s has the coordinates x on C and the
    residual r = y_s − Cx. Its step is C ← C + h r xᵀ, but C itself is not needed. For each message s:

        x = S p_s        u = Sx        h = η / (1 + η‖x‖²)        ‖r‖² = G_ss − x·p_s
        g = h²‖r‖²       f = g / (1 + g x·u)                      S ← S − f u uᵀ, the inverse of CᵀC + g x xᵀ
        p_t ← p_t + h (r·y_t) x for each later message t of the group, with r·y_t = G_st − p_t·x

    S is updated one message late: the update by message s is done while message s + 1 is learned, so that one pass over
    S does the update and computes Sx.
    """
    w = len(S)
    # The row of message s is S p_s, which is kept up to date while p and S change. When s is learned, it is x.
    Sp = product(p[first:end], S, PLAIN)  # `PLAIN`: no factor is transposed
    u = np.zeros(w)
    f_due = 0.0  # f and u of the message whose update of S is not done yet
    u_due = np.zeros(w)
    for s in range(first, end):
        x = X[s]  # a view: what is written to x is written to X
        xx = xp = xu = 0.0  # x·x, x·p_s and x·u
        for j in range(w):
            x[j] = Sp[s - first, j]
        for j in range(w):
            xx += x[j] * x[j]
            xp += x[j] * p[s, j]
        _shrink_and_multiply(S, shrink=f_due, v=u_due, x=x, out=u)  # S ← S − f u uᵀ of message s − 1, then u = Sx
        for j in range(w):
            u_due[j] = u[j]
        for j in range(w):
            xu += x[j] * u[j]
        h[s] = eta[s] / (1.0 + eta[s] * xx)
        g = h[s] * h[s] * max(G[s, s] - xp, 0.0)  # rounding may make ‖r‖² negative
        f_due = g / (1.0 + g * xu)
        # C and S have changed, so p and Sp of the later messages change.
        _move_later_messages(p[s + 1 : end], Sp[s + 1 - first :], G[s, s + 1 : end], h[s], f_due, x, u, xu)
    # The update by the last message. The product with x is not needed, so any x will do.
    _shrink_and_multiply(S, shrink=f_due, v=u_due, x=u_due, out=u)


@compiled_for_compiled_callers
def _move_later_messages(p: F64, Sp: Array, G: F64, h: float, f: float, x: F64, u: F64, xu: float) -> None:
    """Update p and Sp of each later message, after a message y has changed C and S = (CᵀC)⁻¹.

        p_t, Sp_t   rows of p and Sp for the later message y_t: Cᵀy_t and S Cᵀy_t
        G_t         y_t·y
        x           coordinates of y
        h           size of the step: C has changed to C + h (y − Cx) xᵀ
        u           Sx, with the S before the change
        f           size of the change of S: S has changed to S − f u uᵀ
        xu          x·u

    With the C and S before the change on the right, the new vectors are:

        p_t ← (C + h (y − Cx) xᵀ)ᵀ y_t       =  p_t + e x                             e = h (G_t − p_t·x)
        Sp_t ← (S − f u uᵀ)(p_t + e x)       =  Sp_t + (e − f (u·p_t + e xu)) u       because Sx = u

    u·p_t is computed as x·Sp_t, which has a smaller rounding error.
    """
    w = len(x)
    for t in range(len(p)):
        px = Spx = 0.0  # p_t·x and Sp_t·x
        for j in range(w):
            px += p[t, j] * x[j]
            Spx += Sp[t, j] * x[j]
        e = h * (G[t] - px)
        factor_of_u = e - f * (Spx + e * xu)
        for j in range(w):
            p[t, j] += e * x[j]
            Sp[t, j] += factor_of_u * u[j]


@compiled_for_compiled_callers
def _shrink_and_multiply(S: F64, shrink: float, v: F64, x: F64, out: F64) -> None:
    """Subtract shrink · v vᵀ from a symmetric S (w, w), and write the product of the new S with x to `out`.

    Taking four rows at a time saves writes. w is a multiple of 4, because `learn_padded` pads rows.
    """
    for i in range(len(x)):
        out[i] = 0.0
    for j in range(0, len(S), 4):
        v0 = shrink * v[j]  # below, this is multiplied by v[i]: without `shrink`, v[j] * v[i] could underflow
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


@compiled_for_compiled_callers
def _solve(X: F64, h: F64) -> F64:
    """Compute the matrix Z (b, w) that replaces the single steps of C for b messages by one joint step.

        C ← C + h_s (y_s − C x_s) x_sᵀ        one by one, for each message s
        C ← C + (Y − XCᵀ)ᵀZ                   all at once

    y_s is message s (row s of Y), x_s are its coordinates (row s of X (b, w)), and h_s is the size of its step. The
    second formula equals all b steps of the first if Z solves this triangular system, from the last row to the first:

        z_s = h_s (x_s − Σ (x_s·x_t) z_t)        sum over later messages t
    """
    XX = product(X, X, TRANSPOSED)
    b, w = X.shape
    Z = resize(X, b, w)  # a copy
    for s in range(b - 1, -1, -1):
        for t in range(s + 1, b):
            for i in range(w):
                Z[s, i] -= XX[s, t] * Z[t, i]
        for i in range(w):
            Z[s, i] *= h[s]
    return Z
