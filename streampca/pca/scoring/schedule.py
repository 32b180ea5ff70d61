"""The past scores of one stream: every block is scored before it is learned, by the axes that the state has then."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streampca.pca.arrays import Array
from streampca.pca.axes import model_of
from streampca.pca.scoring.calibration import Calibration
from streampca.pca.scoring.scores import score
from streampca.pca.state import State


@dataclass
class Calibrator:
    """Collects the past scores of a stream; `add` is called before each block."""

    components: int
    calibration: Calibration = field(default_factory=Calibration.empty)

    def add(self, state: State, V: Array) -> None:
        """Score messages (n, d) that the state has not learned.

        Older scores keep e^(−n/w) of their weight, with w the state's weight: so those by models that knew little are
        forgotten.
        """
        if state.count:
            model = model_of(state, self.components)
            kept = math.exp(-len(V) / state.weight)
            self.calibration = self.calibration.with_scores(score(model, V), model.noise_variance, kept)

    @classmethod
    def merged(cls, parts: Sequence["Calibrator"]) -> "Calibrator":
        """The past scores of several streams together."""
        weights = np.sum([part.calibration.weights for part in parts], axis=0)
        return cls(parts[0].components, Calibration(weights))
