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

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.compiled import compiled_with_free_sums, inlined
from streampca.pca.products import times, times_transposed, transposed_times

Array = NDArray[np.floating[Any]]
F64 = NDArray[np.float64]

_PART = 16  # messages
_LANES = 8  # numbers to a vector register: rows are filled up with zeros, so that no loop over K has a remainder


@compiled_with_free_sums
def width(K: int) -> int:  # pragma: no cover - compiled
    """Columns of the matrices of `run` for a factor of K columns."""
    return (K + _LANES - 1) // _LANES * _LANES


@inlined
def run(
    p: F64, G: F64, S: F64, E: F64, k: int, eta: F64
) -> tuple[F64, F64, F64, F64, float]:  # pragma: no cover - compiled
    """Learn a stretch; brings p (b, w), S (w, w) and E up to date, w the `width` of K.

    p holds P before, and afterwards each message's p = Cᵀy at its turn; G is (b, b), eta (b,) the steps. E (τ, τ) is
    the inverse of S's block of the τ = K − k last columns of C, by which the first k are told from the rest.

    Returns X (b, w), each message's x at its turn; Z (b, w); the growths h²‖r‖² (b,), by which N = CᵀC grows to
    N + Xᵀ diag(growth) X; what the span of the first k columns captures of ‖y‖² at its turn (b,); and the jump, the
    largest growth of the variance along x by one message, less one.
    """
    b, wide = p.shape
    X, Z, h, growth, captured = np.zeros((b, wide)), np.zeros((b, wide)), np.zeros(b), np.zeros(b), np.zeros(b)
    jump = 0.0
    for i in range(0, b, _PART):
        e = min(i + _PART, b)
        jump = max(jump, _part(i, e, p, G, S, E, k, eta, X, h, growth, captured))
        x, z = X[i:e], Z[i:e]
        _solve(times_transposed(x, x), x, h[i:e], z)
        _take(Z[:i], x, z)
        _take(p[e:], x, z)
        add(p[e:], 1.0, times(G[e:, i:e], z))
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


@inlined
def _take(A: F64, x: F64, z: F64) -> None:  # pragma: no cover - compiled
    """A ← A(I − xᵀz)."""
    add(A, -1.0, times(times_transposed(A, x), z))


@compiled_with_free_sums
def _part(
    i: int, e: int, p: F64, G: F64, S: F64, E: F64, k: int, eta: F64, X: F64, h: F64, growth: F64, captured: F64
) -> float:  # pragma: no cover - compiled
    """Messages i … e−1: fill in X, h, growth and captured one by one, bring p, S and E up to date; the part's jump.

    Beside p goes Sp: with u = Sx, S ← S − shrink u uᵀ and p_t ← p_t + q x it grows by (q − shrink u·(p_t + q x)) u.
    Here u·p_t is taken as x·Sp_t: the same, but so an error in Sp_t dwindles as Sp_t does, however much S shrinks.
    """
    wide = len(S)
    Sp, u, jump = times(p[i:e], S), np.zeros(wide), 0.0
    for s in range(i, e):
        x = X[s]
        xx = xp = xu = 0.0
        for j in range(wide):
            x[j] = Sp[s - i, j]
            xx += x[j] * x[j]
            xp += x[j] * p[s, j]
        _times(S, x, u)
        for j in range(wide):
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
        for t in range(wide):
            left = shrink * u[t]  # in this order u·u, which may underflow, is never formed
            for j in range(wide):
                S[t, j] -= left * u[j]
    return jump


@compiled_with_free_sums
def _last(E: F64, x: F64, u: F64, k: int, shrink: float) -> float:  # pragma: no cover - compiled
    """What the last columns add to what the first k capture, xᵀEx of them; E = S⁻¹ as S ← S − shrink u uᵀ."""
    added, uEu, Eu = 0.0, 0.0, np.empty(len(E))
    for i in range(len(E)):
        Ex = Eu[i] = 0.0
        for j in range(len(E)):
            Ex += E[i, j] * x[k + j]
            Eu[i] += E[i, j] * u[k + j]
        added += x[k + i] * Ex
        uEu += u[k + i] * Eu[i]
    for i in range(len(E)):
        more = Eu[i] * shrink / (1.0 - shrink * uEu)
        for j in range(len(E)):
            E[i, j] += more * Eu[j]
    return added


@compiled_with_free_sums
def _times(S: F64, x: F64, out: F64) -> None:  # pragma: no cover - compiled
    """out = Sx, of a symmetric S; four rows at a time, since `out` is written for each."""
    for i in range(len(x)):
        out[i] = 0.0
    for j in range(0, len(S), 4):
        for i in range(len(x)):
            out[i] += S[j, i] * x[j] + S[j + 1, i] * x[j + 1] + S[j + 2, i] * x[j + 2] + S[j + 3, i] * x[j + 3]


@compiled_with_free_sums
def _solve(XX: F64, X: F64, h: F64, Z: F64) -> None:  # pragma: no cover - compiled
    """Z with (striu(XXᵀ) + diag(1/h)) Z = X, from the last row up; h may hold zeros."""
    B, K = X.shape
    for s in range(B - 1, -1, -1):
        for i in range(K):
            Z[s, i] = X[s, i]
        for t in range(s + 1, B):
            for i in range(K):
                Z[s, i] -= XX[s, t] * Z[t, i]
        for i in range(K):
            Z[s, i] *= h[s]
