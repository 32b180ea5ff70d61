"""The model that is served, mean, principal axes and their variances; and vectors projected by it: frozen values."""

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

_PART = 2**17  # numbers that are projected at once: those of more would not fit the processor's cache
_SMALLEST_NORM = 1e-28  # of ‖y‖² in single precision: squares of its entries must not underflow
_ROWS = 64  # vectors whose contributions are computed at once: each takes several times its memory


@dataclass(frozen=True, eq=False)
class Model:
    """The k leading principal components of a stream.

    Rows of `components` are orthonormal, by falling variance. If fewer than k distinct directions were seen, the other
    components have an arbitrary axis, explained variance 0 and whitened coordinate 0.

    Components, variances, coordinates, residuals and scores are those of y = D(v − m). D is the identity, unless the
    stream is standardised: then y is in standard deviations. Vectors and the mean are in the data's units.

    If no message has shown a dimension, the model is one without it: what a vector holds there does not count in
    coordinates, residuals, scores and likelihoods, nor does its absence.
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
        """k."""
        return int(self.components.shape[0])

    @property
    def dimensions(self) -> int:
        """d."""
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
        return np.asarray(self.explained_variance / (self.total_variance if self.total_variance > 0 else np.inf))

    @cached_property
    def noise_variance(self) -> float:
        """σ², the mean variance of the directions beyond the components; never less than rounding."""
        variance, dtype = self.explained_variance, self.components.dtype
        return projection.noise_variance(variance, self.seen_dimensions, self.total_variance, dtype)

    @cached_property
    def floored_variance(self) -> F64:
        """λ (k,), at least the variance of rounding: a vector along an axis without variance is very unusual."""
        rounding = projection.rounding_variance(self.total_variance, self.components.dtype)
        return np.asarray(np.maximum(self.explained_variance.astype(np.float64), rounding))

    @cached_property
    def spikes(self) -> projection.Spikes:
        """The covariance of the stream, as estimated from the variances along the axes.

        There are k axes, but no more than dimensions that were seen: the others are arbitrary.
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
        spe = max(d - len(variance), 1) * sigma2  # with k = d the residual is rounding: it must not be divided by 0
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

        Missing entries, NaN, are filled with their conditional means; their uncertainty adds to residuals and T².
        Vectors of float32 are projected in single precision; coordinates and residuals are float64.
        """
        if self.seen is not None:  # at the mean, an entry adds nothing
            vectors = np.where(self.seen, vectors, self.mean).astype(vectors.dtype)
        coordinates, residual = self._project(vectors)
        t2 = np.zeros(len(vectors))
        if np.isnan(residual).any():  # a missing entry makes the residual NaN
            Y, variance = self.centred(vectors.astype(np.float64)), self.explained_variance.astype(np.float64)
            t2, spe = projection.fill(Y, self.components, variance, self.noise_variance)
            vectors = np.where(np.isnan(vectors), self.uncentred(Y), vectors).astype(vectors.dtype)
            coordinates, residual = self._project(vectors)
            residual = residual + spe
        return Projected(self, vectors, coordinates, residual, t2, past_scores)

    def _project(self, vectors: Array) -> tuple[Array, Array]:
        """Coordinates (n, k) of complete vectors, and their squared distances (n,) from the span of the components."""
        rows = max(_PART // (GEMM_ROWS * self.dimensions), 1) * GEMM_ROWS
        split = self._split_single if vectors.dtype == np.float32 else self._split
        parts = [split(vectors[i : i + rows]) for i in range(0, max(len(vectors), 1), rows)]
        coordinates, residual = zip(*parts, strict=True)
        return np.concatenate(coordinates), np.concatenate(residual)

    def centred(self, vectors: Array) -> Array:
        """y = D(v − m) of vectors (n, d)."""
        Y = np.subtract(vectors, self.mean, order="C")  # another order would be summed in another way
        return Y if self.scale is None else np.multiply(Y, self.scale, out=Y)

    def uncentred(self, Y: Array) -> Array:
        """The vectors v = m + D⁻¹y (n, d)."""
        return np.asarray((Y if self.scale is None else Y / self.scale) + self.mean)

    def _split(self, vectors: Array) -> tuple[Array, Array]:
        """The coordinates (n, k) and residuals (n,) in double precision."""
        coordinates, residual, _ = projection.split(self.centred(vectors), self._axes, self.components)
        return coordinates, residual

    def _split_single(self, vectors: Array) -> tuple[Array, Array]:
        """The coordinates and residuals in single precision, with errors as if the vectors had been rounded to it.

        Rows whose squares would overflow or underflow are computed in double precision.
        """
        mean, rest, scale, axes, components = self._in_single_precision
        Y = np.subtract(vectors, mean, order="C")
        Y -= rest
        if scale is not None:
            Y *= scale
        coordinates, residual, norm = projection.split(Y, axes, components)
        is_in_range = (norm > _SMALLEST_NORM) & np.isfinite(norm)
        coordinates, residual = coordinates.astype(np.float64), residual.astype(np.float64)
        if not is_in_range.all():
            coordinates_in_double, residual_in_double = self._split(vectors.astype(np.float64))
            coordinates = np.where(is_in_range[:, None], coordinates, coordinates_in_double)
            residual = np.where(is_in_range, residual, residual_in_double)
        return coordinates, residual

    def whiten(self, coordinates: Array) -> Array:
        """Principal coordinates (n, k) as whitened ones, the paper's x = C†y, with variance one."""
        sigma = np.sqrt(self.explained_variance)
        return np.asarray(coordinates / np.where(sigma > 0, sigma, np.inf))

    def reconstruct(self, coordinates: Array, basis: Basis = "principal") -> Array:
        """The vectors (n, d) in the span of the components with these coordinates (n, k)."""
        if basis == "whitened":
            coordinates = coordinates * np.sqrt(self.explained_variance)
        return self.uncentred(coordinates @ self.components)


