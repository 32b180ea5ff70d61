"""Scores of messages by a version that had not learned them, for the p-values of the next version."""

import math
from dataclasses import replace

import numpy as np

from streampca.pca import scoring
from streampca.pca.arrays import F64, Array
from streampca.pca.scoring import Calibration, Scores
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.model_file import PublishedModel


class PastScores:
    """Scores messages that are newer than a version by that version."""

    def __init__(self, previous: PublishedModel | None) -> None:
        self._previous, self._scores = previous, [Scores(*(np.zeros(0) for _ in range(3)))]

    def add(self, checkpoint: Checkpoint) -> None:
        """Score the pending messages of a partition that have arrived since the version."""
        if self._previous is None:
            return
        pending = checkpoint.fold.pending
        new = checkpoint.fold.position - max(self._previous.positions.get(checkpoint.partition, 0), 0)
        arrived: Array = pending[max(len(pending) - new, 0) :]
        if len(arrived) and arrived.shape[1] == self._previous.model.dimensions:
            self._scores.append(scoring.score(self._previous.model, arrived.astype(np.float64)))

    def calibrated(self, published: PublishedModel) -> tuple[PublishedModel, F64 | None]:
        """The next version, with these scores and those before them; and the p-values of these by those before them.

        The older scores keep e^(−n/w) of their weight, with n new messages and w the model's weight: with a half-life
        they are forgotten as messages are, and without one those of versions that knew little count little.
        """
        if self._previous is None:
            return published, None
        old, model = self._previous.calibration or Calibration.empty(), self._previous.model
        scores = Scores(*map(np.concatenate, zip(*self._scores, strict=True)))
        sigma2, new = model.noise_variance, published.version - self._previous.version
        calibration = old.with_scores(scores, sigma2, math.exp(-new / max(published.model.weight, 1.0)))
        p = old.p_values(scores, sigma2).score if old.weight else None
        return replace(published, calibration=calibration), p
