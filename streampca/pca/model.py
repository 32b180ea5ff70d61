"""The model that is served, and the vectors that it has projected: frozen values."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streampca.pca import projection, spiked_covariance
from streampca.pca.arrays import F64, Array
from streampca.pca.past_scores import PastScores
from streampca.pca.projection import Contributions, Scores, compute_scores
from streampca.pca.projector import Projector

Basis = Literal["principal", "whitened"]

_ROWS = 64  # vectors whose contributions are computed at a time, which takes several times the memory of the vectors


@dataclass(frozen=True, eq=False)
class Model:
    """The k leading principal components of a stream.

    Rows of `components` are orthonormal, by falling variance. If the stream has fewer than k directions, the remaining
    components have arbitrary axes, explained variance 0 and whitened coordinate 0.

    Components, variances, coordinates, residuals and scores are those of y = D(v − m). If the stream is standardised, y
    is in standard deviations; otherwise D is the identity. Vectors and the mean are in the data's units.

    If no message has shown a dimension, the model ignores it: neither its value in a vector nor its absence changes
    coordinates, residuals, scores or likelihoods.
    """

    components: Array  # (k, d)
    explained_variance: Array  # (k,), in the units of y squared
    mean: Array  # (d,)
    total_variance: float  # of all d dimensions of y
    weight: float  # effective number of messages: the count, less what was forgotten
    scale: F64 | None = None  # (d,): the diagonal of D; None: the stream is not standardised
    seen: NDArray[np.bool_] | None = None  # (d,): the dimensions that some message has shown; None: all

    @property
    def n_components(self) -> int:
        """The number of components, k."""
        return int(self.components.shape[0])

    @property
    def dimensions(self) -> int:
        """The number of dimensions, d."""
        return int(self.components.shape[1])

    @property
    def D(self) -> F64:  # noqa: N802
        """The diagonal of D, (d,); ones unless the stream is standardised."""
        return np.ones(self.dimensions) if self.scale is None else self.scale

    @cached_property
    def seen_dimensions(self) -> int:
        """The number of dimensions that some message has shown."""
        return self.dimensions if self.seen is None else int(self.seen.sum())

    @cached_property
    def explained_variance_ratio(self) -> Array:
        """Share of the total variance along each component, (k,); zeros for a stream without variance."""
        divisor = self.total_variance if self.total_variance > 0 else np.inf
        return np.asarray(self.explained_variance / divisor)

    @cached_property
    def noise_variance(self) -> float:
        """The noise variance σ²: the mean variance in directions beyond the components, at least that of rounding."""
        return spiked_covariance.compute_noise_variance(
            self.explained_variance, self.seen_dimensions, self.total_variance, self.components.dtype
        )

    @cached_property
    def floored_variance(self) -> F64:
        """The explained variances λ (k,), but at least the variance of rounding, so that scores never divide by 0."""
        rounding = spiked_covariance.compute_rounding_variance(self.total_variance, self.components.dtype)
        return np.asarray(np.maximum(self.explained_variance.astype(np.float64), rounding))

    @cached_property
    def spikes(self) -> spiked_covariance.Spikes:
        """The estimated covariance of the stream: noise in all directions, and more variance along some axes."""
        d = self.seen_dimensions
        variance = self.floored_variance[:d]  # only d axes can have variance; further axes are arbitrary
        return spiked_covariance.estimate_spikes(variance, d, self.total_variance, self.weight, self.components.dtype)

    @cached_property
    def expected_scores(self) -> F64:
        """The expected T², SPE and score T² + SPE/σ² of a message that is not learned yet, (3,).

        Learned axes fit the learned messages, so new messages have less variance along the axes, and more outside.
        """
        d = self.seen_dimensions
        variance = self.floored_variance[:d]  # only d axes can have variance; further axes are arbitrary
        t2 = spiked_covariance.expect_t2_of_new_messages(variance, self.spikes, d, self.weight)
        directions_outside = max(d - len(variance), 1)  # at least 1, because `relative_scores` divides by SPE
        variance_in_direction = self.spikes.noise_of_new_messages  # the mean of all directions outside
        spe = directions_outside * variance_in_direction
        # The score of any message divides its SPE by the σ² of the learned messages, `noise_variance`.
        return np.array([t2, spe, t2 + spe / self.noise_variance])

    @cached_property
    def _projector(self) -> Projector:
        """Projects on the components of this model."""
        return Projector(components=self.components, mean=self.mean, scale=self.scale)

    @np.errstate(all="ignore")  # huge numbers may give infinity or NaN
    def project(self, vectors: Array, past_scores: PastScores | None = None) -> "Projected":
        """Project vectors (n, d): compute their coordinates and their residuals, which are squared distances (SPE).

        Missing entries, NaN, are filled with expected values, whose uncertainty is added to SPE and T². Vectors of
        float32 are projected in single precision.
        """
        filled = vectors
        if self.seen is not None:  # an entry that no learned message had is set to the mean, so that it has no effect
            filled = np.where(self.seen, vectors, self.mean).astype(vectors.dtype)
        coordinates, residual = self._projector.project(filled)
        added_t2 = np.zeros(len(filled))  # what the uncertainty of filled entries adds to T²
        has_gaps = np.isnan(residual).any()  # a missing entry makes the residual of its vector NaN
        if has_gaps:
            Y = self.centre(filled.astype(np.float64))
            variance = self.explained_variance.astype(np.float64)
            added_t2, added_spe = projection.fill_in_place(Y, self.components, variance, self.noise_variance)
            filled = np.where(np.isnan(filled), self.uncentre(Y), filled).astype(vectors.dtype)
            coordinates, residual = self._projector.project(filled)  # again, now without gaps
            residual = residual + added_spe
        return Projected(
            model=self,
            vectors=filled,
            coordinates=coordinates,
            residual=residual,
            missing_t2=added_t2,
            past_scores=past_scores,
        )

    def centre(self, vectors: Array) -> Array:
        """Return y = D(v − m) of vectors (n, d)."""
        return self._projector.centre(vectors)

    def uncentre(self, Y: Array) -> Array:
        """Return the vectors v = m + D⁻¹y (n, d)."""
        return np.asarray((Y if self.scale is None else Y / self.scale) + self.mean)

    def whiten(self, coordinates: Array) -> Array:
        """Divide principal coordinates (n, k) by their standard deviations. This gives the paper's x = C†y."""
        sigma = np.sqrt(self.explained_variance)
        return np.asarray(coordinates / np.where(sigma > 0, sigma, np.inf))  # 0 along an axis without variance

    def reconstruct(self, coordinates: Array, basis: Basis = "principal") -> Array:
        """Return the vectors (n, d) that have these coordinates (n, k), and no part outside of the components."""
        if basis == "whitened":
            coordinates = coordinates * np.sqrt(self.explained_variance)
        return self.uncentre(coordinates @ self.components)


