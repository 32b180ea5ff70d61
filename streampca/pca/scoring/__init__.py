"""Measures of how unusual vectors are by a model: T², SPE, a score, and p-values. docs/mathematics.md, section 10.

`scores` computes the statistics, and `calibration` the share of past scores that are as high.
"""

from streampca.pca.scoring.calibration import Calibration
from streampca.pca.scoring.scores import (
    STATISTICS,
    Contributions,
    Projection,
    Scores,
    complete,
    contributions,
    largest_contributions,
    log_likelihood,
    project,
    score,
    score_projected,
)

__all__ = [
    "STATISTICS",
    "Calibration",
    "Contributions",
    "Projection",
    "Scores",
    "complete",
    "contributions",
    "largest_contributions",
    "log_likelihood",
    "project",
    "score",
    "score_projected",
]