@dataclass(frozen=True, eq=False)
class Projected:
    """Vectors whose missing entries are filled, and where a model puts them. Scores are computed when asked for."""

    model: Model
    vectors: Array  # (n, d): the mean in dimensions that were never seen
    coordinates: Array  # (n, k), in the principal basis: in the units of the explained variances
    residual: Array  # (n,): the squared distance from the span of the components, SPE
    missing_t2: F64  # (n,): what missing entries add to T²; 0 for complete vectors
    past_scores: PastScores | None = None  # with which p-values compare

    def rows(self, index: slice | NDArray[Any]) -> "Projected":
        """Select vectors by an index along the first axis."""
        names = ("vectors", "coordinates", "residual", "missing_t2")
        return replace(self, **{name: getattr(self, name)[index] for name in names})

    @np.errstate(all="ignore")
    def in_basis(self, basis: Basis) -> Array:
        """Coordinates (n, k); whitened ones, the paper's x = C†y, have variance one."""
        return self.model.whiten(self.coordinates) if basis == "whitened" else self.coordinates

    @cached_property
    def scores(self) -> Scores:
        """T², SPE and score, expected ones where entries were missing; infinite beyond the range of float64."""
        model = self.model
        return score(self.coordinates, self.residual, self.missing_t2, model.floored_variance, model.noise_variance)

    @cached_property
    @np.errstate(over="ignore")
    def relative_scores(self) -> Scores:
        """The scores as multiples of the expected ones: these compare with those by other models."""
        return Scores(*(scores / mean for scores, mean in zip(self.scores, self.model.expected_scores, strict=True)))

    @cached_property
    def p_values(self) -> Scores | None:
        """Share of past scores that are at least as high, for each statistic; None without past scores."""
        return None if self.past_scores is None else self.past_scores.p_values(self.relative_scores)

    @property
    def p(self) -> F64 | None:
        """The p-values of the score, (n,); None without past scores."""
        return None if self.p_values is None else self.p_values.score

    @cached_property
    def log_likelihood(self) -> F64:
        """The log-density of v by probabilistic PCA, (n,): −(score + d log 2π + log det D⁻¹ΣD⁻¹)/2."""
        model, d = self.model, self.model.seen_dimensions
        variance = model.floored_variance[:d]
        log_det = float(np.log(variance).sum()) + (d - len(variance)) * np.log(model.noise_variance)
        if model.scale is not None:  # the scale of a dimension that was never seen is 1, which adds 0
            log_det -= 2 * float(np.log(model.scale).sum())
        return np.asarray(-(self.scores.score + d * np.log(2 * np.pi) + log_det) / 2)

    @np.errstate(all="ignore")
    def contributions(self, limit: int) -> tuple[NDArray[np.intp], Contributions]:
        """The dimensions with the largest contributions to T² and SPE, (2, n, limit), and the contributions.

        They come by falling absolute value, `limit` for each vector.
        """
        components, variance = self.model.components, self.model.floored_variance
        some = (self.model.centred(self.vectors[i : i + _ROWS]) for i in range(0, max(len(self.vectors), 1), _ROWS))
        parts = [projection.contributions(Y, components, variance, limit) for Y in some]
        dimensions, values = zip(*parts, strict=True)
        return np.concatenate(dimensions, axis=1), Contributions(*np.concatenate(values, axis=1))
