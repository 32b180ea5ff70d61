"""Weights of messages, and the running mean taken off inside the same pass.

A message v with retention λ (1: nothing is forgotten) is learned as

    w ← λw + 1        a = 1/w        y = √(1−a) (v − m)        m ← m + a(v − m)        Σ ← (1−a)Σ + a y yᵀ

which makes Σ exactly the weighted covariance about the weighted mean m. Over a block that starts at the mean m₀,
with D the rows v_s − m₀, all of this is linear in D: Y = diag(√(1−a)) LD with L (B×B) lower-triangular, ones on its
diagonal, and m = m₀ + Dᵀc. So P = YC, G = YYᵀ and YᵀZ follow from DC, DDᵀ and DᵀLᵀdiag(√(1−a))Z, and only one pass over
the vectors is spent on centring. L need not be formed: `about` and `spread` are the recursion and its reverse.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled, inlined


class Weights(NamedTuple):
    """How much each message of some blocks counts."""

    a: F64  # (n,): 1/w at its turn
    c: F64  # (n,): its share of the moments at its block's end
    past: F64  # (blocks,): at each block's end, the share of what was learned before the block
    total: F64  # (blocks,): w at each block's end


def weights(w: float, retention: F64, block: int) -> Weights:
    """Weights of blocks of so many messages (the last may be shorter) that follow an effective weight w.

    Each message's λ is in `retention` (n,).
    """
    return Weights(*_weights(w, retention, block))


@compiled
def _weights(w: float, retention: F64, block: int) -> tuple[F64, F64, F64, F64]:  # pragma: no cover - compiled
    n, blocks = len(retention), -(-len(retention) // block)
    a, c, past, total = np.empty(n), np.empty(n), np.empty(blocks), np.empty(blocks)
    for i in range(blocks):
        start, end = i * block, min(i * block + block, n)
        for s in range(start, end):
            w = retention[s] * w + 1.0
            a[s] = 1.0 / w
        total[i] = w
        of_block, past[i] = shares(a[start:end])
        for s in range(start, end):  # an assignment to c[start:end] would take seconds to compile
            c[s] = of_block[s - start]
    return a, c, past, total


@compiled
def shares(a: F64) -> tuple[F64, float]:  # pragma: no cover - compiled
    """What is left of each message's weight a (B,) at the end of them all, and what is left of all before them."""
    c, kept = np.empty(len(a)), 1.0
    for s in range(len(a) - 1, -1, -1):
        c[s] = a[s] * kept
        kept *= 1.0 - a[s]
    return c, kept


@compiled
def about(A: F64, a: F64) -> None:  # pragma: no cover - compiled
    """A ← LA (B, n): each row of A less the running mean of those before it, which starts at 0."""
    B, n = A.shape
    m = np.zeros(n)
    for s in range(B):
        for j in range(n):
            A[s, j] -= m[j]
            m[j] += a[s] * A[s, j]


@inlined
def see(P: F64, G: F64, a: F64) -> None:  # pragma: no cover - compiled
    """P (B, n) = DC and G (B, B) = DDᵀ become YC and YYᵀ."""
    B, root = len(a), np.sqrt(1.0 - a)
    about(P, a)
    about(G, a)
    for s in range(B):  # the same to the columns: across rows it would be no loop for vectors
        for t in range(s):
            G[s, t], G[t, s] = G[t, s], G[s, t]
    about(G, a)
    for s in range(B):
        for j in range(P.shape[1]):
            P[s, j] *= root[s]
        for t in range(B):
            G[s, t] *= root[s] * root[t]


@inlined
def spread(Z: F64, a: F64) -> F64:  # pragma: no cover - compiled
    """Lᵀ diag(√(1−a)) Z (B, n): what each row gives to those after it, by way of the running mean, is taken back."""
    B, n = Z.shape
    spread, later = np.empty((B, n)), np.zeros(n)
    for s in range(B - 1, -1, -1):
        root = np.sqrt(1.0 - a[s])
        for j in range(n):
            z = root * Z[s, j]
            spread[s, j] = z - a[s] * later[j]
            later[j] = (1.0 - a[s]) * later[j] + z
    return spread


@inlined
def offsets(V: Array, mean: F64, a: F64, D: Array) -> F64:  # pragma: no cover - compiled
    """Write V − mean (B, d) into the panels D (n, B, w); the mean after them, mean + (V − mean)ᵀc."""
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
