"""Weights of messages, and the running mean subtracted inside the block.

A message v that keeps the share ρ of the past (1: nothing is forgotten) is learned as

    w ← ρw + 1        a = 1/w        y = √(1−a) (v − m)        m ← m + a(v − m)        Σ ← (1−a)Σ + a y yᵀ

so that Σ is exactly the weighted covariance about the weighted mean m. Over a stretch that starts at the mean m₀, with
D the rows v_s − m₀, this is linear in D: Y = TD with T = diag(√(1−a)) L, where L (B×B) is lower-triangular with ones on
its diagonal, and m = m₀ + Dᵀc. Hence P = YC, G = YYᵀ and YᵀZ = DᵀTᵀZ follow from DC, DDᵀ and D: centring reads the
vectors once. L is never formed; `subtract_running_mean` applies it by recursion and `adjoint` applies Tᵀ.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled, inlined


class Weights(NamedTuple):
    """How much each of n messages counts, and what each block keeps of the past."""

    eta: F64  # (n,): its step size; 1/w unless the caller sets another
    a: F64  # (n,): its weight in the running mean when it arrives; zero without centring
    c: F64  # (n,): its share of the moments at the end of its block
    past: F64  # (blocks,): the share of everything before the block, at the end of the block
    total: F64  # (blocks,): w at the end of the block


def weights(w: float, retention: F64, block: int, center: bool = True) -> Weights:
    """Weights of messages that follow an effective weight w, in blocks of `block` messages (the last may be shorter).

    `retention` (n,) holds each message's ρ.
    """
    eta, c, past, total = _weights(w, retention, block)
    return Weights(eta, eta if center else np.zeros(len(eta)), c, past, total)


@compiled
def _weights(w: float, retention: F64, block: int) -> tuple[F64, F64, F64, F64]:  # pragma: no cover - compiled
    n, blocks = len(retention), -(-len(retention) // block)
    eta, c, past, total = np.empty(n), np.empty(n), np.empty(blocks), np.empty(blocks)
    for i in range(blocks):
        start, end = i * block, min(i * block + block, n)
        for s in range(start, end):
            w = retention[s] * w + 1.0
            eta[s] = 1.0 / w
        total[i] = w
        of_block, past[i] = shares(eta[start:end])
        for s in range(start, end):  # numba takes seconds to compile an assignment to c[start:end]
            c[s] = of_block[s - start]
    return eta, c, past, total


@compiled
def shares(a: F64) -> tuple[F64, float]:  # pragma: no cover - compiled
    """Shares of messages with weights a (B,) after the last of them: of each message, and of everything before."""
    c, kept = np.empty(len(a)), 1.0
    for s in range(len(a) - 1, -1, -1):
        c[s] = a[s] * kept
        kept *= 1.0 - a[s]
    return c, kept


@compiled
def subtract_running_mean(A: F64, a: F64) -> None:  # pragma: no cover - compiled
    """A ← LA (B, n): from each row subtract the running mean of the rows before it, which starts at 0."""
    B, n = A.shape
    m = np.zeros(n)
    for s in range(B):
        for j in range(n):
            A[s, j] -= m[j]
            m[j] += a[s] * A[s, j]


@inlined
def center_products(P: F64, G: F64, a: F64) -> None:  # pragma: no cover - compiled
    """P = DC (B, n) becomes TP = YC and G = DDᵀ (B, B) becomes TGTᵀ = YYᵀ."""
    B, root = len(a), np.sqrt(1.0 - a)
    subtract_running_mean(P, a)
    subtract_running_mean(G, a)
    for s in range(B):  # transposed for the second factor: recursion along rows would not vectorise
        for t in range(s):
            G[s, t], G[t, s] = G[t, s], G[s, t]
    subtract_running_mean(G, a)
    for s in range(B):
        for j in range(P.shape[1]):
            P[s, j] *= root[s]
        for t in range(B):
            G[s, t] *= root[s] * root[t]


@inlined
def adjoint(Z: F64, a: F64) -> F64:  # pragma: no cover - compiled
    """TᵀZ = Lᵀ diag(√(1−a)) Z (B, n), so that YᵀZ = Dᵀ(TᵀZ)."""
    B, n = Z.shape
    TZ, later = np.empty((B, n)), np.zeros(n)
    for s in range(B - 1, -1, -1):
        root = np.sqrt(1.0 - a[s])
        for j in range(n):
            z = root * Z[s, j]
            TZ[s, j] = z - a[s] * later[j]
            later[j] = (1.0 - a[s]) * later[j] + z
    return TZ


@inlined
def subtract_mean(V: Array, mean: F64, a: F64, D: Array) -> F64:  # pragma: no cover - compiled
    """Write V − mean (B, d) into the panels D (n, B, w); return the mean after V, mean + (V − mean)ᵀc."""
    (B, d), c = V.shape, shares(a)[0]
    n, _, w = D.shape
    after = np.empty(d)
    for j in range(n):
        start, end, shift = j * w, min(j * w + w, d), np.zeros(w)
        for s in range(B):
            for i in range(end - start):
                offset = V[s, start + i] - mean[start + i]
                D[j, s, i] = offset
                shift[i] += c[s] * offset
        for i in range(end - start):
            after[start + i] = mean[start + i] + shift[i]
    return after
