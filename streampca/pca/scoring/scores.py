"""Measures of how unusual a vector is: Hotelling's T², the squared prediction error, and a score of both.

With y = v − m, principal axes U, their variances λ and the mean variance σ² of the other d − k directions:

    T² = Σ (Uᵀy)ᵢ² / λᵢ        SPE = ‖y‖² − ‖Uᵀy‖²        score = T² + SPE/σ²

The score is −2 log-likelihood of probabilistic PCA up to a constant (Tipping & Bishop 1999). Formulas and sources:
docs/mathematics.md, section 10.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.gaps import conditional
from streampca.pca.gaps.conditional import Completed
from streampca.pca.model import Model

STATISTICS = ("t2", "spe", "score")


class Scores(NamedTuple):
    """The statistics of n vectors."""

    t2: F64  # (n,): without unit, k on average
    spe: F64  # (n,): the squared residual, in the data's units squared
    score: F64  # (n,): without unit, d on average


class Projection(NamedTuple):
    """Vectors without gaps, and their projection."""

    vectors: Array  # (n, d)
    coordinates: Array  # (n, k), in the principal basis
    residual: Array  # (n,): the squared distance from the span of the components, SPE
    gaps_t2: F64 | float  # (n,): what gaps add to T²; 0 without any


class Contributions(NamedTuple):
    """Contributions of each dimension of n vectors, (n, d)."""

    t2: F64  # sums to T²; negative where a dimension makes the vector more ordinary
    spe: F64  # with the sign of the residual; the absolute values sum to SPE


def project(model: Model, Y: Array) -> Projection:
    """Project vectors (n, d). Gaps are filled with their conditional means, and add to the residuals."""
    with np.errstate(all="ignore"):
        coordinates, residual = model.project(Y)
        if not np.isnan(residual).any():
            return Projection(Y, coordinates, residual, 0.0)
        vectors, t2, spe = complete(model, Y)
        coordinates, residual = model.project(vectors)
    return Projection(vectors, coordinates, residual + spe, t2)


def score(model: Model, Y: Array) -> Scores:
    """T², SPE and score of vectors (n, d). Infinite where they exceed the range of float64.

    Those of a vector with gaps are the expected ones, given its other entries.
    """
    _, coordinates, residual, gaps_t2 = project(model, Y)
    return score_projected(model, coordinates, residual, gaps_t2)


def score_projected(model: Model, coordinates: Array, spe: Array, gaps_t2: F64 | float = 0.0) -> Scores:
    """As `score`, of vectors with these principal coordinates (n, k) and squared residuals (n,).

    `gaps_t2` (n,) is what gaps add to T².
    """
    with np.errstate(over="ignore"):
        t2: F64 = (coordinates.astype(np.float64) ** 2 / _variances(model)).sum(axis=1) + gaps_t2
        return Scores(t2, spe.astype(np.float64), t2 + spe / model.noise_variance)


def complete(model: Model, Y: Array) -> Completed:
    """Vectors (n, d) without gaps, and what their uncertainty adds to T² and SPE."""
    variance = model.explained_variance.astype(np.float64)
    return conditional.complete(Y, model.mean, model.components.T, variance, model.noise_variance)


def contributions(model: Model, Y: Array) -> Contributions:
    """Split T² and SPE of vectors (n, d) by dimension; takes several times the vectors' memory."""
    centred = Y - model.mean
    coordinates = centred @ model.components.T
    residual = centred - coordinates @ model.components
    of_t2 = centred * (coordinates / _variances(model) @ model.components)
    return Contributions(of_t2, np.copysign(residual**2, residual))


def largest_contributions(model: Model, Y: Array, limit: int) -> tuple[NDArray[np.intp], Contributions]:
    """The `limit` largest contributions of each vector, by falling absolute value, (n, limit), and their dimensions.

    The dimensions (2, n, limit) are those of T² and those of SPE.
    """
    every = contributions(model, Y)
    dimensions = [np.argsort(-np.abs(values), axis=1, kind="stable")[:, :limit] for values in every]
    largest = [
        np.take_along_axis(values, of_values, axis=1) for values, of_values in zip(every, dimensions, strict=True)
    ]
    return np.stack(dimensions), Contributions(*largest)


def log_likelihood(model: Model, Y: Array) -> F64:
    """The log-density of vectors (n, d) by probabilistic PCA, (n,): −(score + d log 2π + log det Σ)/2."""
    others = model.dimensions - model.n_components
    log_det = float(np.log(_variances(model)).sum()) + others * np.log(model.noise_variance)
    density: F64 = -(score(model, Y).score + model.dimensions * np.log(2 * np.pi) + log_det) / 2
    return density


def _variances(model: Model) -> F64:
    """λ (k,); where no variance was seen, that of rounding, so that such a vector is very unusual."""
    variances: F64 = np.maximum(model.explained_variance.astype(np.float64), model.rounding)
    return variances
