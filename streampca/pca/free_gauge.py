"""The paper's own algorithm: Algorithm 1 with step sizes η_t, and C never rescaled (the free gauge).

For experiments and comparison: the effect of a step size depends on the scale of C, which only grows. Beside C the
second moment M of x is kept, so that C M Cᵀ estimates the covariance here too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streampca.pca import algorithm1, axes, learning
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, update
from streampca.pca.blocked.centring import Weights
from streampca.pca.blocked.update import BlockConfig, Iterate
from streampca.pca.learning import LearningConfig
from streampca.pca.losses import NO_LOSSES, Losses
from streampca.pca.pending import Messages
from streampca.pca.state import State

_LARGEST_GROWTH = 1e3  # of CᵀC within a block: three digits of (CᵀC)⁻¹

Step = Callable[[NDArray[np.int64]], F64]
"""A schedule: the step sizes η_t of the iterations t."""


@dataclass(frozen=True)
class PowerStep:
    """η_t = η₀ / t^γ, t = 1, 2, … (paper, Experiments: γ = 0.8 for the implicit update)."""

    eta0: float = 1.0
    gamma: float = 0.8

    def __call__(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """The step sizes of the iterations `t`."""
        eta: NDArray[np.float64] = self.eta0 / np.asarray(t, np.float64) ** self.gamma
        return eta


@dataclass(frozen=True, eq=False)
class FreeState:
    """A state in the free gauge, and the weighted second moment of x = C†y."""

    state: State
    M: F64  # (K, K)


@dataclass(frozen=True, eq=False)
class FreeGauge:
    """The paper's algorithm: Algorithm 1 from the factor C0 (d, K), with step sizes η_t. It does not score messages."""

    config: LearningConfig
    C0: Array
    step: Step

    def empty(self) -> FreeState:
        """The state before the first message, with the factor C0."""
        C = np.ascontiguousarray(self.C0, self.config.dtype)
        state = replace(State.empty(len(C), self.config.dtype), C=C, N=_gram(C))
        return FreeState(state, np.zeros((C.shape[1], C.shape[1])))

    def next_block(self, state: FreeState) -> int:
        """Messages in the next block: all blocks have the same length."""
        return self.config.block

    def learn(self, state: FreeState, messages: Messages) -> tuple[FreeState, Losses]:
        """Learn messages, cut into blocks from the first on, with the steps η_t for t = count + 1, count + 2, …

        Raises `LinAlgError` if the columns of the factor become linearly dependent.
        """
        for start in range(0, len(messages.V), self.config.block):
            state = self._learn_block(state, messages.V[start : start + self.config.block])
        return state, NO_LOSSES

    def _learn_block(self, free: FreeState, V: Array) -> FreeState:
        state, n, center = free.state, len(V), self.config.center
        weights = centring.weights(state.weight, np.ones(n), n, center)
        eta = np.ascontiguousarray(self.step(np.arange(state.count + 1, state.count + n + 1)), np.float64)
        N = state.N if state.blocks % learning.BLOCKS_BETWEEN_TURNS else _gram(state.C)
        before = Iterate(state.C, N, free.M, learning.mean_before(state, V, center))
        after, _, squares = update.learn(
            V.astype(self.config.dtype, copy=False),
            before,
            weights._replace(eta=eta),
            BlockConfig(state.rank, n, self.config.stretch, unit=False),
        )
        if not len(squares) or _growth(N, after.N) > _LARGEST_GROWTH:
            after, squares = _one_by_one(V, before, weights, eta)
        return FreeState(learning.advance(state, after, n, squares, weights), after.M)

    def as_unit_gauge(self, state: FreeState) -> State:
        """The state with the factor C M^½, whose C Cᵀ estimates the covariance."""
        own, (variance, V) = state.state, np.linalg.eigh(state.M)
        C, variance = axes.turn((own.C @ (V * np.sqrt(np.maximum(variance, 0)))).astype(own.C.dtype))
        return replace(own, C=C, N=np.diag(variance), blocks=0)


def _growth(before: F64, after: F64) -> float:
    """A bound on how many times CᵀC has grown along any direction."""
    return float(np.trace(np.linalg.solve(before, after)))


def _one_by_one(V: Array, before: Iterate, weights: Weights, eta: F64) -> tuple[Iterate, F64]:
    """A block by the paper's own update of C†, which stays accurate however much C grows; and the sum of ‖y‖².

    Where the data is large beside C, as at the start, CᵀC grows by many orders of magnitude in a few messages, in one
    direction after the other. Then (CᵀC)⁻¹, of which the blocked update makes everything, loses as many digits.
    """
    factor, M, mean, squares = _inverted(before.C), before.M, before.mean, 0.0
    for v, a, share, c, step in zip(V, weights.a, weights.eta, weights.c, eta, strict=True):
        y = v - mean
        mean, y = mean + a * y, np.sqrt(1 - a) * y
        x, old = factor.C_pinv @ y, factor.C
        factor, _ = algorithm1.meyer(factor, y, step)
        T = factor.C_pinv @ old
        M = T @ ((1 - share) * M + share * np.outer(x, x)) @ T.T
        squares += c * (y @ y)
    return Iterate(factor.C.astype(before.C.dtype), _gram(factor.C), M, mean), np.array([squares])


def _inverted(C: Array) -> algorithm1.Factor:
    """C with C†, in float64. Raises `LinAlgError` if its columns are linearly dependent."""
    C = C.astype(np.float64, copy=False)
    Q, R = np.linalg.qr(C)
    diagonal = np.abs(R.diagonal())
    if diagonal.min() <= len(C) * np.finfo(np.float64).eps * np.linalg.norm(C[:, diagonal.argmin()]):
        raise np.linalg.LinAlgError("the columns of the factor have become linearly dependent")
    return algorithm1.Factor(C, np.linalg.solve(R, Q.T))


def _gram(C: Array) -> F64:
    wide = C.astype(np.float64, copy=False)
    return wide.T @ wide
