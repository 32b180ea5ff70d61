"""Other published one-pass methods, as `Method`s: they get centred messages, as their papers have them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.baselines import ada_oja, ccipca, history_pca
from experiments.baselines.frequent_directions import FrequentDirections
from experiments.baselines.orthonormal import orthonormal
from experiments.methods import Method
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig

LABELS = {
    "adaoja": "AdaOja",
    "ccipca": "CCIPCA",
    "history": "History PCA",
    "directions": "Frequent Directions(K)",
}


@dataclass(frozen=True)
class InBatches:
    """A method that takes a few messages at a time, and whose state holds an orthonormal factor."""

    begin: Callable[[F64], Any]
    step: Callable[[Any, F64], Any]
    factor: str  # attribute of the state
    batch: int

    def start(self, C: F64) -> Any:
        """From C."""
        return self.begin(C)

    def learn(self, state: Any, Y: F64) -> Any:
        """Batch by batch."""
        for start in range(0, len(Y), self.batch):
            state = self.step(state, Y[start : start + self.batch])
        return state

    def basis(self, state: Any) -> F64:
        """The factor."""
        return np.asarray(getattr(state, self.factor), np.float64)


@dataclass(frozen=True)
class Ccipca:
    """Message by message, nothing to start from."""

    def start(self, C: F64) -> ccipca.CcipcaState:
        """Only the shape of C matters."""
        return ccipca.start(*C.shape)

    def learn(self, state: ccipca.CcipcaState, Y: F64) -> ccipca.CcipcaState:
        """Message by message."""
        for y in Y:
            state = ccipca.step(state, y)
        return state

    def basis(self, state: ccipca.CcipcaState) -> F64:
        """An orthonormal basis of the components, which are so only in the limit."""
        return np.asarray(orthonormal(state.V.T), np.float64)


@dataclass(frozen=True)
class Directions:
    """Frequent Directions with as many rows as we have columns; the state is the sketch, which changes."""

    k: int

    def start(self, C: F64) -> FrequentDirections:
        """Only the shape of C matters."""
        return FrequentDirections(len(C), LearningConfig(len(C), self.k).columns)

    def learn(self, state: FrequentDirections, Y: F64) -> FrequentDirections:
        """Add the rows."""
        state.add(Y)
        return state

    def basis(self, state: FrequentDirections) -> F64:
        """The k leading right singular vectors of the sketch."""
        return np.asarray(np.linalg.svd(state.sketch, full_matrices=False)[2][: self.k].T, np.float64)


def rival(name: str, k: int) -> Method:
    """By its name."""
    if name == "adaoja":
        return InBatches(ada_oja.start, ada_oja.step, "C", ada_oja.BATCH)
    if name == "history":
        return InBatches(history_pca.start, history_pca.step, "Q", history_pca.BATCH)
    return Ccipca() if name == "ccipca" else Directions(k)
