"""How unusual a vector is: Hotelling's T², the squared prediction error, a score of both, and p-values.

With y = v − m, principal axes U, their variances λ and the mean variance σ² of the other d − k directions:

    T² = Σ (Uᵀy)ᵢ² / λᵢ        SPE = ‖y‖² − ‖Uᵀy‖²        score = T² + SPE/σ²

The score is −2 log-likelihood of probabilistic PCA up to a constant (Tipping & Bishop 1999). What is a large score
depends on the stream, so scores are compared with past ones: p(s) = (1 + weight of past scores ≥ s)/(1 + weight), the
share of messages that are as unusual. Formulas and sources: docs/mathematics.md, section 10.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from streampca.pca import histogram
from streampca.pca.arrays import F64, Array
from streampca.pca.gaps import conditional, rows_with_gaps
from streampca.pca.gaps.conditional import Completed
from streampca.pca.histogram import BINS, Indices, bins_of
from streampca.pca.model import Model

STATISTICS = ("t2", "spe", "score")
WINDOW = 20_000  # scores: the effective number of past ones


class AnomalyScores(NamedTuple):
    """The statistics of n vectors."""

    t2: F64  # (n,): without unit, k on average
    spe: F64  # (n,): the squared residual, in the data's units squared
    score: F64  # (n,): without unit, d on average


class Contributions(NamedTuple):
    """What each dimension of n vectors contributes, (n, d)."""

    t2: F64  # sums to T²; negative where a dimension makes the vector more ordinary
    spe: F64  # with the sign of the residual; the absolute values sum to SPE


def score(model: Model, Y: Array) -> AnomalyScores:
    """T², SPE and score of vectors (n, d). Infinite where they exceed the range of float64.

    Where entries are missing, NaN, they are those to be expected, given the others.
    """
    Y, t2, spe = complete(model, Y)
    coordinates, residual = model.project(Y)
    return score_projected(model, coordinates, residual + spe, t2)


def complete(model: Model, Y: Array) -> Completed:
    """Vectors (n, d) without gaps, which are NaN, and what their uncertainty adds to T² and SPE."""
    if not rows_with_gaps(Y).any():
        return Completed(Y, np.zeros(len(Y)), np.zeros(len(Y)))
    variance = model.explained_variance.astype(np.float64)
    return conditional.complete(Y, model.mean, model.components.T, variance, noise_variance(model))


def score_projected(model: Model, coordinates: Array, spe: Array, gaps_t2: F64 | float = 0.0) -> AnomalyScores:
    """As `score`, of vectors with these principal coordinates (n, k) and squared residuals (n,).

    `gaps_t2` (n,) is what gaps add to T².
    """
    with np.errstate(over="ignore"):
        t2: F64 = (coordinates.astype(np.float64) ** 2 / _variances(model)).sum(axis=1) + gaps_t2
        return AnomalyScores(t2, spe.astype(np.float64), t2 + spe / noise_variance(model))


def contributions(model: Model, Y: Array) -> Contributions:
    """What each dimension of vectors (n, d) contributes to T² and SPE; takes several times the vectors' memory."""
    centred, coordinates, residual = model.decompose(Y)
    of_t2 = centred * (coordinates / _variances(model) @ model.components)
    return Contributions(of_t2, np.copysign(residual**2, residual))


def largest_contributions(model: Model, Y: Array, most: int) -> tuple[Indices, Contributions]:
    """The `most` largest contributions of each vector, by falling absolute value, (n, most), and their dimensions.

    The dimensions (2, n, most) are those of T² and those of SPE.
    """
    found = []
    for each in contributions(model, Y):
        largest = np.argsort(-np.abs(each), axis=1, kind="stable")[:, :most]
        found.append((largest, np.take_along_axis(each, largest, axis=1)))
    return np.stack([which for which, _ in found]), Contributions(*(values for _, values in found))


def log_likelihood(model: Model, Y: Array) -> F64:
    """The log-density of vectors (n, d) by probabilistic PCA, (n,): −(score + d log 2π + log det Σ)/2."""
    others = model.dimensions - model.n_components
    log_det = float(np.log(_variances(model)).sum()) + others * np.log(noise_variance(model))
    density: F64 = -(score(model, Y).score + model.dimensions * np.log(2 * np.pi) + log_det) / 2
    return density


def noise_variance(model: Model) -> float:
    """σ², the mean variance of the d − k directions beyond the components; never less than rounding."""
    rest, others = model.total_variance - float(model.explained_variance.sum()), model.dimensions - model.n_components
    return max(rest / others if others else 0.0, _rounding(model))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Histograms of past scores: the weight of each bin, (3, BINS), rows as in `STATISTICS`.

    A bin is 1/32 octave. The squared prediction error is counted as a multiple of σ².
    """

    weights: F64

    @classmethod
    def empty(cls) -> "Calibration":
        """Without any score."""
        return cls(np.zeros((len(STATISTICS), BINS)))

    @classmethod
    def from_table(cls, table: Array) -> "Calibration":
        """From the rows of `table`. Raises `ValueError` if they are not such rows."""
        return cls(histogram.from_table(table, len(STATISTICS)))

    def table(self) -> F64:
        """The bins that are not empty, (m, 3): the index of the statistic, the bin, its weight."""
        return histogram.table(self.weights)

    @property
    def weight(self) -> float:
        """The effective number of scores."""
        return float(self.weights[0].sum())

    def with_scores(self, scores: AnomalyScores, sigma2: float, kept: float = 1.0) -> "Calibration":
        """With n more scores by a model with this σ².

        Older ones keep the share `kept` (0 to 1) of their weight, less about n/WINDOW of it: scores of models that knew
        less are forgotten.
        """
        return self.faded(kept, len(scores.score)).entered(scores, sigma2)

    def faded(self, kept: float, n: int) -> "Calibration":
        """With the share `kept` of the weight, and less by n/WINDOW for n new scores."""
        return Calibration(self.weights * (kept * (1 - 1 / WINDOW) ** n))

    def entered(self, scores: AnomalyScores, sigma2: float) -> "Calibration":
        """With n more scores by a model with this σ²; nothing is forgotten."""
        weights = self.weights.copy()
        for row, values in zip(weights, _scaled(scores, sigma2), strict=True):
            np.add.at(row, bins_of(values), 1.0)
        return Calibration(weights)

    def p_values(self, scores: AnomalyScores, sigma2: float) -> AnomalyScores:
        """p of each of n scores by a model with this σ²: near 0 if the vector is unusual, 1 without past scores."""
        rows = zip(self._at_least, _scaled(scores, sigma2), strict=True)
        return AnomalyScores(*(histogram.p_values(row, bins_of(values)) for row, values in rows))

    @cached_property
    def _at_least(self) -> F64:
        """The weight of each bin and those above it, (3, BINS)."""
        return histogram.at_least(self.weights)


def _scaled(scores: AnomalyScores, sigma2: float) -> AnomalyScores:
    with np.errstate(over="ignore"):
        return scores._replace(spe=scores.spe / sigma2)


def _variances(model: Model) -> F64:
    """λ (k,); where no variance was seen, that of rounding, so that such a vector is very unusual."""
    variances: F64 = np.maximum(model.explained_variance.astype(np.float64), _rounding(model))
    return variances


def _rounding(model: Model) -> float:
    return rounding(model.total_variance, model.components.dtype)


def rounding(total_variance: float, dtype: Any) -> float:
    """The variance that rounding may cause along one direction."""
    return float(max(np.finfo(dtype).eps * total_variance, np.finfo(np.float64).tiny))
