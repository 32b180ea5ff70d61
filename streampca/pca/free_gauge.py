"""The paper's own algorithm: Algorithm 1 with step sizes η_t, and C never rescaled (the free gauge).

For experiments and comparison: the effect of a step size depends on the scale of C, which only grows. Beside C the
second moment M of x is kept, so that C M Cᵀ estimates the covariance here too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streampca.pca import algorithm1, axes
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, recurrence
from streampca.pca.blocked.centring import Weights
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
        state = replace(State.empty(len(C), self.config.dtype), C=C)
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
        state, n = free.state, len(V)
        weights = centring.weights(state.weight, np.ones(n), self.config.center)
        eta = np.ascontiguousarray(self.step(np.arange(state.count + 1, state.count + n + 1)), np.float64)
        block = centring.centre(V, state.mean, state.total_variance, weights, share=np.inf)
        C, M = _together(free, block.Y, weights, eta)
        if C is None or _growth(_gram(state.C), _gram(C)) > _LARGEST_GROWTH:
            C, M = _one_by_one(free, block.Y, weights, eta)
        after = replace(
            state,
            C=C,
            mean=block.mean,
            weight=weights.total,
            total_variance=block.total_variance,
            count=state.count + n,
        )
        return FreeState(after, M)

    def as_unit_gauge(self, state: FreeState) -> State:
        """The state with the factor C M^½, whose C Cᵀ estimates the covariance."""
        own, (variance, V) = state.state, np.linalg.eigh(state.M)
        C = axes.leading(own.C @ (V * np.sqrt(np.maximum(variance, 0))), len(V), own.C.dtype)
        return replace(own, C=C)


def _together(free: FreeState, Y: Array, weights: Weights, eta: F64) -> tuple[Array | None, F64]:
    """C and M after a block; None if C has lost a column."""
    C, N = free.state.C, _gram(free.state.C)
    X, Z, p, _ = recurrence.learn(Y @ C, Y @ Y.T, np.asarray(np.linalg.inv(N), np.float64), eta)
    C = C @ (np.eye(len(N)) - X.T @ Z).astype(C.dtype) + Y.T @ Z.astype(C.dtype)
    try:
        S = np.linalg.inv(_gram(C))
    except np.linalg.LinAlgError:
        return None, free.M
    # x changes coordinates to S CᵀC_before x, as the residual is orthogonal to C: so N M N is a weighted sum of p pᵀ.
    M = S @ (weights.past * N @ free.M @ N + (p * weights.c[:, None]).T @ p) @ S
    return (C, M) if np.isfinite(M).all() else (None, free.M)


def _growth(before: F64, after: F64) -> float:
    """A bound on how many times CᵀC has grown along any direction."""
    return float(np.trace(np.linalg.solve(before, after)))


def _one_by_one(free: FreeState, Y: Array, weights: Weights, eta: F64) -> tuple[Array, F64]:
    """C and M after a block, by the paper's own update of C†, which stays accurate however much C grows.

    Where the data is large beside C, as at the start, CᵀC grows by many orders of magnitude in a few messages, in one
    direction after the other. Then (CᵀC)⁻¹, of which the blocked update makes everything, loses as many digits.
    """
    factor, M = _inverted(free.state.C), free.M
    for y, share, step in zip(Y.astype(np.float64), weights.eta, eta, strict=True):
        x, old = factor.C_pinv @ y, factor.C
        factor, _ = algorithm1.meyer(factor, y, step)
        T = factor.C_pinv @ old
        M = T @ ((1 - share) * M + share * np.outer(x, x)) @ T.T
    return factor.C.astype(free.state.C.dtype), M


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
