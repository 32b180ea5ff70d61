"""The ways to learn that are compared: each learns a block (B, d) that follows t messages, and shows its basis."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import IncrementalPCA

from experiments import exact
from experiments.baselines import incremental
from experiments.baselines.orthonormal import orthonormal
from streampca.pca import axes, learning
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from streampca.pca.pending import Messages, learn_whole_blocks
from streampca.pca.state import State

GAMMA = {"oja": 0.9, "krasulina": 0.9, "implicit": 0.8}  # as in the paper
TUNED = tuple(GAMMA)
LABELS = {
    "oja": "Oja",
    "krasulina": "Krasulina",
    "incremental": "Incremental",
    "implicit": "Imp. Krasulina",
    "default": "streampca (default)",
    "sklearn": "IncrementalPCA (scikit-learn)",
}
BLOCK = 50  # divides the intervals at which the loss is taken
SKLEARN_BATCH = 1000  # messages a step for IncrementalPCA
WARM_UP = 200  # the first block


class Method(Protocol):
    """A way to learn."""

    def start(self, C: F64) -> Any:
        """What is known before the first message: an orthonormal C (d, k)."""
        ...

    def learn(self, state: Any, Y: F64) -> Any:
        """The state after a block Y (B, d)."""
        ...

    def basis(self, state: Any) -> F64:
        """Orthonormal columns (d, k)."""
        ...


@dataclass(frozen=True)
class PowerStep:
    """η_t = η₀ / t^γ, t = 1, 2, … (paper, Experiments)."""

    eta0: float = 1.0
    gamma: float = 0.8

    def __call__(self, t: NDArray[np.int64]) -> F64:
        """The step sizes of the iterations `t`."""
        return np.asarray(self.eta0 / t.astype(np.float64) ** self.gamma)


@dataclass(frozen=True)
class Stepwise:
    """Oja's, Krasulina's or the implicit update; the state is C and the number of messages."""

    name: str
    step: PowerStep

    def start(self, C: F64) -> tuple[F64, int]:
        """C itself."""
        return C, 0

    def learn(self, state: tuple[F64, int], Y: F64) -> tuple[F64, int]:
        """Message by message, in an exact block."""
        C, t = state
        update = {"oja": exact.oja, "krasulina": exact.krasulina, "implicit": exact.implicit}[self.name]
        return update(C, Y, self.step(np.arange(t + 1, t + len(Y) + 1))), t + len(Y)

    def basis(self, state: tuple[F64, int]) -> F64:
        """An orthonormal basis of the span of C; the implicit update's C has any scale."""
        return np.asarray(orthonormal(state[0]), np.float64)


@dataclass(frozen=True)
class Incremental:
    """Rank-k truncated update; nothing to start from, nothing to tune."""

    def start(self, C: F64) -> incremental.IncrementalState:
        """Only the shape of C matters."""
        return incremental.start(*C.shape)

    def learn(self, state: incremental.IncrementalState, Y: F64) -> incremental.IncrementalState:
        """Message by message, in an exact block."""
        return exact.increment(state, Y)

    def basis(self, state: incremental.IncrementalState) -> F64:
        """U."""
        return state.U


@dataclass(frozen=True)
class Default:
    """This package's own with its default settings: oversampling, running mean, no step size.

    In the blocks of the daemon; the state is that of all whole blocks, and the messages that wait for the next.
    """

    k: int

    def start(self, C: F64) -> tuple[State, Messages]:
        """Only the shape of C matters."""
        return State.empty(len(C)), _messages(np.zeros((0, len(C))))

    def learn(self, state: tuple[State, Messages], Y: F64) -> tuple[State, Messages]:
        """As many whole blocks as there are."""
        return learn_whole_blocks(LearningConfig(Y.shape[1], self.k), *state, _messages(Y))[:2]

    def of_all(self, state: tuple[State, Messages]) -> State:
        """The state of all messages, as it would be published."""
        learned, waiting = state
        return learning.learn(learned, *waiting, LearningConfig(waiting.V.shape[1], self.k))[0]

    def basis(self, state: tuple[State, Messages]) -> F64:
        """The k leading axes."""
        return axes.principal(self.of_all(state), self.k)[0].T


def _messages(Y: F64) -> Messages:
    """Messages that forget nothing."""
    return Messages(Y, np.ones(len(Y)))


@dataclass(frozen=True)
class Sklearn:
    """scikit-learn's IncrementalPCA; the state is the estimator, which changes, and the blocks that wait."""

    k: int

    def start(self, C: F64) -> tuple[Any, list[F64]]:
        """Nothing to start from."""
        return IncrementalPCA(self.k), []

    def learn(self, state: tuple[Any, list[F64]], Y: F64) -> tuple[Any, list[F64]]:
        """The block waits until there is a batch."""
        state[1].append(Y)
        if sum(map(len, state[1])) >= SKLEARN_BATCH:
            self._fit(*state)
        return state

    def basis(self, state: tuple[Any, list[F64]]) -> F64:
        """The components; what waits is learned first."""
        if state[1]:
            self._fit(*state)
        return np.asarray(state[0].components_.T, np.float64)

    def _fit(self, pca: Any, waiting: list[F64]) -> None:
        pca.partial_fit(np.concatenate(waiting))
        waiting.clear()


def method(name: str, k: int, eta0: float = 1.0) -> Method:
    """By its name; eta0 where there is a step size."""
    if name in GAMMA:
        return Stepwise(name, PowerStep(eta0, GAMMA[name]))
    if name == "sklearn":
        return Sklearn(k)
    return Incremental() if name == "incremental" else Default(k)