@dataclass(frozen=True, eq=False)
class Projected:
    """Vectors that a model has projected, with missing entries filled. Scores are computed when they are read."""

    model: Model
    vectors: Array  # (n, d): the mean in dimensions that were never seen
    coordinates: Array  # (n, k), in the principal basis: in the units of the explained variances
    residual: Array  # (n,): the squared distance from the span of the components, SPE
    missing_t2: F64  # (n,): what missing entries add to T²; 0 for complete vectors
    past_scores: PastScores | None = None  # the scores with which p-values compare

    def rows(self, index: slice | NDArray[Any]) -> "Projected":
        """Select vectors by an index along the first axis."""
        return replace(
            self,
            vectors=self.vectors[index],
            coordinates=self.coordinates[index],
            residual=self.residual[index],
            missing_t2=self.missing_t2[index],
        )

    @np.errstate(all="ignore")
    def in_basis(self, basis: Basis, whitening_model: Model | None = None) -> Array:
        """Return the coordinates (n, k), divided by their standard deviations if the basis is "whitened".

        Another model with the same axes may give the standard deviations (`whitening_model`).
        """
        if basis != "whitened":
            return self.coordinates
        model = self.model if whitening_model is None else whitening_model
        return model.whiten(self.coordinates)

    @cached_property
    def scores(self) -> Scores:
        """T², SPE and score of each vector; infinity if float64 overflows.

        For a vector with missing entries, all three are the expected values of the complete vector.
        """
        return compute_scores(
            self.coordinates,
            self.residual,  # already with what missing entries add to SPE
            missing_t2=self.missing_t2,  # what missing entries add to T²; 0 for a complete vector
            variance=self.model.floored_variance,  # never 0
            sigma2=self.model.noise_variance,
        )

    @cached_property
    @np.errstate(over="ignore")
    def relative_scores(self) -> Scores:
        """The scores divided by their expected values, so that scores by several models can be compared."""
        t2, spe, score = self.model.expected_scores
        return Scores(t2=self.scores.t2 / t2, spe=self.scores.spe / spe, score=self.scores.score / score)

    @cached_property
    def p_values(self) -> Scores | None:
        """For each statistic the share of past scores that are at least as high; None without past scores."""
        return None if self.past_scores is None else self.past_scores.p_values(self.relative_scores)

    @property
    def p(self) -> F64 | None:
        """The p-values of the score, (n,); None without past scores."""
        return None if self.p_values is None else self.p_values.score

    @cached_property
    def log_likelihood(self) -> F64:
        """The log-density of each vector v by probabilistic PCA, (n,): −(score + d log 2π + log det cov(v))/2.

        The variances are those of y = D(v − m), with the mean m, and D = diag(`scale`) if the stream is standardised.
        """
        model = self.model
        d = model.seen_dimensions
        variance = model.floored_variance[:d]  # only d axes can have variance; further axes are arbitrary
        noise_directions = d - len(variance)
        # log det cov(y)
        log_det = float(np.log(variance).sum()) + noise_directions * np.log(model.noise_variance)
        if model.scale is not None:  # cov(v) is D⁻¹ cov(y) D⁻¹; the scale is 1 in dimensions that were never seen
            log_det -= 2 * float(np.log(model.scale).sum())
        return np.asarray(-(self.scores.score + d * np.log(2 * np.pi) + log_det) / 2)

    @np.errstate(all="ignore")  # huge numbers may give infinity or NaN
    def contributions(self, limit: int) -> tuple[NDArray[np.intp], Contributions]:
        """Find the `limit` dimensions that contribute most to T² of each vector, and to SPE.

        Returns the dimensions (2, n, limit), those for T² first, and their contributions, by falling absolute value.
        """
        components = self.model.components
        variance = self.model.floored_variance
        dimensions = []
        t2 = []
        spe = []
        for start in range(0, max(len(self.vectors), 1), _ROWS):  # at least one step, for `concatenate`
            Y = self.model.centre(self.vectors[start : start + _ROWS])
            largest_dimensions, contributions = projection.find_largest_contributions(Y, components, variance, limit)
            dimensions.append(largest_dimensions)
            t2.append(contributions.t2)
            spe.append(contributions.spe)
        return np.concatenate(dimensions, axis=1), Contributions(t2=np.concatenate(t2), spe=np.concatenate(spe))
