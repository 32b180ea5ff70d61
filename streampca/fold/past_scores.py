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


@dataclass
class PastScoresBuilder:
    """Scores messages, and then adds their scores to histograms."""

    # Of the models that score: how many components (int), or the share of the variance that these explain (float).
    components_or_share: int | float
    histograms: PastScores = field(default_factory=PastScores.empty)
    _new: tuple[Scores, ...] = ()  # scores that are not in the histograms yet

    def score(self, model: Model, V: Array) -> None:
        """Score messages (n, d) that the model has not learned."""
        self._new += (model.project(V).relative_scores,)

    def p_values(self) -> F64 | None:
        """Return the p-values (n,) of the new scores by the histograms; None if the histograms are empty."""
        if not self.histograms.weight:
            return None
        return self.histograms.p_values(self._join_new()).score  # the p-values of T² and SPE are not needed

    def add_new_scores(self, messages: int, model_weight: float) -> None:
        """Add the new scores to the histograms. Older scores keep e^(−n/w) of their weight.

        n is `messages`, the number of messages that were learned since scores were last added; some of them may have no
        score. w is the weight of the model. With a half-life of h messages, w is about h/ln 2, so older scores keep
        2^(−n/h): they are forgotten as fast as old messages. Without a half-life, w is the number of messages that the
        model has learned. So scores by early models, which have learned little, are soon forgotten.
        """
        kept = math.exp(-messages / max(model_weight, 1.0))
        self.histograms = self.histograms.with_scores(self._join_new(), kept)
        self._new = ()

    def _join_new(self) -> Scores:
        """Return all scores that are not in the histograms yet, (n,) each."""
        empty = np.zeros(0)  # so that there is something to join if there are no scores
        return Scores(
            t2=np.concatenate([empty, *(scores.t2 for scores in self._new)]),
            spe=np.concatenate([empty, *(scores.spe for scores in self._new)]),
            score=np.concatenate([empty, *(scores.score for scores in self._new)]),
        )

    def score_block(self, state: State, V: Array) -> None:
        """Score a block V (n, d) by the state before it, and add the scores. Called before the state learns V."""
        if not state.count:
            return  # nothing was learned, so there is no model to score with
        model = make_model(state, choose_number_of_components(state, self.components_or_share))
        self.score(model, V)  # keeps the scores, until they are added to the histograms
        self.add_new_scores(messages=len(V), model_weight=state.weight)


def choose_number_of_components(state: State, components_or_share: int | float) -> int:
    """Return how many components a model of the state has.

    An int is their number. A float is a share of the variance: the model has the smallest number of components that
    explain more than this share.
    """
    if isinstance(components_or_share, int):
        return components_or_share
    share = components_or_share
    explains_enough = np.cumsum(state.variance) > share * state.total_variance
    if not explains_enough.any():  # for example, a stream without variance
        return max(state.rank, 1)
    first_index = int(explains_enough.argmax())  # the first True
    return first_index + 1
