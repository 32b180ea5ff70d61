"""The model that is served, and the vectors that it has projected: frozen values."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streampca.pca import projection
from streampca.pca.arrays import F64, Array
from streampca.pca.past_scores import PastScores
from streampca.pca.projection import GEMM_ROWS, Contributions, Scores, score

Basis = Literal["principal", "whitened"]

_PART = 2**17  # numbers that are projected at once: more would not fit the processor's cache
_SMALLEST_NORM = 1e-28  # smallest ‖y‖² that single precision computes: squares of smaller entries would underflow
_ROWS = 64  # vectors whose contributions are computed at once: each takes several times its own memory


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
        total_variance = self.total_variance if self.total_variance > 0 else np.inf
        return np.asarray(self.explained_variance / total_variance)

    @cached_property
    def noise_variance(self) -> float:
        """σ², the mean variance of the directions beyond the components; never less than rounding."""
        variance, dtype = self.explained_variance, self.components.dtype
        return projection.noise_variance(variance, self.seen_dimensions, self.total_variance, dtype)

    @cached_property
    def floored_variance(self) -> F64:
        """λ (k,), but at least the variance of rounding, so that scores never divide by 0."""
        rounding = projection.rounding_variance(self.total_variance, self.components.dtype)
        return np.asarray(np.maximum(self.explained_variance.astype(np.float64), rounding))

    @cached_property
    def spikes(self) -> projection.Spikes:
        """The covariance of the stream, as estimated from the variances along the axes.

        If k is larger than the number of dimensions that were seen, only so many axes count: the rest are arbitrary.
        """
        d = self.seen_dimensions
        variance = self.floored_variance[:d]
        return projection.spikes(variance, d, self.total_variance, self.weight, self.components.dtype)

    @cached_property
    def expected_scores(self) -> F64:
        """The means of T², SPE and score over messages that are not learned yet, (3,)."""
        d = self.seen_dimensions
        variance = self.floored_variance[:d]
        variance_of_new = self.spikes.of_new
        sigma2 = projection.noise_variance(variance_of_new, d, self.total_variance, self.components.dtype)
        t2 = projection.t2_of_new(variance, variance_of_new, sigma2, d, self.weight)
        spe = max(d - len(variance), 1) * sigma2  # with k = d, SPE is rounding, and would be divided by 0
        return np.array([t2, spe, t2 + spe / self.noise_variance])

    @cached_property
    def _in_single_precision(self) -> tuple[Array, Array, Array | None, Array, Array]:
        """The mean and what rounding has cut off it, (d,); D (d,); the axes (d, k) and components (k, d)."""
        mean = self.mean.astype(np.float32)
        rest = (self.mean - mean).astype(np.float32)
        scale = None if self.scale is None else self.scale.astype(np.float32)
        return mean, rest, scale, self._axes.astype(np.float32), self.components.astype(np.float32)

    @cached_property
    def _axes(self) -> Array:
        """The components as columns, (d, k)."""
        return np.ascontiguousarray(self.components.T)

    @np.errstate(all="ignore")
    def project(self, vectors: Array, past_scores: PastScores | None = None) -> "Projected":
        """Project vectors (n, d).

        Missing entries, NaN, are filled with their conditional means, and their uncertainty is added to residuals and
        T². Vectors of float32 are projected in single precision; coordinates and residuals are float64.
        """
        if self.seen is not None:  # dimensions that were never seen get the mean, which adds nothing
            vectors = np.where(self.seen, vectors, self.mean).astype(vectors.dtype)
        coordinates, residual = self._project(vectors)
        t2 = np.zeros(len(vectors))
        if np.isnan(residual).any():  # a missing entry makes the residual NaN
            Y = self.centre(vectors.astype(np.float64))
            variance = self.explained_variance.astype(np.float64)
            t2, spe = projection.fill(Y, self.components, variance, self.noise_variance)
            vectors = np.where(np.isnan(vectors), self.uncentre(Y), vectors).astype(vectors.dtype)
            coordinates, residual = self._project(vectors)
            residual = residual + spe
        return Projected(
            model=self,
            vectors=vectors,
            coordinates=coordinates,
            residual=residual,
            missing_t2=t2,
            past_scores=past_scores,
        )

    def _project(self, vectors: Array) -> tuple[Array, Array]:
        """Compute coordinates (n, k) of complete vectors, and squared distances (n,) from the components."""
        rows = max(_PART // (GEMM_ROWS * self.dimensions), 1) * GEMM_ROWS
        split = self._split_single if vectors.dtype == np.float32 else self._split
        parts = [split(vectors[i : i + rows]) for i in range(0, max(len(vectors), 1), rows)]
        coordinates, residual = zip(*parts, strict=True)
        return np.concatenate(coordinates), np.concatenate(residual)

    def centre(self, vectors: Array) -> Array:
        """Return y = D(v − m) of vectors (n, d)."""
        Y = np.subtract(vectors, self.mean, order="C")  # in another memory layout, sums would round differently
        return Y if self.scale is None else np.multiply(Y, self.scale, out=Y)

    def uncentre(self, Y: Array) -> Array:
        """Return the vectors v = m + D⁻¹y (n, d)."""
        return np.asarray((Y if self.scale is None else Y / self.scale) + self.mean)

    def _split(self, vectors: Array) -> tuple[Array, Array]:
        """Compute coordinates (n, k) and residuals (n,) in double precision."""
        coordinates, residual, _ = projection.project_rows(self.centre(vectors), self._axes, self.components)
        return coordinates, residual

    def _split_single(self, vectors: Array) -> tuple[Array, Array]:
        """Compute coordinates and residuals in single precision, with errors as if the vectors had been rounded to it.

        Rows whose squares would overflow or underflow are computed in double precision.
        """
        mean, rest, scale, axes, components = self._in_single_precision
        Y = np.subtract(vectors, mean, order="C")
        Y -= rest
        if scale is not None:
            Y *= scale
        coordinates, residual, norm = projection.project_rows(Y, axes, components)
        is_in_range = (norm > _SMALLEST_NORM) & np.isfinite(norm)
        coordinates = coordinates.astype(np.float64)
        residual = residual.astype(np.float64)
        if not is_in_range.all():
            coordinates_in_double, residual_in_double = self._split(vectors.astype(np.float64))
            coordinates = np.where(is_in_range[:, None], coordinates, coordinates_in_double)
            residual = np.where(is_in_range, residual, residual_in_double)
        return coordinates, residual

    def whiten(self, coordinates: Array) -> Array:
        """Convert principal coordinates (n, k) to whitened ones, the paper's x = C†y, which have variance one."""
        sigma = np.sqrt(self.explained_variance)
        return np.asarray(coordinates / np.where(sigma > 0, sigma, np.inf))

    def reconstruct(self, coordinates: Array, basis: Basis = "principal") -> Array:
        """Return the vectors (n, d) in the span of the components that have these coordinates (n, k)."""
        if basis == "whitened":
            coordinates = coordinates * np.sqrt(self.explained_variance)
        return self.uncentre(coordinates @ self.components)


