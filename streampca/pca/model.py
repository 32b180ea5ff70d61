"""The model that is served: mean, principal axes and their variances, as a frozen value."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array

Basis = Literal["principal", "whitened"]

GEMM_ROWS = 32  # rows of one matrix product: BLAS may round a row differently by their number, and by its index
_PART = 2**17  # numbers that are projected at once: those of more would not fit the processor's cache
_SMALL = 0.01  # share of ‖y‖²: a smaller residual is not computed as a difference, whose rounding would be too large
_SMALLEST_NORM = 1e-28  # of ‖y‖² in single precision: squares of its entries must not underflow


@dataclass(frozen=True, eq=False)
class Model:
    """The k leading principal components of a stream.

    Rows of `components` are orthonormal, by falling variance. If fewer than k distinct directions were seen, the other
    components have an arbitrary axis, explained variance 0 and whitened coordinate 0.
    """

    components: Array  # (k, d)
    explained_variance: Array  # (k,), in the data's units squared
    mean: Array  # (d,)
    total_variance: float  # of all d dimensions
    weight: float  # effective number of messages: the count, less what was forgotten

    @property
    def n_components(self) -> int:
        """k."""
        return int(self.components.shape[0])

    @property
    def dimensions(self) -> int:
        """d."""
        return int(self.components.shape[1])

    @cached_property
    def explained_variance_ratio(self) -> Array:
        """Share of the total variance along each component, (k,); zeros for a stream without variance."""
        return np.asarray(self.explained_variance / (self.total_variance if self.total_variance > 0 else np.inf))

    @cached_property
    def noise_variance(self) -> float:
        """σ², the mean variance of the d − k directions beyond the components; never less than rounding."""
        others = self.dimensions - self.n_components
        rest = self.total_variance - float(self.explained_variance.sum())
        return max(rest / others if others else 0.0, self.rounding)

    @cached_property
    def rounding(self) -> float:
        """The variance that rounding may cause along one direction."""
        return float(max(np.finfo(self.components.dtype).eps * self.total_variance, np.finfo(np.float64).tiny))

    @cached_property
    def _in_single_precision(self) -> tuple[Array, Array, Array, Array]:
        """The mean and what rounding has cut off it, (d,); the axes (d, k) and components (k, d)."""
        with np.errstate(all="ignore"):
            mean = self.mean.astype(np.float32)
            rest = (self.mean - mean).astype(np.float32)
        return mean, rest, self._axes.astype(np.float32), self.components.astype(np.float32)

    @cached_property
    def _axes(self) -> Array:
        """The components as columns, (d, k); products with them are quicker than with a transposed view."""
        return np.ascontiguousarray(self.components.T)

    def project(self, Y: Array, basis: Basis = "principal") -> tuple[Array, Array]:
        """Coordinates (n, k) of vectors (n, d), and their squared distances (n,) from the span of the components.

        Vectors of float32 are projected in single precision; the results are float64.
        "principal" coordinates have the units of the data and the explained variances; "whitened" coordinates, the
        paper's x = C†y, have variance one.
        """
        rows = max(_PART // (GEMM_ROWS * self.dimensions), 1) * GEMM_ROWS
        parts = [self._project(Y[i : i + rows], basis) for i in range(0, max(len(Y), 1), rows)]
        coordinates, residual = zip(*parts, strict=True)
        return np.concatenate(coordinates), np.concatenate(residual)

    def _project(self, Y: Array, basis: Basis) -> tuple[Array, Array]:
        if Y.dtype == np.float32:
            coordinates, residual = self._project_single(Y)
        else:  # another order in memory would be summed in another way
            centred = np.subtract(Y, self.mean, order="C")
            coordinates, residual, _ = _split(centred, self._axes, self.components)
        return (self.whiten(coordinates) if basis == "whitened" else coordinates), residual

    def _project_single(self, Y: Array) -> tuple[Array, Array]:
        """As `project`, computed in single precision: its errors are like those of having rounded Y to it.

        Rows whose squares would overflow or underflow are computed in double precision.
        """
        mean, rest, axes, components = self._in_single_precision
        with np.errstate(all="ignore"):
            centred = np.subtract(Y, mean, order="C")
            centred -= rest
            coordinates, residual, norm = _split(centred, axes, components)
        fits = (norm > _SMALLEST_NORM) & np.isfinite(norm)
        coordinates, residual = coordinates.astype(np.float64), residual.astype(np.float64)
        if not fits.all():
            in_double = self._project(Y.astype(np.float64), "principal")
            coordinates = np.where(fits[:, None], coordinates, in_double[0])
            residual = np.where(fits, residual, in_double[1])
        return coordinates, residual

    def whiten(self, coordinates: Array) -> Array:
        """Principal coordinates (n, k) as whitened ones."""
        sigma = np.sqrt(self.explained_variance)
        return np.asarray(coordinates / np.where(sigma > 0, sigma, np.inf))

    def reconstruct(self, coordinates: Array, basis: Basis = "principal") -> Array:
        """The vectors (n, d) in the span of the components with these coordinates (n, k)."""
        if basis == "whitened":
            coordinates = coordinates * np.sqrt(self.explained_variance)
        return np.asarray(coordinates @ self.components + self.mean)


def _split(centred: Array, axes: Array, components: Array) -> tuple[Array, Array, Array]:
    """The coordinates, squared residuals and squared norms of rows, which are overwritten."""
    coordinates = in_blocks(centred, axes)
    norm = np.vecdot(centred, centred)
    residual: Array = norm - np.vecdot(coordinates, coordinates)
    is_small = ~(residual > _SMALL * norm)
    if is_small.any():
        centred -= in_blocks(coordinates, components)
        residual = np.where(is_small, np.vecdot(centred, centred), residual)
    return coordinates, residual, norm


def in_blocks(rows: Array, matrix: Array) -> Array:
    """rows @ matrix, in products of `GEMM_ROWS` rows and one of the others."""
    (n, d), k = rows.shape, matrix.shape[1]
    product, whole = np.empty((n, k), np.result_type(rows, matrix)), n - n % GEMM_ROWS
    if whole:
        np.matmul(rows[:whole].reshape(-1, GEMM_ROWS, d), matrix, out=product[:whole].reshape(-1, GEMM_ROWS, k))
    if whole < n:
        np.matmul(rows[whole:], matrix, out=product[whole:])
    return product


def at_indices(vectors: Array, indices: NDArray[np.int64]) -> Array:
    """Vectors (n, d) at ascending indices of whole blocks, among zeros.

    A vector with the same index modulo `GEMM_ROWS` in every batch gets the same bits from `in_blocks` in every batch.
    """
    rows = np.zeros((-(-(int(indices[-1]) + 1) // GEMM_ROWS) * GEMM_ROWS, vectors.shape[1]), vectors.dtype)
    rows[indices] = vectors
    return rows
