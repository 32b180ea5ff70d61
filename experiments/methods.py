"""The ways to learn that are compared: each learns a block (B, d) that follows t messages, and shows its basis."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import IncrementalPCA

from experiments import exact
from experiments.baselines import incremental
from streampca.pca import axes, learning
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig, Messages, learn_whole_blocks
from streampca.pca.state import State

GAMMA = {"oja": 0.9, "krasulina": 0.9, "explicit": 0.8, "implicit": 0.8}  # as in the paper, which has no `explicit`
TUNED = tuple(GAMMA)
LABELS = {
    "oja": "Oja",
    "krasulina": "Krasulina",
    "explicit": "Krasulina without QR",
    "incremental": "Incremental",
    "implicit": "Imp. Krasulina",
    "gauge": "Imp. Krasulina, unit gauge",
    "default": "streampca (default)",
    "sklearn": "IncrementalPCA (scikit-learn)",
}
BLOCK = 50  # divides the intervals at which the loss is taken
SKLEARN_BATCH = 1000  # messages a step for IncrementalPCA
WARM_UP = 200  # the first block


class Method(NamedTuple):
    """A way to learn."""

    start: Callable[[F64], Any]  # the state before the first message, from an orthonormal C (d, k)
    learn: Callable[[Any, F64], Any]  # the state after a block Y (B, d)
    basis: Callable[[Any], F64]  # orthonormal columns (d, k)


def method(name: str, k: int, eta0: float = 1.0) -> Method:
    """By its name; eta0 where there is a step size."""
    if name in GAMMA:
        return _stepwise(name, eta0)
    return {"incremental": _incremental, "gauge": _unit_gauge, "default": _default, "sklearn": _sklearn}[name](k)


def _stepwise(name: str, eta0: float) -> Method:
    """A step of the paper for each message, η_t = η₀ / t^γ, t = 1, 2, …; the state is C and t."""

    def learn(state: tuple[F64, int], Y: F64) -> tuple[F64, int]:
        C, t = state
        eta = eta0 / np.arange(t + 1, t + len(Y) + 1, dtype=np.float64) ** GAMMA[name]
        return exact.learn(name, C, Y, eta), t + len(Y)

    return Method(lambda C: (C, 0), learn, lambda state: exact.orthonormal(state[0]))


def _incremental(k: int) -> Method:
    return Method(lambda C: incremental.start(*C.shape), exact.increment, lambda state: state.U)


def _unit_gauge(k: int) -> Method:
    """Algorithm 1 with η = 1/t, scaled after each block so that CCᵀ is the covariance in the span of C; no more.

    The state is C, of orthogonal columns, and t.
    """

    def learn(state: tuple[F64, int], Y: F64) -> tuple[F64, int]:
        C, t = state
        n = t + len(Y)
        if t:
            Q = exact.orthonormal(exact.learn("implicit", C, Y, 1 / np.arange(t + 1.0, n + 1)))
        else:
            Q = np.linalg.svd(Y, full_matrices=False)[2][:k].T
        past, new = C.T @ Q, Y @ Q
        variance, U = np.linalg.eigh((t * past.T @ past + new.T @ new) / n)
        return Q @ (U * np.sqrt(variance))[:, ::-1], n

    return Method(lambda C: (C, 0), learn, lambda state: state[0] / np.linalg.norm(state[0], axis=0))


def _default(k: int) -> Method:
    """This package's own with its default settings: oversampling, running mean, no step size.

    In the blocks of the daemon; the state is that of all whole blocks, and the messages that wait for the next.
    """

    def learn(state: tuple[State, Messages], Y: F64) -> tuple[State, Messages]:
        return learn_whole_blocks(LearningConfig(Y.shape[1], k), *state, Messages(Y, np.ones(len(Y))))[:2]

    def start(C: F64) -> tuple[State, Messages]:
        return State.empty(len(C)), Messages(np.zeros((0, len(C))), np.zeros(0))

    return Method(start, learn, lambda state: axes.find_principal_axes(published(state, k), k)[0].T)


def published(state: tuple[State, Messages], k: int) -> State:
    """The state of all messages of the default method, as it would be published."""
    learned, waiting = state
    return learning.learn(learned, *waiting, LearningConfig(waiting.V.shape[1], k))[0]


def _sklearn(k: int) -> Method:
    """scikit-learn's IncrementalPCA; the state is the estimator, which changes, and blocks that wait for a batch."""

    def fit(state: tuple[Any, list[F64]], fewest: int) -> tuple[Any, list[F64]]:
        pca, waiting = state
        if sum(map(len, waiting)) >= fewest:
            pca.partial_fit(np.concatenate(waiting))
            waiting.clear()
        return state

    return Method(
        lambda C: (IncrementalPCA(k), []),
        lambda state, Y: fit((state[0], [*state[1], Y]), SKLEARN_BATCH),
        lambda state: np.asarray(fit(state, 1)[0].components_.T, np.float64),
    )