@dataclass(frozen=True, eq=False)
class Projected:
    """Vectors projected by a model, with their missing entries filled. Scores are computed when they are read."""

    model: Model
    vectors: Array  # (n, d): the mean in dimensions that were never seen
    coordinates: Array  # (n, k), in the principal basis: in the units of the explained variances
    residual: Array  # (n,): the squared distance from the span of the components, SPE
    missing_t2: F64  # (n,): what missing entries add to T²; 0 for complete vectors
    past_scores: PastScores | None = None  # the scores with which p-values compare

    def rows(self, index: slice | NDArray[Any]) -> "Projected":
        """Select vectors by an index along the first axis."""
        names = ("vectors", "coordinates", "residual", "missing_t2")
        return replace(self, **{name: getattr(self, name)[index] for name in names})

    @np.errstate(all="ignore")
    def in_basis(self, basis: Basis) -> Array:
        """Return the coordinates (n, k) in a basis; whitened ones, the paper's x = C†y, have variance one."""
        return self.model.whiten(self.coordinates) if basis == "whitened" else self.coordinates

    @cached_property
    def scores(self) -> Scores:
        """T², SPE and score; expected values where entries were missing, and infinite beyond the range of float64."""
        model = self.model
        return score(self.coordinates, self.residual, self.missing_t2, model.floored_variance, model.noise_variance)

    @cached_property
    @np.errstate(over="ignore")
    def relative_scores(self) -> Scores:
        """The scores divided by their expected values, so that scores by several models can be compared."""
        return Scores(*(scores / mean for scores, mean in zip(self.scores, self.model.expected_scores, strict=True)))

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
        """The log-density of v by probabilistic PCA, (n,): −(score + d log 2π + log det D⁻¹ΣD⁻¹)/2."""
        model = self.model
        d = model.seen_dimensions
        variance = model.floored_variance[:d]
        log_det = float(np.log(variance).sum()) + (d - len(variance)) * np.log(model.noise_variance)
        if model.scale is not None:  # the scale of a dimension that was never seen is 1, which adds 0
            log_det -= 2 * float(np.log(model.scale).sum())
        return np.asarray(-(self.scores.score + d * np.log(2 * np.pi) + log_det) / 2)

    @np.errstate(all="ignore")
    def contributions(self, limit: int) -> tuple[NDArray[np.intp], Contributions]:
        """Return the dimensions with the largest contributions to T² and SPE, (2, n, limit), and the contributions.

        Each vector has `limit` of them, by falling absolute value.
        """
        components = self.model.components
        variance = self.model.floored_variance
        parts = []
        for start in range(0, max(len(self.vectors), 1), _ROWS):
            Y = self.model.centre(self.vectors[start : start + _ROWS])
            parts.append(projection.contributions(Y, components, variance, limit))
        dimensions, values = zip(*parts, strict=True)
        return np.concatenate(dimensions, axis=1), Contributions(*np.concatenate(values, axis=1))
