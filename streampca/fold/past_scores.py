"""Collects past scores, with which p-values compare: each message is scored by a model that has not learned it yet."""

import math
from dataclasses import dataclass, field

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.axes import make_model
from streampca.pca.model import Model
from streampca.pca.past_scores import PastScores
from streampca.pca.projection import Scores
from streampca.pca.state import State

_NO_SCORES = Scores(t2=np.zeros(0), spe=np.zeros(0), score=np.zeros(0))


@dataclass
class PastScoresBuilder:
    """Scores messages, and then adds their scores to histograms."""

    # Of the models that score: how many components (int), or the share of the variance that these explain (float).
    components_or_share: int | float
    histograms: PastScores = field(default_factory=PastScores.empty)
    _collected_scores: Scores = _NO_SCORES  # new scores, which are not in the histograms yet

    def collect_scores(self, model: Model, V: Array) -> None:
        """Score messages (n, d) that the model has not learned, and collect the scores, not yet in the histograms."""
        # Scores are divided by their expected values, so that the scores of different models can be compared.
        scores = model.project(V).relative_scores
        self._collected_scores = Scores(
            t2=np.append(self._collected_scores.t2, scores.t2),
            spe=np.append(self._collected_scores.spe, scores.spe),
            score=np.append(self._collected_scores.score, scores.score),
        )

    def p_values(self) -> F64 | None:
        """Return the p-values (n,) of the collected scores by the histograms; None if the histograms are empty."""
        if not self.histograms.weight:
            return None
        return self.histograms.p_values(self._collected_scores).score

    def add_collected_to_histograms(self, messages: int, model_weight: float) -> None:
        """Add the collected scores to the histograms. Older scores keep e^(−n/w) of their weight.

        n is the number of messages since the last call, w the weight of the model: old scores are forgotten as fast as
        old messages.
        """
        kept_share = math.exp(-messages / max(model_weight, 1.0))
        self.histograms = self.histograms.with_scores(self._collected_scores, kept_share)
        self._collected_scores = _NO_SCORES

    def score_block(self, state: State, V: Array) -> None:
        """Score a block V (n, d) by the state that has not learned it yet, and add the scores to the histograms."""
        if not state.count:
            return  # there is no model to score with
        model = make_model(state, choose_number_of_components(state, self.components_or_share))
        self.collect_scores(model, V)
        self.add_collected_to_histograms(messages=len(V), model_weight=state.weight)


def choose_number_of_components(state: State, components_or_share: int | float) -> int:
    """Return how many components a model of the state has.

    A float is a share of the variance, which the components must explain.
    """
    if isinstance(components_or_share, int):
        return components_or_share
    share = components_or_share
    explains_enough = np.cumsum(state.variance) > share * state.total_variance
    if not explains_enough.any():  # such as a stream without variance
        return max(state.rank, 1)
    first_index = int(explains_enough.argmax())
    return first_index + 1
