"""Scores of messages by a model that had not learned them, for the p-values of the next version."""

import math
from dataclasses import replace

import numpy as np

from streampca.fold.checkpoint import Checkpoint
from streampca.fold.model_file import PublishedModel
from streampca.pca import scoring
from streampca.pca.arrays import F64, Array
from streampca.pca.model import Model
from streampca.pca.scoring import Calibration, Scores


class PastScores:
    """Scores messages by the newest merged model that has not learned them.

    That is the previous version; for the first version, the model of the folds without their pending messages.
    """

    def __init__(self, model: Model | None, previous: PublishedModel | None) -> None:
        """Without a model nothing is scored."""
        self._model, self._previous = model, previous
        self._scores = [Scores(*(np.zeros(0) for _ in range(3)))]  # SPE as a multiple of σ²

    def add(self, checkpoint: Checkpoint) -> None:
        """Score the pending messages of a partition that the model has not learned."""
        fold, model = checkpoint.fold, self._model
        learned = self._previous.positions.get(checkpoint.partition, 0) if self._previous else 0
        new = min(fold.position - max(learned, 0), len(fold.pending))
        if model is None:
            return
        arrived: Array = fold.pending[len(fold.pending) - new :]
        if len(arrived) and arrived.shape[1] == model.dimensions:
            scores = scoring.score(model, arrived.astype(np.float64))
            with np.errstate(over="ignore"):  # infinite, as the score is
                self._scores.append(scores._replace(spe=scores.spe / model.noise_variance))

    def calibrated(self, published: PublishedModel) -> tuple[PublishedModel, F64 | None]:
        """The next version, with these scores and those before them; and the p-values of these by those before them.

        The older scores keep e^(−n/w) of their weight, with n new messages and w the model's weight: with a half-life
        they are forgotten as messages are, and without one those of versions that knew little count little.
        """
        old = (self._previous and self._previous.calibration) or Calibration.empty()
        scores = Scores(*map(np.concatenate, zip(*self._scores, strict=True)))
        new = published.version - (self._previous.version if self._previous else 0)
        calibration = old.with_scores(scores, 1.0, math.exp(-new / max(published.model.weight, 1.0)))
        p = old.p_values(scores, 1.0).score if old.weight else None
        return replace(published, calibration=calibration if calibration.weight else None), p
