"""A stream in pieces of any size: blocks are cut on the count of messages, never where a piece ends."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from streampca.pca import free_gauge, learning
from streampca.pca.arrays import Array
from streampca.pca.axes import model_of
from streampca.pca.learning import LearningConfig
from streampca.pca.model import Model
from streampca.pca.state import State

T = TypeVar("T")


class Way(Protocol[T]):
    """A way to learn: what the state is, and how it takes the next block."""

    @property
    def config(self) -> LearningConfig:
        """What shapes the model."""
        ...

    def empty(self) -> T:
        """Nothing learned yet."""
        ...

    def next_block(self, state: T) -> int:
        """How many messages the next block takes."""
        ...

    def learn(self, state: T, V: Array) -> T:
        """The state after a block V (B, d)."""
        ...

    def summary(self, state: T) -> State:
        """The state in the unit gauge."""
        ...


@dataclass(frozen=True)
class UnitGauge:
    """This package's way: η = 1/w; `retention` is each message's λ."""

    config: LearningConfig
    retention: float = 1.0

    def empty(self) -> State:
        """Nothing learned yet."""
        return State.empty(self.config.dimensions, self.config.dtype)

    def next_block(self, state: State) -> int:
        """First the start, then whole blocks."""
        return self.config.next_block(state)

    def learn(self, state: State, V: Array) -> State:
        """The state after a block V (B, d)."""
        return learning.learn(state, V, np.full(len(V), self.retention), self.config)[0]

    def summary(self, state: State) -> State:
        """The state itself."""
        return state


@dataclass(frozen=True, eq=False)
class FreeGauge:
    """The paper's way: the factor C0 (d, K) at the start, and step sizes η_t."""

    config: LearningConfig
    C0: Array
    step: free_gauge.Step

    def empty(self) -> free_gauge.FreeState:
        """Nothing learned yet."""
        return free_gauge.start(self.C0, self.config.dtype)

    def next_block(self, state: free_gauge.FreeState) -> int:
        """Every block has the same length."""
        return self.config.block

    def learn(self, state: free_gauge.FreeState, V: Array) -> free_gauge.FreeState:
        """The state after a block V (B, d)."""
        return free_gauge.learn(state, V, self.step, self.config)

    def summary(self, state: free_gauge.FreeState) -> State:
        """Scaled so that C Cᵀ estimates the covariance."""
        return state.in_unit_gauge()


class Online(Generic[T]):
    """A stream's state, and the messages that do not fill a block yet."""

    def __init__(self, way: Way[T]) -> None:
        self.way = way
        self.state = way.empty()
        self.seen = 0
        self._pending = np.zeros((0, way.config.dimensions), way.config.dtype)
        self._model: Model | None = None

    def add(self, V: Array) -> None:
        """Learn vectors (n, d); what does not fill a block waits."""
        self._model = None
        self.seen += len(V)
        V = V.astype(self.way.config.dtype, copy=False)
        V = np.concatenate([self._pending, V]) if len(self._pending) else V
        start = 0
        while start + (size := self.way.next_block(self.state)) <= len(V):
            self.state = self.way.learn(self.state, V[start : start + size])
            start += size
        self._pending = V[start:].copy()

    def summary(self) -> State:
        """The state in the unit gauge, with the waiting messages learned as well."""
        whole = self.way.learn(self.state, self._pending) if len(self._pending) else self.state
        return self.way.summary(whole)

    @property
    def model(self) -> Model:
        """The model of all messages seen."""
        if self._model is None:
            self._model = model_of(self.summary(), self.way.config.components)
        return self._model

    def adopt(self, state: T, seen: int) -> None:
        """Go on from a state that was learned elsewhere."""
        self.state, self.seen, self._model = state, seen, None
        self._pending = self._pending[:0]
