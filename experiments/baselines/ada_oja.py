"""AdaOja (Henriksen & Ward 2019, arXiv:1905.12115): Oja's update with AdaGrad's step size for each column.

    G = YᵀYC/N        b ← √(b² + ‖g‖²) for each column g of G        C ← QR(C + G diag(b)⁻¹)

Its authors start from b = 1e-5 and take ten messages at a time; any small b will do, as the first G dwarfs it.
"""

from dataclasses import dataclass

import numpy as np

from experiments.baselines.orthonormal import orthonormal
from streampca.pca.arrays import F64

SMALL = 1e-5  # b before the first message
BATCH = 10  # messages


@dataclass(frozen=True, eq=False)
class AdaOjaState:
    """The factor and the inverse step sizes."""

    C: F64  # (d, k), orthonormal columns
    b: F64  # (k,), growing


def start(C: F64) -> AdaOjaState:
    """Nothing seen, with the orthonormal factor C (d, k)."""
    return AdaOjaState(C, np.full(C.shape[1], SMALL))


def step(state: AdaOjaState, Y: F64) -> AdaOjaState:
    """The state after a batch Y (N, d)."""
    G = Y.T @ (Y @ state.C) / len(Y)
    b = np.hypot(state.b, np.linalg.norm(G, axis=0))
    return AdaOjaState(np.asarray(orthonormal(state.C + G / b), np.float64), b)
