"""Collects past scores: each message is scored by a model that has not learned it yet. p-values compare with them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.axes import model_of
from streampca.pca.model import Model
from streampca.pca.past_scores import PastScores
from streampca.pca.projection import Scores
from streampca.pca.state import State


@dataclass
class PastScoresBuilder:
    """Scores messages, and enters the scores into histograms."""

    components: int | float  # of the models that score a stream: their number, or the share of the variance
    entered: PastScores = field(default_factory=PastScores.empty)
    _new: tuple[Scores, ...] = ()  # scores that are not entered yet

    def score(self, model: Model, V: Array) -> None:
        """Score messages (n, d) that the model has not learned."""
        self._new += (model.project(V).relative_scores,)

    def p_values(self) -> F64 | None:
        """Return the p-values (n,) of the new scores among the entered ones; None if no score was entered."""
        if not self.entered.weight:
            return None
        return self.entered.p_values(_concatenate(self._new)).score

    def enter(self, messages: int, weight: float) -> None:
        """Enter the new scores. Older scores keep e^(−n/w) of their weight, after n messages, for a model of weight w.

        With a half-life, old scores are forgotten as fast as old messages. Without one, scores by early models count
        little, since these models had learned little.
        """
        kept = math.exp(-messages / max(weight, 1.0))
        self.entered = self.entered.with_scores(_concatenate(self._new), kept)
        self._new = ()

    def before_block(self, state: State, V: Array) -> None:
        """Score and enter a block V (n, d) of a stream before the state learns it."""
        if not state.count:
            return  # nothing was learned, so there is no model to score with
        model = model_of(state, number_of_components(state, self.components))
        self.score(model, V)
        self.enter(len(V), state.weight)


def number_of_components(state: State, components: int | float) -> int:
    """Return `components` if it is a number of components.

    If it is a share, return the smallest number of components that explain more than this share of the variance.
    """
    if isinstance(components, int):
        return components
    is_enough = np.cumsum(state.variance) > components * state.total_variance
    if not is_enough.any():
        return max(state.rank, 1)
    return int(is_enough.argmax()) + 1  # argmax finds the first that is true


def _concatenate(parts: Sequence[Scores]) -> Scores:
    """Concatenate scores field by field; without parts, each field is empty."""
    empty = Scores(*(np.zeros(0) for _ in range(3)))
    return Scores(*map(np.concatenate, zip(empty, *parts, strict=True)))
