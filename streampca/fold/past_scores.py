"""Scores of messages by models that had not learned them, with which p-values compare."""

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

    components: int | float  # number, or the share of the variance that they explain; of a stream
    entered: PastScores = field(default_factory=PastScores.empty)
    _new: tuple[Scores, ...] = ()  # not entered yet

    def score(self, model: Model, V: Array) -> None:
        """Score messages (n, d) that the model has not learned."""
        self._new += (model.project(V).relative_scores,)

    def p_values(self) -> F64 | None:
        """Compare the new scores (n,) with the older ones; None without older ones."""
        return self.entered.p_values(_joined(self._new)).score if self.entered.weight else None

    def enter(self, messages: int, weight: float) -> None:
        """Enter the new scores; older ones keep e^(−n/w) of their weight, after n messages and with a model's weight w.

        So a half-life forgets scores; without one, scores by models that knew little count little.
        """
        kept = math.exp(-messages / max(weight, 1.0))
        self.entered, self._new = self.entered.with_scores(_joined(self._new), kept), ()

    def before_block(self, state: State, V: Array) -> None:
        """Score and enter a block (n, d) of a stream before its state learns it."""
        if state.count:
            self.score(model_of(state, number_of_components(state, self.components)), V)
            self.enter(len(V), state.weight)


def number_of_components(state: State, components: int | float) -> int:
    """The number, or the smallest one that explains more than this share of a state's variance."""
    if isinstance(components, int):
        return components
    reached = np.cumsum(state.variance) > components * state.total_variance
    return int(reached.argmax()) + 1 if reached.any() else max(state.rank, 1)


def _joined(parts: Sequence[Scores]) -> Scores:
    none = Scores(*(np.zeros(0) for _ in range(3)))
    return Scores(*map(np.concatenate, zip(none, *parts, strict=True)))
