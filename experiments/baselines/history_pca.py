"""History PCA (Yang, Hsieh & Wang 2018, arXiv:1802.05447): power iterations on the new batch and the low-rank past.

    A = (t−1)/t · QΛQᵀ + 1/t · YᵀY/N        W ← QR(AW) a few times, from W = Q        Q ← W

Λ is the diagonal of the norms of AW's columns. A is never formed. There is no step size. Its authors take some ten
messages at a time, and one iteration for each batch is the cheapest choice.
"""

from dataclasses import dataclass

import numpy as np

from experiments.baselines.orthonormal import orthonormal
from streampca.pca.arrays import F64

BATCH = 10  # messages


@dataclass(frozen=True, eq=False)
class HistoryState:
    """The second moment QΛQᵀ of `count` messages."""

    Q: F64  # (d, k), orthonormal columns
    variance: F64  # (k,)
    count: int


def start(C: F64) -> HistoryState:
    """Nothing seen, with the orthonormal factor C (d, k)."""
    return HistoryState(C, np.zeros(C.shape[1]), 0)


def step(state: HistoryState, Y: F64, iterations: int = 1) -> HistoryState:
    """The state after a batch Y (N, d). Batches may differ in length: messages weigh alike."""
    count = state.count + len(Y)
    Q, history = state.Q, state.variance * (state.count / count)
    W = AW = Q
    for _ in range(iterations):
        AW = Q @ (history[:, None] * (Q.T @ W)) + Y.T @ (Y @ W) / count
        W = np.asarray(orthonormal(AW), np.float64)
    return HistoryState(W, np.linalg.norm(AW, axis=0), count)
