"""A stream that is learned from batches of any size."""

from typing import Generic, TypeVar

import numpy as np

from streampca.pca.arrays import Array
from streampca.pca.axes import model_of
from streampca.pca.model import Model
from streampca.pca.pending import Learner, Messages, learn_whole_blocks
from streampca.pca.scoring.schedule import Calibrator, parts
from streampca.pca.state import State

T = TypeVar("T")


class OnlineLearner(Generic[T]):
    """The state of a stream, and the pending messages that do not fill a block yet."""

    def __init__(self, gauge: Learner[T], retention: float = 1.0) -> None:
        self.gauge = gauge
        self.retention = retention  # ρ, the share of the past that each message keeps
        self.state = gauge.empty()
        self.seen = 0
        self.pending = self._messages(np.zeros((0, gauge.config.dimensions), gauge.config.dtype))
        self.calibrator = Calibrator()
        self._model: Model | None = None

    def add(self, V: Array) -> None:
        """Learn vectors (n, d)."""
        V = V.astype(self.gauge.config.dtype, copy=False)
        for part, place in parts(V, self.seen, self.gauge.next_block(self.gauge.empty())):
            if place >= 0:
                self.calibrator = self.calibrator.scored(self._unit_gauge, self.gauge.config.components, part, place)
            self.state, self.pending, _ = learn_whole_blocks(self.gauge, self.state, self.pending, self._messages(part))
        self.seen += len(V)
        self._model = None

    def _unit_gauge(self) -> State:
        return self.gauge.as_unit_gauge(self.state)

    def summary(self) -> State:
        """The state in the unit gauge after all messages, including the pending ones."""
        complete = self.gauge.learn(self.state, self.pending)[0] if len(self.pending.V) else self.state
        return self.gauge.as_unit_gauge(complete)

    @property
    def model(self) -> Model:
        """The model of all messages seen."""
        if self._model is None:
            self._model = model_of(self.summary(), self.gauge.config.components)
        return self._model

    def resume(self, state: T, seen: int, calibrator: Calibrator) -> None:
        """Continue from a state that was learned elsewhere, with the past scores."""
        self.state, self.seen, self.calibrator, self._model = state, seen, calibrator, None
        self.pending = self.pending.part(0, 0)

    def _messages(self, V: Array) -> Messages:
        return Messages(V, np.full(len(V), self.retention))
