"""The paper's own algorithm as a state: Algorithm 1 with step sizes η_t, and C as it comes (the free gauge).

What a step size means depends on the scale of C, which only ever grows: that is the paper's algorithm, for experiments
and comparison. Beside C the second moment M of x is kept, so that C M Cᵀ estimates the covariance here too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca import axes, learning
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, update
from streampca.pca.blocked.update import Factor
from streampca.pca.learning import LearningConfig
from streampca.pca.state import State

Step = Callable[[NDArray[np.int64]], F64]
"""Step sizes η_t of the iterations t."""


@dataclass(frozen=True)
class PowerStep:
    """η_t = η₀ / t^γ, t = 1, 2, … (paper, Experiments: γ = 0.8 for the implicit update)."""

    eta0: float = 1.0
    gamma: float = 0.8

    def __call__(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """Step sizes of the iterations `t`."""
        eta: NDArray[np.float64] = self.eta0 / np.asarray(t, np.float64) ** self.gamma
        return eta


@dataclass(frozen=True, eq=False)
class FreeState:
    """A state whose factor has any scale, and the weighted second moment of x = C†y."""

    state: State
    M: F64  # (K, K)

    def in_unit_gauge(self) -> State:
        """The same span and mean, with the factor C M^½: its C Cᵀ estimates the covariance."""
        variance, V = np.linalg.eigh(self.M)
        C, variance = axes.turn((self.state.C @ (V * np.sqrt(np.maximum(variance, 0)))).astype(self.state.C.dtype))
        return replace(self.state, C=C, N=np.diag(variance), blocks=0)


def start(C: Array, dtype: Any) -> FreeState:
    """Nothing learned yet, and the factor C (d, K)."""
    C = np.ascontiguousarray(C, dtype)
    K = C.shape[1]
    return FreeState(replace(State.empty(len(C), dtype), C=C, N=_gram(C)), np.zeros((K, K)))


def learn(free: FreeState, V: Array, step: Step, config: LearningConfig) -> FreeState:
    """Learn one block V (B, d), message by message, with the steps η_t for t = count + 1, count + 2, …

    Raises `LinAlgError` when the columns of the factor are no longer independent.
    """
    state = free.state
    eta = np.ascontiguousarray(step(np.arange(state.count + 1, state.count + len(V) + 1)), np.float64)
    weights = centring.weights(state.weight, np.ones(len(V)), len(V))
    a, mean = learning.centred(state, V, weights, config)
    N = state.N if state.blocks % learning.BLOCKS_BETWEEN_TURNS else _gram(state.C)
    factor, seen = update.learn(
        V.astype(config.dtype, copy=False),
        Factor(state.C, N, free.M, mean),
        update.Weights(eta, a, weights.c, weights.past),
        update.Steps(state.rank, len(V), config.stretch, unit=False),
    )
    if not len(seen.squares):
        raise np.linalg.LinAlgError("the columns of the factor are no longer independent")
    return FreeState(learning.advanced(state, factor, len(V), seen.squares, weights), factor.M)


def _gram(C: Array) -> F64:
    wide = C.astype(np.float64, copy=False)
    return wide.T @ wide
