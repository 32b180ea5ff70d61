"""CCIPCA (Weng, Zhang & Hwang 2003): covariance-free incremental PCA, in which each component sees what is left over.

    vᵢ ← (n − 1 − l)/n · vᵢ + (1 + l)/n · u (uᵀvᵢ/‖vᵢ‖),    then  u ← u − (uᵀvᵢ/‖vᵢ‖) vᵢ/‖vᵢ‖

for i = 1, …, k, where u starts as the n-th message. vᵢ estimates an eigenvector times its eigenvalue, and starts as
what is left of the i-th message. The amnesic l gives later messages more weight: 2 here, as the paper has it (2 to 4),
and 0 for the first l + 1 messages, where the past's weight would be negative.
"""

from dataclasses import dataclass

import numpy as np

from streampca.pca.arrays import F64

AMNESIC = 2.0  # l


@dataclass(frozen=True, eq=False)
class CcipcaState:
    """The components of `count` messages, each as long as its eigenvalue."""

    V: F64  # (k, d); a row that has not been started is 0
    count: int


def start(d: int, k: int) -> CcipcaState:
    """Nothing seen."""
    return CcipcaState(np.zeros((k, d)), 0)


def step(state: CcipcaState, y: F64, amnesic: float = AMNESIC) -> CcipcaState:
    """The state after one more message y (d,)."""
    n, V, u = state.count + 1, state.V.copy(), y.copy()
    share = (1 + amnesic * (n > amnesic + 1)) / n
    for i in range(min(n, len(V))):
        length = np.linalg.norm(V[i])
        if not length:
            V[i] = u
            break
        V[i] = (1 - share) * V[i] + (share * (u @ V[i]) / length) * u
        length = np.linalg.norm(V[i])
        if length:
            u -= ((u @ V[i]) / length**2) * V[i]
    return CcipcaState(V, n)
