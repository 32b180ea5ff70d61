"""Weights of messages, and the running mean taken off inside the same pass.

A message v with retention λ (1: nothing is forgotten) is learned as

    w ← λw + 1        a = 1/w        y = √(1−a) (v − m)        m ← m + a(v − m)        Σ ← (1−a)Σ + a y yᵀ

which makes Σ exactly the weighted covariance about the weighted mean m. Over a block that starts at the mean m₀,
with D the rows v_s − m₀, all of this is linear in D: Y = diag(√(1−a)) LD with L (B×B) lower-triangular, ones on its
diagonal, and m = m₀ + Dᵀc. So P = YC, G = YYᵀ and YᵀZ follow from DC, DDᵀ and DᵀLᵀdiag(√(1−a))Z, and no pass over
the vectors is spent on centring.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.compiled import compiled

F64 = NDArray[np.float64]


class Weights(NamedTuple):
    """How much each message of a block counts."""

    a: F64  # (B,): 1/w at its turn
    c: F64  # (B,): its share of the moments at the block's end
    past: float  # share of what was learned before the block
    total: float  # w at the block's end


def weights(w: float, retention: F64) -> Weights:
    """Weights of a block that follows an effective weight w, with each message's λ in `retention` (B,)."""
    return Weights(*_weights(w, retention))


@compiled
def _weights(w: float, retention: F64) -> tuple[F64, F64, float, float]:  # pragma: no cover - compiled
    B = retention.shape[0]
    a = np.empty(B)
    for s in range(B):
        w = retention[s] * w + 1.0
        a[s] = 1.0 / w
    c = np.empty(B)
    kept = 1.0
    for s in range(B - 1, -1, -1):
        c[s] = a[s] * kept
        kept *= 1.0 - a[s]
    return a, c, kept, w


@compiled
def matrix(a: F64) -> F64:  # pragma: no cover - compiled
    """L (B, B): row s of LD is v_s − m, because it is e_s − the coefficients of m before message s."""
    B = a.shape[0]
    L = np.zeros((B, B))
    u = np.zeros(B)
    for s in range(B):
        for j in range(s):
            L[s, j] = -u[j]
        L[s, s] = 1.0
        for j in range(s):
            u[j] *= 1.0 - a[s]
        u[s] = a[s]
    return L
