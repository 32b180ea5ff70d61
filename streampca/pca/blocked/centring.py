"""Weights of messages, and what precedes learning: messages are centred, and clipped if they are too far away.

A message v that keeps the share ρ of the past is learned as

    w ← ρw + 1        a = 1/w        y = √(1−a) (v − m)        m ← m + a(v − m)        Σ ← (1−a)Σ + y (a yᵀ)

so that Σ is the weighted covariance about the weighted mean m. First v is moved to ‖v − m‖² ≤ max(qρw, 30) tr Σ,
in a first block to ten times the median distance from its median. docs/mathematics.md, sections 3 and 5.
"""

import math
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled, compiled_with_free_sums

SHARE = 0.05  # q
ORDINARY = 30.0  # times tr Σ: one variable that is Gaussian exceeds it in four of 10⁸ messages
SHORT = 32.0  # messages of memory, w, or of a first block
_MEDIANS = 10.0  # distances from the median of a first block


class Weights(NamedTuple):
    """Weights of the n messages of a block, and of the past before it."""

    eta: F64  # (n,): its step size, 1/w
    a: F64  # (n,): its weight in the running mean when it arrives; zero without centring
    c: F64  # (n,): its share of the moments at the end of the block
    past: float  # the share of everything before the block, at the end of the block
    before: F64  # (n,): ρw, the weight of everything before it
    total: float  # w at the end of the block


def weights(w: float, retention: F64, center: bool = True) -> Weights:
    """Weights of the messages of a block that follows an effective weight w; `retention` (n,) holds each ρ."""
    before, eta, c, past = _weights(w, retention)
    return Weights(eta, eta if center else np.zeros(len(eta)), c, past, before, float(before[-1] + 1.0))


def near_median(V: Array) -> tuple[Array, int]:
    """The messages V (n, d), none farther from their median than ten median distances, and how many were moved."""
    median = np.median(V, axis=0)
    D = V.astype(np.float64) - median
    largest = np.abs(D).max(axis=1)
    lengths = largest * np.linalg.norm(D / np.maximum(largest, np.finfo(np.float64).tiny)[:, None], axis=1)
    apart = lengths[lengths > 0]  # of messages that are alike, as many as like, the distances say nothing
    limit = _MEDIANS * np.median(apart) if len(apart) else np.inf
    far = lengths > limit
    if far.any():
        V = V.copy()
        V[far] = median + D[far] * (limit / lengths[far])[:, None]
    return V, int(far.sum())


@compiled
def _weights(w: float, retention: F64) -> tuple[F64, F64, F64, float]:
    n, kept = len(retention), 1.0
    before, eta, c = np.empty(n), np.empty(n), np.empty(n)
    for s in range(n):
        before[s] = retention[s] * w
        w = before[s] + 1.0
        eta[s] = 1.0 / w
    for s in range(n - 1, -1, -1):
        c[s] = eta[s] * kept
        kept *= 1.0 - eta[s]
    return before, eta, c, kept


@compiled_with_free_sums
def centre_rows(
    V: Array, mean: F64, a: F64, eta: F64, before: F64, scale: tuple[float, float, float], Y: Array, norm: F64
) -> tuple[float, int]:
    """Fill in Y (n, d), the rows y, and norm; update the mean; return tr Σ and the number of clipped messages.

    `scale`: tr Σ before, the tr Σ that counts as none, and q.
    """
    (n, d), clipped, (total, smallest, share) = V.shape, 0, scale
    for s in range(n):
        square = 0.0
        for j in range(d):
            y = V[s, j] - mean[j]
            square += y * y
        limit, kept = max(share * before[s], ORDINARY) * total, 1.0
        if square > limit and before[s] >= SHORT and total > smallest:
            kept, square, clipped = math.sqrt(limit / square), limit, clipped + 1
        root, step = math.sqrt(1.0 - a[s]), kept * a[s]
        for j in range(d):
            y = V[s, j] - mean[j]
            Y[s, j] = kept * root * y
            mean[j] += step * y
        norm[s] = square
        total = (1.0 - eta[s]) * total + eta[s] * (1.0 - a[s]) * square
    return total, clipped
