"""A stream that is learned from batches of any size."""

from copy import copy

from streampca.fold.decoded import batch_of_rows
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import Merged
from streampca.fold.past_scores import PastScoresBuilder, number_of_components
from streampca.pca.arrays import Array
from streampca.pca.axes import model_of
from streampca.pca.model import Model
from streampca.pca.state import State


class OnlineLearner:
    """The fold of a stream, with the past scores."""

    def __init__(self, config: FoldConfig, share: float | None = None) -> None:
        """`share` is that of the variance which the model's components shall explain; None: all that are learned."""
        self.config, self.share = config, share
        self.fold = Fold.empty(config.learning)
        self.past_scores = PastScoresBuilder(config.learning.components if share is None else share)
        self._model: Model | None = None

    @property
    def seen(self) -> int:
        return self.fold.stats.learned

    def add(self, V: Array) -> None:
        past_scores = copy(self.past_scores)
        self.fold, _ = self.fold.take(batch_of_rows(V, self.seen + len(V)), self.config, past_scores.before_block)
        self.past_scores, self._model = past_scores, None

    @property
    def state(self) -> State:
        """The state after all messages, including the pending ones."""
        return Merged.alone(self.fold, self.config).state

    @property
    def model(self) -> Model:
        if self._model is None:
            state = self.state
            self._model = model_of(state, number_of_components(state, self.past_scores.components))
        return self._model
