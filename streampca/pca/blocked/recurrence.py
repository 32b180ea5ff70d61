"""One stretch: b messages learned one after the other by Algorithm 1, at the speed of matrix products.

Within a stretch, Algorithm 1 needs nothing of size d but P = YC and G = YYᵀ. For s = 1 … b:

    x_s = S p_s                         h_s = η_s / (1 + η_s‖x_s‖²)             ‖r_s‖² = G_ss − x_s·p_s
    p_t ← p_t + h_s (G_ts − p_t·x_s) x_s    for t > s                           (Cᵀy_t after C ← C − h r xᵀ, eq. 12)
    S ← Sherman–Morrison for CᵀC + h_s²‖r_s‖² x_s x_sᵀ

and then, with X the rows x_s, A = striu(XXᵀ) + diag(1/h) and Z = A⁻¹X:     C ← C(I − XᵀZ) + YᵀZ.

`learn_stretch` does this for the small matrices; the caller makes the two products of size d. It takes 16 messages (a
part) at a time: the last line also gives what a part does to the p of all later messages, P ← P(I − XᵀZ) + GZ, and to
the Z of those before it, Z ← Z(I − XᵀZ). Only the messages within a part are updated one by one.

Derivation: docs/mathematics.md, section 2. The result equals `algorithm1.sherman_morrison` to rounding.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.gemm import times, times_transposed, transposed_times
from streampca.pca.blocked.jit import compiled_with_free_sums, inlined

_PART = 16  # messages
_LANES = 8  # numbers in a vector register: rows are padded with zeros, so that no loop over K has a remainder


class _Stretch(NamedTuple):
    """Everything about a stretch that its parts read and change; rows of length w are padded with zeros."""

    p: F64  # (b, w): each message's Cᵀy for the current C
    G: F64  # (b, b) = YYᵀ
    S: F64  # (w, w) = (CᵀC)⁻¹
    E: F64  # the inverse of S's block of the columns from k on, padded
    k: int
    eta: F64  # (b,)
    X: F64  # (b, w): each message's x
    h: F64  # (b,)
    growth: F64  # (b,): h²‖r‖², so that CᵀC grows by growth·x xᵀ
    explained: F64  # (b,): the part of ‖y‖² in the span of the first k columns


@compiled_with_free_sums
def width(K: int) -> int:  # pragma: no cover - compiled
    """The padded length w of rows of K numbers."""
    return (K + _LANES - 1) // _LANES * _LANES


@inlined
def learn_stretch(
    p: F64, G: F64, S: F64, E: F64, k: int, eta: F64
) -> tuple[F64, F64, F64, F64, float]:  # pragma: no cover - compiled
    """Learn a stretch; updates p (b, w), S (w, w) and E in place, all padded to the `width` of their size.

    p holds P before, and afterwards each message's Cᵀy for the C that it met; G is (b, b), eta (b,) the steps. E is the
    inverse of S's block of the last K − k columns of C, by which the first k columns are scored alone.

    Returns X (b, w), each message's x; Z (b, w); growth (b,) = h²‖r‖², by which N = CᵀC becomes N + Xᵀ diag(growth) X;
    explained (b,), the part of each ‖y‖² in the span of the first k columns; and the jump, the largest relative growth
    of the variance along x that one message causes.
    """
    b, wide = p.shape
    X, h, growth, explained, jump = np.zeros((b, wide)), np.zeros(b), np.zeros(b), np.zeros(b), 0.0
    Z = resize(p, b, wide)  # rows of later messages hold their p until then: a part moves both alike, except for GZ
    stretch = _Stretch(Z, G, S, E, k, eta, X, h, growth, explained)
    for i in range(0, b, _PART):
        e = min(i + _PART, b)
        jump = max(jump, _learn_part(i, e, stretch))
        z, change = _solve(X[i:e], h[i:e]), times_transposed(Z, X[i:e])
        for s in range(e, b):
            for t in range(i, e):
                change[s, t - i] -= G[s, t]
        for s in range(i, e):
            for j in range(wide):
                p[s, j] = Z[s, j]
        add(Z, -1.0, times(change, z))
        for s in range(i, e):
            for j in range(wide):
                Z[s, j] = z[s - i, j]
    return X, Z, growth, explained, jump


@inlined
def factor_update(X: F64, Z: F64, growth: F64, N: F64) -> tuple[F64, F64]:  # pragma: no cover - compiled
    """Pi = I − XᵀZ (K, K) and Z (b, K) of C ← C Pi + YᵀZ; updates N = CᵀC (K, K) in place."""
    K = len(N)
    x, z = resize(X, len(X), K), resize(Z, len(Z), K)
    Pi = transposed_times(x, z)
    for i in range(K):
        for j in range(K):
            Pi[i, j] = (1.0 if i == j else 0.0) - Pi[i, j]
    grown = resize(x, len(x), K)
    for s in range(len(x)):
        for j in range(K):
            grown[s, j] *= growth[s]
    add(N, 1.0, transposed_times(x, grown))
    return Pi, z


# Written as loops, not as array expressions: numba takes seconds to compile those.


@compiled_with_free_sums
def resize(A: Array, rows: int, columns: int) -> F64:  # pragma: no cover - compiled
    """A copy of A with so many rows and columns, cut or padded with zeros."""
    new = np.zeros((rows, columns))
    for i in range(min(A.shape[0], rows)):
        for j in range(min(A.shape[1], columns)):
            new[i, j] = A[i, j]
    return new


@compiled_with_free_sums
def add(A: F64, factor: float, B: F64) -> None:  # pragma: no cover - compiled
    """A += factor·B."""
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            A[i, j] += factor * B[i, j]


@compiled_with_free_sums
def _learn_part(i: int, e: int, stretch: _Stretch) -> float:  # pragma: no cover - compiled
    """Learn messages i … e−1 one by one: fill in X, h, growth and explained, update p, S and E; return the jump.

    Sp is kept beside p. With u = Sx, S ← S − shrink u uᵀ and p_t ← p_t + q x, it changes by
    (q − shrink u·(p_t + q x)) u. u·p_t is computed as x·Sp_t: so an error in Sp_t shrinks with Sp_t, however much S
    shrinks. S is large: its change is applied together with the next message's Sx, in one pass.
    """
    p, G, S, E, k, eta, X, h, growth, explained = stretch
    wide, shrink, jump = len(S), 0.0, 0.0
    Sp, u, before = times(p[i:e], S), np.zeros(wide), np.zeros(wide)
    for s in range(i, e):
        x = X[s]
        xx = xp = xu = 0.0
        for j in range(wide):
            x[j] = Sp[s - i, j]
            xx += x[j] * x[j]
            xp += x[j] * p[s, j]
        _shrink_and_multiply(S, shrink, before, x, u)
        for j in range(wide):
            before[j] = u[j]
            xu += x[j] * u[j]
        h[s] = eta[s] / (1.0 + eta[s] * xx)
        growth[s] = h[s] * h[s] * max(G[s, s] - xp, 0.0)  # rounding may make the residual negative
        jump = max(jump, growth[s] * xu)
        shrink = growth[s] / (1.0 + growth[s] * xu)
        explained[s] = xp - _explained_by_last(E, x, u, k, shrink)
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
    return jump


@compiled_with_free_sums
def _shrink_and_multiply(S: F64, shrink: float, v: F64, x: F64, out: F64) -> None:  # pragma: no cover - compiled
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


@compiled_with_free_sums
def _explained_by_last(E: F64, x: F64, u: F64, k: int, shrink: float) -> float:  # pragma: no cover - compiled
    """What the columns from k on explain beyond the first k, xᵀEx; then E, their block of S inverted, follows S."""
    wide = len(E)
    x_last, u_last, Eu, added, uEu = np.zeros(wide), np.zeros(wide), np.empty(wide), 0.0, 0.0
    for i in range(min(wide, len(x) - k)):
        x_last[i], u_last[i] = x[k + i], u[k + i]
    for i in range(wide):
        of_x = of_u = 0.0
        for j in range(wide):
            of_x += E[i, j] * x_last[j]
            of_u += E[i, j] * u_last[j]
        Eu[i] = of_u
        added += x_last[i] * of_x
        uEu += u_last[i] * of_u
    for i in range(wide):
        more = Eu[i] * shrink / (1.0 - shrink * uEu)
        for j in range(wide):
            E[i, j] += more * Eu[j]
    return added


@compiled_with_free_sums
def _solve(X: F64, h: F64) -> F64:  # pragma: no cover - compiled
    """Z with (striu(XXᵀ) + diag(1/h)) Z = X, from the last row up; h may contain zeros."""
    XX, (b, wide) = times_transposed(X, X), X.shape
    Z = resize(X, b, wide)
    for s in range(b - 1, -1, -1):
        for t in range(s + 1, b):
            for i in range(wide):
                Z[s, i] -= XX[s, t] * Z[t, i]
        for i in range(wide):
            Z[s, i] *= h[s]
    return Z
