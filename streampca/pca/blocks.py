"""Exact blocks: B messages learned one after the other, at matrix-multiply speed.

Within a block, Algorithm 1 needs no number of size d but P = YC and G = YYᵀ. For s = 1 … B:

    x_s = S p_s                         h_s = η_s / (1 + η_s‖x_s‖²)             ‖r_s‖² = G_ss − x_s·p_s
    p_t ← p_t + h_s (G_ts − p_t·x_s) x_s    for t > s                           (what C ← C − h r xᵀ does to Cᵀy_t)
    S ← Sherman–Morrison for CᵀC + h_s²‖r_s‖² x_s x_sᵀ

and then, with X the rows x_s, M = striu(XXᵀ) + diag(1/h) and Z = M⁻¹X:     C ← C(I − XᵀZ) + YᵀZ.

`recurrence` is the loop over K-sized numbers; both products of size d are the caller's. Derivation:
docs/mathematics.md. It equals `krasulina.sherman_morrison` to rounding, and a test holds it to that.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.compiled import compiled

F64 = NDArray[np.float64]


class Block(NamedTuple):
    """What a block of messages does to the factor: C ← C Pi + YᵀZ."""

    X: F64  # (B, K): each message's x at its turn
    Z: F64  # (B, K)
    Pi: F64  # (K, K)
    S: F64  # (K, K): (CᵀC)⁻¹ after the block
    N: F64  # (K, K): CᵀC after the block
    jump: float  # largest growth of the variance along x by one message, less one


def run(P: F64, G: F64, S: F64, N: F64, eta: F64) -> Block:
    """Learn a block from P (B, K), G (B, B), S and N (K, K) before it, and the steps η (B,)."""
    X, h, growth, S_after, jump = recurrence(P, G, S, eta)
    Z = _solve(X @ X.T, X, h)
    return Block(X, Z, np.eye(S.shape[0]) - X.T @ Z, S_after, N + X.T @ (growth[:, None] * X), jump)


@compiled
def recurrence(P: F64, G: F64, S: F64, eta: F64) -> tuple[F64, F64, F64, F64, float]:  # pragma: no cover - compiled
    """X, h, the growths h²‖r‖², the S after the block and its jump. Loops run along memory, so that they vectorise."""
    B, K = P.shape
    jump = 0.0
    Pt = P.T.copy()
    S = S.copy()
    X = np.zeros((B, K))
    h = np.zeros(B)
    growth = np.zeros(B)
    q = np.zeros(B)
    u = np.zeros(K)
    for s in range(B):
        x = X[s]
        xp = 0.0
        xx = 0.0
        for j in range(K):
            pj = Pt[j, s]
            for i in range(K):
                x[i] += S[j, i] * pj
        for j in range(K):
            xp += x[j] * Pt[j, s]
            xx += x[j] * x[j]
        h[s] = eta[s] / (1.0 + eta[s] * xx)
        residual = max(G[s, s] - xp, 0.0)  # rounding may take it below zero
        growth[s] = h[s] * h[s] * residual
        q[s + 1 :] = 0.0
        for j in range(K):
            for t in range(s + 1, B):
                q[t] += Pt[j, t] * x[j]
        for t in range(s + 1, B):
            q[t] = h[s] * (G[s, t] - q[t])
        for j in range(K):
            for t in range(s + 1, B):
                Pt[j, t] += q[t] * x[j]
        u[:] = 0.0
        xu = 0.0
        for j in range(K):
            for i in range(K):
                u[i] += S[j, i] * x[j]
        for j in range(K):
            xu += x[j] * u[j]
        jump = max(jump, growth[s] * xu)
        shrink = growth[s] / (1.0 + growth[s] * xu)
        for j in range(K):
            left = shrink * u[j]  # in this order u·u, which may underflow, is never formed
            for i in range(K):
                S[j, i] -= left * u[i]
    return X, h, growth, S, jump


@compiled
def _solve(XX: F64, X: F64, h: F64) -> F64:  # pragma: no cover - compiled
    """Z with (striu(XXᵀ) + diag(1/h)) Z = X, from the last row up; h may hold zeros."""
    B, K = X.shape
    Z = X.copy()
    for s in range(B - 1, -1, -1):
        for t in range(s + 1, B):
            for i in range(K):
                Z[s, i] -= XX[s, t] * Z[t, i]
        for i in range(K):
            Z[s, i] *= h[s]
    return Z
