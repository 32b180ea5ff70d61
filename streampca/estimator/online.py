"""A stream that is learned from batches of any size."""

from copy import copy
from dataclasses import replace

from streampca.fold.decoded import batch_of_rows
from streampca.fold.fold import Fold, FoldConfig
from streampca.pca.arrays import Array
from streampca.pca.axes import decomposed, model_of
from streampca.pca.model import Model
from streampca.pca.scoring.schedule import Calibrator
from streampca.pca.state import State


class OnlineLearner:
    """The fold of a stream, with the past scores."""

    def __init__(self, config: FoldConfig) -> None:
        self.fold_config, self.config = config, config.learning
        self.fold = Fold.empty(self.config)
        self.calibrator = Calibrator(self.config.components)
        self._model: Model | None = None

    @property
    def seen(self) -> int:
        """The number of vectors."""
        return self.fold.stats.learned

    def add(self, V: Array) -> None:
        """Learn vectors (n, d)."""
        calibrator = copy(self.calibrator)
        self.fold, _ = self.fold.take(batch_of_rows(V, self.seen + len(V)), self.fold_config, calibrator.add)
        self.calibrator, self._model = calibrator, None

    def summary(self) -> State:
        """The state after all messages, including the pending ones."""
        return self.fold.provisional(self.config)

    @property
    def model(self) -> Model:
        """The model of all messages seen."""
        if self._model is None:
            self._model = model_of(decomposed(self.summary(), self.config.components), self.config.components)
        return self._model

    def resume(self, state: State, seen: int, calibrator: Calibrator) -> None:
        """Continue from a state that was learned elsewhere, with the past scores."""
        empty = Fold.empty(self.config)
        self.fold = replace(empty, position=seen, state=state, stats=replace(empty.stats, learned=seen))
        self.calibrator, self._model = calibrator, None
