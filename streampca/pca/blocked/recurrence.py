"""Exact stretches: b messages learned one after the other, at matrix-multiply speed.

Within a stretch, Algorithm 1 needs no number of size d but P = YC and G = YYᵀ. For s = 1 … b:

    x_s = S p_s                         h_s = η_s / (1 + η_s‖x_s‖²)             ‖r_s‖² = G_ss − x_s·p_s
    p_t ← p_t + h_s (G_ts − p_t·x_s) x_s    for t > s                           (what C ← C − h r xᵀ does to Cᵀy_t)
    S ← Sherman–Morrison for CᵀC + h_s²‖r_s‖² x_s x_sᵀ

and then, with X the rows x_s, M = striu(XXᵀ) + diag(1/h) and Z = M⁻¹X:     C ← C(I − XᵀZ) + YᵀZ.

`run` does this for the K-sized numbers; both products of size d are the caller's. It goes by parts of 16 messages: the
last line is also what a part does to the p of all messages after it, P ← P(I − XᵀZ) + GZ, and to the Z of those before
it, Z ← Z(I − XᵀZ). So only within a part is anything done message by message.

Derivation: docs/mathematics.md. It equals `krasulina.sherman_morrison` to rounding, and a test holds it to that.
"""

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.gemm import times, times_transposed, transposed_times
from streampca.pca.blocked.jit import compiled_with_free_sums, inlined

_PART = 16  # messages
_LANES = 8  # numbers to a vector register: rows are filled up with zeros, so that no loop over K has a remainder


@compiled_with_free_sums
def width(K: int) -> int:  # pragma: no cover - compiled
    """How wide a matrix of `run` is for K columns of the factor."""
    return (K + _LANES - 1) // _LANES * _LANES


@inlined
def run(
    p: F64, G: F64, S: F64, E: F64, k: int, eta: F64
) -> tuple[F64, F64, F64, F64, float]:  # pragma: no cover - compiled
    """Learn a stretch; brings p (b, w), S (w, w) and E up to date, w the `width` of K; zeros fill them up.

    p holds P before, and afterwards each message's p = Cᵀy at its turn; G is (b, b), eta (b,) the steps. E, filled up
    like the others, is the inverse of S's block of the K − k last columns of C, by which these are told from the first.

    Returns X (b, w), each message's x at its turn; Z (b, w); the growths h²‖r‖² (b,), by which N = CᵀC grows to
    N + Xᵀ diag(growth) X; what the span of the first k columns captures of ‖y‖² at its turn (b,); and the jump, the
    largest growth of the variance along x by one message, less one.
    """
    b, wide = p.shape
    X, h, growth, captured, jump = np.zeros((b, wide)), np.zeros(b), np.zeros(b), np.zeros(b), 0.0
    Z = resized(p, b, wide)  # of messages to come this is their p: a part moves both alike, but for GZ
    for i in range(0, b, _PART):
        e = min(i + _PART, b)
        jump = max(jump, _part(i, e, Z, G, S, E, k, eta, X, h, growth, captured))
        z, moved = _solve(X[i:e], h[i:e]), times_transposed(Z, X[i:e])
        for s in range(e, b):
            for t in range(i, e):
                moved[s, t - i] -= G[s, t]
        for s in range(i, e):
            for j in range(wide):
                p[s, j] = Z[s, j]
        add(Z, -1.0, times(moved, z))
        for s in range(i, e):
            for j in range(wide):
                Z[s, j] = z[s - i, j]
    return X, Z, growth, captured, jump


@inlined
def moves(X: F64, Z: F64, growth: F64, N: F64) -> tuple[F64, F64]:  # pragma: no cover - compiled
    """Pi = I − XᵀZ (K, K) and Z (b, K) with which the factor is moved; N (K, K) grows to what its CᵀC will be."""
    K = len(N)
    x, z = resized(X, len(X), K), resized(Z, len(Z), K)
    Pi = transposed_times(x, z)
    for i in range(K):
        for j in range(K):
            Pi[i, j] = (1.0 if i == j else 0.0) - Pi[i, j]
    grown = resized(x, len(x), K)
    for s in range(len(x)):
        for j in range(K):
            grown[s, j] *= growth[s]
    add(N, 1.0, transposed_times(x, grown))
    return Pi, z


# What follows could be said in one array expression each; numba would take seconds to compile it.


@compiled_with_free_sums
def resized(A: Array, rows: int, columns: int) -> F64:  # pragma: no cover - compiled
    """A, cut or with zeros below and to the right."""
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
def _part(
    i: int, e: int, p: F64, G: F64, S: F64, E: F64, k: int, eta: F64, X: F64, h: F64, growth: F64, captured: F64
) -> float:  # pragma: no cover - compiled
    """Messages i … e−1: fill in X, h, growth and captured one by one, bring p, S and E up to date; the part's jump.

    Beside p goes Sp: with u = Sx, S ← S − shrink u uᵀ and p_t ← p_t + q x it grows by (q − shrink u·(p_t + q x)) u.
    Here u·p_t is taken as x·Sp_t: the same, but so an error in Sp_t dwindles as Sp_t does, however much S shrinks.
    S is large: it is moved when the next message's u is asked for, so that both are one walk through it.
    """
    wide, shrink, jump = len(S), 0.0, 0.0
    Sp, u, before = times(p[i:e], S), np.zeros(wide), np.zeros(wide)
    for s in range(i, e):
        x = X[s]
        xx = xp = xu = 0.0
        for j in range(wide):
            x[j] = Sp[s - i, j]
            xx += x[j] * x[j]
            xp += x[j] * p[s, j]
        _shrunk_times(S, shrink, before, x, u)
        for j in range(wide):
            before[j] = u[j]
            xu += x[j] * u[j]
        h[s] = eta[s] / (1.0 + eta[s] * xx)
        growth[s] = h[s] * h[s] * max(G[s, s] - xp, 0.0)  # rounding may take the residual below zero
        jump = max(jump, growth[s] * xu)
        shrink = growth[s] / (1.0 + growth[s] * xu)
        captured[s] = xp - _last(E, x, u, k, shrink)
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
    _shrunk_times(S, shrink, before, before, u)
    return jump


@compiled_with_free_sums
def _shrunk_times(S: F64, shrink: float, v: F64, x: F64, out: F64) -> None:  # pragma: no cover - compiled
    """S ← S − shrink v vᵀ, of a symmetric S, and out = Sx after it; four rows at a time, as `out` is written for each.

    In this order v·v, which may underflow, is never formed.
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
def _last(E: F64, x: F64, u: F64, k: int, shrink: float) -> float:  # pragma: no cover - compiled
    """What the last columns add to what the first k capture, xᵀEx of them; E = S⁻¹ as S ← S − shrink u uᵀ."""
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
    """Z with (striu(XXᵀ) + diag(1/h)) Z = X, from the last row up; h may hold zeros."""
    XX, (b, wide) = times_transposed(X, X), X.shape
    Z = resized(X, b, wide)
    for s in range(b - 1, -1, -1):
        for t in range(s + 1, b):
            for i in range(wide):
                Z[s, i] -= XX[s, t] * Z[t, i]
        for i in range(wide):
            Z[s, i] *= h[s]
    return Z
