"""Measures of how unusual a vector is: Hotelling's T², the squared prediction error, a score of both, and p-values.

With y = v − m, principal axes U, their variances λ and the mean variance σ² of the other d − k directions:

    T² = Σ (Uᵀy)ᵢ² / λᵢ        SPE = ‖y‖² − ‖Uᵀy‖²        score = T² + SPE/σ²

The score is −2 log-likelihood of probabilistic PCA up to a constant (Tipping & Bishop 1999). How large scores are
depends on the stream, so p is the share of messages that are as unusual. docs/mathematics.md, section 10.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array, rows_with_missing
from streampca.pca.model import Model

WINDOW = 20_000  # scores: the effective number of past ones

_PER_OCTAVE = 32  # the number at one end of a bin is 2 % above that at the other
_LOWEST, _OCTAVES = -32, 96
BINS = _PER_OCTAVE * _OCTAVES
_EDGES = 2.0 ** (np.arange(_PER_OCTAVE) / _PER_OCTAVE)


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
    """Contributions of dimensions of n vectors, (n, ·)."""

    t2: F64  # those of all sum to T²; negative where a dimension makes the vector more ordinary
    spe: F64  # with the sign of the residual; the absolute values of all sum to SPE


def project(model: Model, Y: Array) -> Projection:
    """Project vectors (n, d). MissingShares are filled with their conditional means, and add to the residuals."""
    with np.errstate(all="ignore"):
        coordinates, residual = model.project(Y)
        if not np.isnan(residual).any():
            return Projection(Y, coordinates, residual, 0.0)
        vectors, t2, spe = complete(model, Y)
        coordinates, residual = model.project(vectors)
    return Projection(vectors, coordinates, residual + spe, t2)


def score(model: Model, Y: Array) -> Scores:
    """T², SPE and score of vectors (n, d), expected ones if they have gaps. Infinite beyond the range of float64."""
    _, coordinates, residual, gaps_t2 = project(model, Y)
    return score_projected(model, coordinates, residual, gaps_t2)


def score_projected(model: Model, coordinates: Array, spe: Array, gaps_t2: F64 | float = 0.0) -> Scores:
    """Scores by principal coordinates (n, k), squared residuals (n,), and what gaps add to T² (n,)."""
    with np.errstate(over="ignore"):
        t2: F64 = (coordinates.astype(np.float64) ** 2 / _variances(model)).sum(axis=1) + gaps_t2
        return Scores(t2, spe.astype(np.float64), t2 + spe / model.noise_variance)


class Completed(NamedTuple):
    """Vectors without gaps, and what the uncertainty of the filled entries adds to their statistics."""

    vectors: Array  # (n, d)
    t2: F64  # (n,); 0 without gaps
    spe: F64  # (n,)


def complete(model: Model, Y: Array) -> Completed:
    """Fill the gaps of vectors (n, d), each by itself; those without gaps stay as they are.

    By probabilistic PCA, with Φ = U(Λ − σ²)^½, observed entries o, missing ones m, and Ψ = (Φ_oᵀΦ_o + σ²I)⁻¹:

        E[y_m | y_o] = Φ_m Ψ Φ_oᵀy_o        Cov[y_m | y_o] = σ²(I + Φ_m Ψ Φ_mᵀ)
    """
    t2, spe = np.zeros(len(Y)), np.zeros(len(Y))
    if not rows_with_missing(Y).any():
        return Completed(Y, t2, spe)
    gaps, mean, sigma2 = np.isnan(Y), model.mean, model.noise_variance
    variance = model.explained_variance.astype(np.float64)
    filled, signal = np.array(Y, np.float64), variance > sigma2
    U, variance = model.components.T[:, signal].astype(np.float64), variance[signal]
    Phi = U * np.sqrt(variance - sigma2)
    for i in np.flatnonzero(gaps.any(axis=1)):
        missing, observed = gaps[i], ~gaps[i]
        Psi = np.linalg.inv(Phi[observed].T @ Phi[observed] + sigma2 * np.eye(len(variance)))
        z = Psi @ (Phi[observed].T @ (filled[i, observed] - mean[observed]))
        filled[i, missing] = mean[missing] + Phi[missing] @ z
        U_Phi = U[missing].T @ Phi[missing]
        spread = sigma2 * (np.square(U[missing]).sum(axis=0) + np.vecdot(U_Phi @ Psi, U_Phi))  # of Uᵀy, along each axis
        t2[i] = (spread / variance).sum()
        of_all = sigma2 * (missing.sum() + np.vdot(Phi[missing].T @ Phi[missing], Psi))
        spe[i] = max(of_all - spread.sum(), 0.0)
    return Completed(filled.astype(Y.dtype, copy=False), t2, spe)


def largest_contributions(model: Model, Y: Array, limit: int) -> tuple[NDArray[np.intp], Contributions]:
    """The `limit` largest contributions of each vector, by falling absolute value, (n, limit), and their dimensions.

    The dimensions (2, n, limit) are those of T² and those of SPE. Takes several times the vectors' memory.
    """
    centred = Y - model.mean
    coordinates = centred @ model.components.T
    residual = centred - coordinates @ model.components
    every = centred * (coordinates / _variances(model) @ model.components), np.copysign(residual**2, residual)
    dimensions = [np.argsort(-np.abs(values), axis=1, kind="stable")[:, :limit] for values in every]
    largest = [
        np.take_along_axis(values, of_values, axis=1) for values, of_values in zip(every, dimensions, strict=True)
    ]
    return np.stack(dimensions), Contributions(*largest)


def log_likelihood(model: Model, Y: Array) -> F64:
    """The log-density of vectors (n, d) by probabilistic PCA, (n,): −(score + d log 2π + log det Σ)/2."""
    others = model.dimensions - model.n_components
    log_det = float(np.log(_variances(model)).sum()) + others * np.log(model.noise_variance)
    return np.asarray(-(score(model, Y).score + model.dimensions * np.log(2 * np.pi) + log_det) / 2)


def _variances(model: Model) -> F64:
    """λ (k,); where no variance was seen, that of rounding, so that such a vector is very unusual."""
    return np.asarray(np.maximum(model.explained_variance.astype(np.float64), model.rounding))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Histograms of past scores: the weight of each bin, (3, BINS), rows as in `Scores`.

    A bin is 1/32 octave. SPE is counted as a multiple of σ². Several calibrations are merged by adding their weights.
    """

    weights: F64

    @classmethod
    def empty(cls) -> "Calibration":
        return cls(np.zeros((3, BINS)))

    @classmethod
    def from_table(cls, table: Array) -> "Calibration":
        """From the rows of `table`. Raises `ValueError` if they are not such rows."""
        weights = np.zeros((3, BINS))
        if table.dtype != np.float64 or table.ndim != 2 or table.shape[1] != 3 or not np.isfinite(table).all():
            raise ValueError("not rows of a histogram, a bin and a weight")
        which, weight = table[:, :2], table[:, 2]
        inside = (which == np.floor(which)) & (which >= 0) & (which < weights.shape)
        if not (inside.all() and (weight > 0).all() and len(np.unique(which, axis=0)) == len(which)):
            raise ValueError("a histogram, bin or weight is out of range")
        which = which.astype(np.intp)
        weights[which[:, 0], which[:, 1]] = weight
        return cls(weights)

    def table(self) -> F64:
        """The bins that are not empty, (m, 3): the index of the statistic, the bin, its weight."""
        which = np.nonzero(self.weights)
        return np.column_stack([*which, self.weights[which]])

    @property
    def weight(self) -> float:
        """The effective number of scores."""
        return float(self.weights[0].sum())

    def with_scores(self, scores: Scores, sigma2: float, kept: float = 1.0) -> "Calibration":
        """With n more scores by a model with this σ²; older ones keep `kept` of their weight, less n/WINDOW."""
        older = self.weights * (kept * (1 - 1 / WINDOW) ** len(scores.score))
        new = [np.bincount(_bins_of(values)[0], minlength=BINS) for values in in_units(scores, sigma2)]
        return Calibration(older + new)

    def p_values(self, scores: Scores, sigma2: float) -> Scores:
        """p of each of n scores by a model with this σ²: near 0 if the vector is unusual, 1 without past scores."""
        p = []
        for weights, above, values in zip(self.weights, self._above, in_units(scores, sigma2), strict=True):
            bins, part = _bins_of(values)  # of the bin that holds the score, the part above it counts
            p.append((1 + above[bins] + part * weights[bins]) / (1 + above[0] + weights[0]))
        return Scores(*p)

    @cached_property
    def _above(self) -> F64:
        """The weight of the bins above each one, (3, BINS)."""
        return np.cumsum(self.weights[:, ::-1], axis=1)[:, ::-1] - self.weights


def in_units(scores: Scores, sigma2: float) -> Scores:
    """The statistics, SPE as a multiple of this σ²."""
    with np.errstate(over="ignore"):
        return scores._replace(spe=scores.spe / sigma2)


def _bins_of(values: F64) -> tuple[NDArray[np.intp], F64]:
    """The bin of each value, and the part of it that is above the value; the first and last hold all beyond them."""
    mantissa, exponent = np.frexp(np.clip(values, 2.0**_LOWEST, 2.0 ** (_LOWEST + _OCTAVES)))
    within = np.searchsorted(_EDGES, 2 * mantissa, side="right") - 1
    bins: NDArray[np.intp] = np.minimum((exponent - 1 - _LOWEST) * _PER_OCTAVE + within, BINS - 1).astype(np.intp)
    ends = np.append(_EDGES, 2.0)
    return bins, (ends[within + 1] - 2 * mantissa) / (ends[within + 1] - ends[within])
