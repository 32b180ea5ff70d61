"""Exact blocks: B messages learned one after the other, at matrix-multiply speed.

Within a block, Algorithm 1 needs no number of size d but P = YC and G = YYᵀ. For s = 1 … B:

    x_s = S p_s                         h_s = η_s / (1 + η_s‖x_s‖²)             ‖r_s‖² = G_ss − x_s·p_s
    p_t ← p_t + h_s (G_ts − p_t·x_s) x_s    for t > s                           (what C ← C − h r xᵀ does to Cᵀy_t)
    S ← Sherman–Morrison for CᵀC + h_s²‖r_s‖² x_s x_sᵀ

and then, with X the rows x_s, M = striu(XXᵀ) + diag(1/h) and Z = M⁻¹X:     C ← C(I − XᵀZ) + YᵀZ.

`run` does this for the K-sized numbers; both products of size d are the caller's. It goes by parts of 16 messages: the
last line is also what a part does to the p of all messages after it, P ← P(I − XᵀZ) + GZ, and to the Z of those before
it, Z ← Z(I − XᵀZ). So only within a part is anything done message by message.

Derivation: docs/mathematics.md. It equals `krasulina.sherman_morrison` to rounding, and a test holds it to that.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.compiled import compiled_with_free_sums

F64 = NDArray[np.float64]

_PART = 16  # messages
_LANES = 8  # numbers to a vector register: rows are filled up with zeros, so that no loop over K has a remainder


class Block(NamedTuple):
    """What a block of messages does to the factor: C ← C Pi + YᵀZ with Pi = I − XᵀZ."""

    X: F64  # (B, K): each message's x at its turn
    Z: F64  # (B, K)
    S: F64  # (K, K): (CᵀC)⁻¹ after the block
    N: F64  # (K, K): CᵀC after the block
    jump: float  # largest growth of the variance along x by one message, less one

    @property
    def Pi(self) -> F64:  # noqa: N802 - the letter of the mathematics
        """(K, K)."""
        return np.eye(len(self.S)) - self.X.T @ self.Z


def run(P: F64, G: F64, S: F64, N: F64, eta: F64) -> Block:
    """Learn a block from P (B, K), G (B, B), S and N (K, K) before it, and the steps η (B,)."""
    return Block(*_run(P, G, S, N, eta))


@compiled_with_free_sums
def _run(P: F64, G: F64, S: F64, N: F64, eta: F64) -> tuple[F64, F64, F64, F64, float]:  # pragma: no cover - compiled
    B, K = P.shape
    wide = (K + _LANES - 1) // _LANES * _LANES
    p, S_now = _filled_up(P, B, wide), _filled_up(S, wide, wide)
    X, Z, h, growth = np.zeros((B, wide)), np.zeros((B, wide)), np.zeros(B), np.zeros(B)
    jump = 0.0
    for i in range(0, B, _PART):
        e = min(i + _PART, B)
        x, z = X[i:e], Z[i:e]
        jump = max(jump, _part(p[i:e], G[i:e, i:e], S_now, eta[i:e], x, h[i:e], growth[i:e]))
        _solve(np.dot(x, x.T), x, h[i:e], z)
        for rows in (Z[:i], p[e:]):
            add(rows, -1.0, np.dot(np.dot(rows, x.T), z))
        add(p[e:], 1.0, np.dot(np.ascontiguousarray(G[e:, i:e]), z))
    X = X[:, :K].copy()
    N_after = N.copy()
    add(N_after, 1.0, np.dot(X.T, scaled_rows(X, growth)))
    return X, Z[:, :K].copy(), S_now[:K, :K].copy(), N_after, jump


# What follows could be said in one array expression each; numba would take seconds to compile it.


@compiled_with_free_sums
def _filled_up(A: F64, rows: int, columns: int) -> F64:  # pragma: no cover - compiled
    """A with zeros below and to the right."""
    filled = np.zeros((rows, columns))
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            filled[i, j] = A[i, j]
    return filled


@compiled_with_free_sums
def add(A: F64, factor: float, B: F64) -> None:  # pragma: no cover - compiled
    """A += factor·B."""
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            A[i, j] += factor * B[i, j]


@compiled_with_free_sums
def scaled_rows(A: F64, by: F64) -> F64:  # pragma: no cover - compiled
    """diag(by) A."""
    scaled = np.empty(A.shape)
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            scaled[i, j] = A[i, j] * by[i]
    return scaled


@compiled_with_free_sums
def _part(p: F64, G: F64, S: F64, eta: F64, X: F64, h: F64, growth: F64) -> float:  # pragma: no cover - compiled
    """Fill X, h and the growths h²‖r‖² message by message, and bring p and S up to date; the part's jump.

    Beside p goes Sp: with u = Sx, S ← S − shrink u uᵀ and p_t ← p_t + q x it grows by (q − shrink u·(p_t + q x)) u.
    Here u·p_t is taken as x·Sp_t: the same, but so an error in Sp_t dwindles as Sp_t does, however much S shrinks.
    """
    b, wide = p.shape
    Sp, u, jump = np.dot(p, S), np.zeros(wide), 0.0
    for s in range(b):
        x = X[s]
        for i in range(wide):
            x[i] = Sp[s, i]
        h[s] = eta[s] / (1.0 + eta[s] * _dot(x, x))
        growth[s] = h[s] * h[s] * max(G[s, s] - _dot(x, p[s]), 0.0)  # rounding may take the residual below zero
        _times(S, x, u)
        xu = _dot(x, u)
        jump = max(jump, growth[s] * xu)
        shrink = growth[s] / (1.0 + growth[s] * xu)
        for t in range(s + 1, b):
            q = h[s] * (G[s, t] - _dot(p[t], x))
            of_u = q - shrink * (_dot(Sp[t], x) + q * xu)
            for i in range(wide):
                p[t, i] += q * x[i]
                Sp[t, i] += of_u * u[i]
        for j in range(wide):
            left = shrink * u[j]  # in this order u·u, which may underflow, is never formed
            for i in range(wide):
                S[j, i] -= left * u[i]
    return jump


@compiled_with_free_sums
def _times(S: F64, x: F64, out: F64) -> None:  # pragma: no cover - compiled
    """out = Sx, of a symmetric S; four rows at a time, since `out` is written for each."""
    for i in range(len(x)):
        out[i] = 0.0
    for j in range(0, len(S), 4):
        for i in range(len(x)):
            out[i] += S[j, i] * x[j] + S[j + 1, i] * x[j + 1] + S[j + 2, i] * x[j + 2] + S[j + 3, i] * x[j + 3]


@compiled_with_free_sums
def _dot(x: F64, y: F64) -> float:  # pragma: no cover - compiled
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


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
