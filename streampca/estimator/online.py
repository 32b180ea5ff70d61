"""A stream that is learned from batches of any size."""

from copy import copy

import numpy as np

from streampca.pca.arrays import Array
from streampca.pca.axes import decomposed, model_of
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.model import Model
from streampca.pca.pending import Messages, learn_whole_blocks
from streampca.pca.scoring.schedule import Calibrator
from streampca.pca.state import State


class OnlineLearner:
    """The state of a stream, and the pending messages that do not fill a block yet."""

    def __init__(self, config: LearningConfig, retention: float = 1.0) -> None:
        self.config = config
        self.retention = retention  # ρ, the share of the past that each message keeps
        self.state = State.empty(config.dimensions, config.dtype)
        self.seen = 0
        self.pending = self._messages(np.zeros((0, config.dimensions), config.dtype))
        self.calibrator = Calibrator(config.components)
        self._model: Model | None = None

    def add(self, V: Array) -> None:
        """Learn vectors (n, d)."""
        new = self._messages(V.astype(self.config.dtype, copy=False))
        calibrator = copy(self.calibrator)
        self.state, self.pending, _ = learn_whole_blocks(self.config, self.state, self.pending, new, calibrator.add)
        self.calibrator = calibrator
        self.seen += len(V)
        self._model = None

    def summary(self) -> State:
        """The state after all messages, including the pending ones."""
        return learn(self.state, *self.pending, self.config)[0] if len(self.pending.V) else self.state

    @property
    def model(self) -> Model:
        """The model of all messages seen."""
        if self._model is None:
            self._model = model_of(decomposed(self.summary(), self.config.components), self.config.components)
        return self._model

    def resume(self, state: State, seen: int, calibrator: Calibrator) -> None:
        """Continue from a state that was learned elsewhere, with the past scores."""
        self.state, self.seen, self.calibrator, self._model = state, seen, calibrator, None
        self.pending = self.pending.part(0, 0)

    def _messages(self, V: Array) -> Messages:
        return Messages(V, np.full(len(V), self.retention))
