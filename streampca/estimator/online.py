"""A stream that is learned from batches of any size."""

from copy import copy

from streampca.fold.decoded import batch_of_rows
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import Merged
from streampca.fold.past_scores import PastScoresBuilder
from streampca.pca.arrays import Array
from streampca.pca.axes import model_of
from streampca.pca.model import Model


class OnlineLearner:
    """The fold of a stream, with the past scores."""

    def __init__(self, config: FoldConfig) -> None:
        self.config = config
        self.fold = Fold.empty(config.learning)
        self.past_scores = PastScoresBuilder(config.learning.components)
        self._model: Model | None = None

    @property
    def seen(self) -> int:
        """The number of vectors."""
        return self.fold.stats.learned

    def add(self, V: Array) -> None:
        """Learn vectors (n, d)."""
        past_scores = copy(self.past_scores)
        self.fold, _ = self.fold.take(batch_of_rows(V, self.seen + len(V)), self.config, past_scores.before_block)
        self.past_scores, self._model = past_scores, None

    @property
    def model(self) -> Model:
        """The model of all messages seen."""
        if self._model is None:
            state = Merged.alone(self.fold, self.config).state
            self._model = model_of(state, self.config.learning.components)
        return self._model
