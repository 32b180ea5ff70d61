"""A stream in pieces of any size: blocks are cut on the count of messages, never where a piece ends."""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from streampca.pca import free, learning
from streampca.pca.learning import Recipe
from streampca.pca.model import Model
from streampca.pca.state import Array, State
from streampca.pca.summary import model_of

T = TypeVar("T")


class Way(Protocol[T]):
    """A way to learn: what the state is, and how it takes the next block."""

    @property
    def recipe(self) -> Recipe:
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

    recipe: Recipe
    retention: float = 1.0

    def empty(self) -> State:
        """Nothing learned yet."""
        return State.empty(self.recipe.dimensions, self.recipe.dtype)

    def next_block(self, state: State) -> int:
        """First the start, then whole blocks."""
        return self.recipe.next_block(state)

    def learn(self, state: State, V: Array) -> State:
        """The state after a block V (B, d)."""
        return learning.learn(state, V, np.full(len(V), self.retention), self.recipe)[0]

    def summary(self, state: State) -> State:
        """The state itself."""
        return state


@dataclass(frozen=True, eq=False)
class FreeGauge:
    """The paper's way: the factor C0 (d, K) at the start, and step sizes η_t."""

    recipe: Recipe
    C0: Array
    step: free.Step

    def empty(self) -> free.FreeState:
        """Nothing learned yet."""
        return free.start(self.C0, self.recipe.dtype)

    def next_block(self, state: free.FreeState) -> int:
        """Every block has the same length."""
        return self.recipe.block

    def learn(self, state: free.FreeState, V: Array) -> free.FreeState:
        """The state after a block V (B, d)."""
        return free.learn(state, V, self.step, self.recipe)

    def summary(self, state: free.FreeState) -> State:
        """Scaled so that C Cᵀ estimates the covariance."""
        return state.in_unit_gauge()


class Online(Generic[T]):
    """A stream's state, and the messages that do not fill a block yet."""

    def __init__(self, way: Way[T]) -> None:
        self.way = way
        self.state = way.empty()
        self.seen = 0
        self._pending = np.zeros((0, way.recipe.dimensions), way.recipe.dtype)
        self._model: Model | None = None

    def add(self, V: Array) -> None:
        """Learn vectors (n, d); what does not fill a block waits."""
        self._model = None
        self.seen += len(V)
        V = V.astype(self.way.recipe.dtype, copy=False)
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
            self._model = model_of(self.summary(), self.way.recipe.components)
        return self._model

    def adopt(self, state: T, seen: int) -> None:
        """Go on from a state that was learned elsewhere."""
        self.state, self.seen, self._model = state, seen, None
        self._pending = self._pending[:0]
