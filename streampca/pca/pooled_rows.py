"""The pooled covariance of states that do not keep Σ: the columns of all states, put side by side as rows R."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import ritz
from streampca.pca.scaling import compute_variance_factor
from streampca.pca.state import State, add_variance

UNCUT_ROWS = 640  # more rows are too many for an exact decomposition: its time grows with the cube of their number
_RANK_TOLERANCE = 1000 * float(np.finfo(np.float64).eps)  # larger than in ritz.py, because many states are summed
_SMALLEST_SINGULAR_VALUE = float(np.sqrt(np.finfo(np.float64).tiny))  # squares of smaller numbers are subnormal
_SMALLEST_ACCURATE_SHARE = 1e-10  # of the largest variance: of a smaller one, a Gram matrix gives few correct digits


class _ScaledRows(NamedTuple):
    """Rows, and a factor by which they are multiplied later, when they are decomposed: that saves copies."""

    factor: float
    rows: Array  # (r, d)


class PooledRows(NamedTuple):
    """The covariance RᵀR + `variance_outside` · I, in standard deviations 1/D if the streams are standardised."""

    parts: Sequence[_ScaledRows]  # R
    variance_outside: float
    scale: F64 | None  # D (d,)

    @classmethod
    def of(cls, state: State) -> "PooledRows":
        """Make rows with the covariance of a state."""
        rows, variance_outside = state.split_covariance()
        return cls([_ScaledRows(1.0, rows)], variance_outside, state.scale)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return sum(len(part.rows) for part in self.parts)

    def with_state(self, state: State, past: float, new: float, weighted_step: F64) -> "PooledRows":
        """Return past · covariance + new · covariance of the state + `weighted_step` times its transpose.

        The step (d,) is in the units of the data.
        """
        added = PooledRows.of(state).in_units_of(self.scale)
        step_row = weighted_step if self.scale is None else weighted_step * self.scale
        earlier = [_ScaledRows(np.sqrt(past) * part.factor, part.rows) for part in self.parts]
        later = [_ScaledRows(np.sqrt(new) * part.factor, part.rows) for part in added.parts]
        return self._replace(
            parts=[*earlier, *later, _ScaledRows(1.0, step_row[None])],
            variance_outside=past * self.variance_outside + new * added.variance_outside,
        )

    def in_units_of(self, scale: F64 | None) -> "PooledRows":
        """Convert the rows to another scale D (d,); they stay the same if the streams are not standardised."""
        if scale is None or self.scale is None:
            return self
        ratio = scale / self.scale
        return PooledRows(
            parts=[_ScaledRows(part.factor, part.rows * ratio) for part in self.parts],
            variance_outside=self.variance_outside * compute_variance_factor(np.asarray(ratio)),
            scale=scale,
        )

    def find_columns(self, limit: int) -> F64:
        """Compute up to `limit` leading axes, times the standard deviations along them, (d, r)."""
        rows = np.vstack([part.factor * part.rows.astype(np.float64, copy=False) for part in self.parts])
        return np.asarray(add_variance(find_leading_axes(rows, limit), self.variance_outside), np.float64)


def find_leading_axes(rows: F64, columns: int) -> F64:
    """Compute up to `columns` leading axes of the rows (n, d), times their singular values, (d, r)."""
    C = ritz.decompose_rows(
        rows, ritz.Limits(columns=columns, rounding=_RANK_TOLERANCE, smallest=_SMALLEST_SINGULAR_VALUE)
    )
    full_rank = min(rows.shape)  # the most axes that the rows can have
    variance = np.square(C).sum(axis=0)
    # `decompose_rows` loses the smallest singular values.
    found_all = len(variance) == min(columns, full_rank)
    is_accurate = len(variance) > 0 and found_all and variance[-1] > _SMALLEST_ACCURATE_SHARE * variance[0]
    is_too_large_for_svd = full_rank > UNCUT_ROWS
    if is_accurate or is_too_large_for_svd:
        return np.asarray(C, np.float64)
    return _decompose_by_svd(rows, columns)


def _decompose_by_svd(rows: F64, columns: int) -> F64:
    """Compute up to `columns` leading axes of the rows (n, d) by a singular value decomposition, (d, r)."""
    if not min(rows.shape):
        return np.zeros((rows.shape[1], 0))
    _, sigma, axes_of_rows = np.linalg.svd(rows, full_matrices=False)
    smallest = max(_RANK_TOLERANCE * sigma[0], 2 * _SMALLEST_SINGULAR_VALUE)  # rounding may shorten columns
    kept_count = int(np.sum(sigma[:columns] > smallest))
    return np.ascontiguousarray((sigma[:kept_count, None] * axes_of_rows[:kept_count]).T)
