"""Computes the coordinates and residuals of vectors without gaps, in the precision of the vectors, part by part."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.projection import GEMM_ROWS, project_rows

_NUMBERS_PER_PART = 2**17  # numbers that are projected at a time: more would not fit the processor's cache
_SMALLEST_NORM = 1e-28  # smallest ‖y‖² that is computed in single precision: squares of smaller entries underflow


class _InSinglePrecision(NamedTuple):
    """The arrays of a projector in float32."""

    mean: Array  # (d,)
    mean_error: Array  # (d,): the mean less its rounded value in `mean`
    scale: Array | None  # (d,)
    axes: Array  # (d, k)
    components: Array  # (k, d): the axes as rows, so that products with either need not transpose


@dataclass(frozen=True, eq=False)
class Projector:
    """Projects complete vectors v as y = D(v − m) on components."""

    components: Array  # (k, d)
    mean: Array  # m (d,)
    scale: F64 | None  # the diagonal of D (d,); None: ones

    @cached_property
    def _axes(self) -> Array:
        """The components as columns, (d, k)."""
        return np.ascontiguousarray(self.components.T)

    @cached_property
    def _in_single_precision(self) -> _InSinglePrecision:
        """Copies of the arrays in float32.

        `mean_error` is what rounding the mean to float32 cuts off. `axes` (d, k) is `components` (k, d) transposed.
        """
        rounded_mean = self.mean.astype(np.float32)
        return _InSinglePrecision(
            mean=rounded_mean,
            mean_error=(self.mean - rounded_mean).astype(np.float32),
            scale=None if self.scale is None else self.scale.astype(np.float32),
            axes=self._axes.astype(np.float32),
            components=self.components.astype(np.float32),
        )

    def centre(self, vectors: Array) -> Array:
        """Return y = D(v − m) of vectors (n, d)."""
        Y = np.subtract(vectors, self.mean, order="C")  # in another memory layout, sums would round differently
        return Y if self.scale is None else np.multiply(Y, self.scale, out=Y)

    def project(self, vectors: Array) -> tuple[Array, Array]:
        """Compute coordinates (n, k) and squared residuals (n,) of complete vectors.

        Vectors of float32 are projected in single precision.
        """
        # The vectors are projected in parts that fit the processor's cache. A part is a whole number of tiles, the
        # `GEMM_ROWS` rows for which a matrix product is computed at a time. If a part ended within a tile, the last
        # digits of a row would depend on where parts end.
        numbers_per_tile = GEMM_ROWS * len(self.mean)
        tiles_per_part = max(_NUMBERS_PER_PART // numbers_per_tile, 1)
        rows_per_part = tiles_per_part * GEMM_ROWS
        is_single = vectors.dtype == np.float32
        project = self._project_in_single_precision if is_single else self._project_in_double_precision
        starts = range(0, max(len(vectors), 1), rows_per_part)  # at least one part
        parts = [project(vectors[start : start + rows_per_part]) for start in starts]
        coordinates = np.concatenate([coordinates for coordinates, _ in parts])
        residual = np.concatenate([residual for _, residual in parts])
        return coordinates, residual

    def _project_in_double_precision(self, vectors: Array) -> tuple[Array, Array]:
        """Compute coordinates (n, k) and residuals (n,)."""
        coordinates, residual, _ = project_rows(self.centre(vectors), self._axes, self.components)
        return coordinates, residual

    def _project_in_single_precision(self, vectors: Array) -> tuple[Array, Array]:
        """Compute coordinates (n, k) and residuals (n,) of y = D(v − m) in float32.

        The mean m is the sum of two numbers in float32, and `scale` is D = 1/standard deviation of each entry. `axes`
        (d, k) is `components` (k, d) transposed. Rows whose squares would overflow or underflow are computed in double
        precision.
        """
        single = self._in_single_precision
        Y = np.subtract(vectors, single.mean, order="C")
        Y -= single.mean_error
        if single.scale is not None:
            Y *= single.scale
        coordinates, residual, squared_norm = project_rows(Y, axes=single.axes, components=single.components)
        is_in_range = (squared_norm > _SMALLEST_NORM) & np.isfinite(squared_norm)
        coordinates = coordinates.astype(np.float64)
        residual = residual.astype(np.float64)
        if not is_in_range.all():  # all rows are computed again: in fewer rows, the products could round differently
            precise_coordinates, precise_residual = self._project_in_double_precision(vectors.astype(np.float64))
            coordinates = np.where(is_in_range[:, None], coordinates, precise_coordinates)
            residual = np.where(is_in_range, residual, precise_residual)
        return coordinates, residual
