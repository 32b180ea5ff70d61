"""The pooled covariance of states that do not keep Σ: the columns of C of all states, one below the other as rows R."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import ritz
from streampca.pca.scaling import compute_variance_factor
from streampca.pca.state import State, add_variance

MOST_SVD_ROWS = 640  # more rows are too many for a singular value decomposition: its time grows with their cube
_RANK_TOLERANCE = 1000 * float(np.finfo(np.float64).eps)  # larger than in ritz.py, because many states are summed
_SMALLEST_SINGULAR_VALUE = float(np.sqrt(np.finfo(np.float64).tiny))  # squares of smaller numbers are subnormal
_SMALLEST_ACCURATE_SHARE = 1e-10  # of the largest variance: of a smaller one, a Gram matrix gives few correct digits


class _ScaledRows(NamedTuple):
    """Rows, and a factor by which they are multiplied later, when they are decomposed: that saves copies."""

    factor: float
    rows: Array  # (r, d)


class PooledRows(NamedTuple):
    """The pooled covariance RᵀR + `variance_outside` · I of y = v − m, or of y = D(v − m) for standardised streams.

    R has a row for each axis of each state, and for each difference between means. `variance_outside` is the variance
    outside of the axes. It is added in all directions, also along the axes, so the rows hold this much less.
    """

    parts: Sequence[_ScaledRows]  # R
    variance_outside: float
    scale: F64 | None  # D (d,): 1/standard deviation of each entry; None: the streams are not standardised

    @classmethod
    def of(cls, state: State) -> "PooledRows":
        """Make rows with the covariance of a state."""
        rows, variance_outside = state.split_covariance()  # covariance = rowsᵀ · rows + variance_outside · I
        return cls([_ScaledRows(1.0, rows)], variance_outside, state.scale)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return sum(len(part.rows) for part in self.parts)

    def with_state(self, state: State, past_share: float, new_share: float, weighted_difference: F64) -> "PooledRows":
        """Pool this covariance Σ₁ with Σ₂ of a state: past_share · Σ₁ + new_share · Σ₂ + bbᵀ.

        b (d,) is `weighted_difference`: √(past_share · new_share) times the difference between the means, in the units
        of the data. If entries began late or are rare, each entry has its own two shares (pooled_moments.py). If
        R₁ and R₂ are the rows of Σ₁ = R₁ᵀR₁ and Σ₂ = R₂ᵀR₂, the pooled covariance has three kinds of rows:

            √past_share · R₁        √new_share · R₂        b

        The rows do not hold the variance that is taken as equal in all directions: it is pooled as a number
        (`variance_outside`).
        """
        added = PooledRows.of(state).in_units_of(self.scale)
        # b in the units of the rows, which are standardised if there is a scale
        mean_row = weighted_difference if self.scale is None else weighted_difference * self.scale
        past_parts = [_ScaledRows(np.sqrt(past_share) * part.factor, part.rows) for part in self.parts]
        new_parts = [_ScaledRows(np.sqrt(new_share) * part.factor, part.rows) for part in added.parts]
        return self._replace(
            parts=[*past_parts, *new_parts, _ScaledRows(1.0, mean_row[None])],
            variance_outside=past_share * self.variance_outside + new_share * added.variance_outside,
        )

    def in_units_of(self, scale: F64 | None) -> "PooledRows":
        """Convert the covariance of D(v − m) to that of D′(v − m). D is `self.scale`, and D′ is `scale`.

        Each entry of a row is multiplied by D′/D. `variance_outside` is one number for all directions, so it is
        multiplied by the median of (D′/D)². If either scale is None, the stream is not standardised: nothing changes.
        """
        if scale is None or self.scale is None:
            return self
        ratios = np.asarray(scale / self.scale)  # D′/D
        return PooledRows(
            parts=[_ScaledRows(part.factor, part.rows * ratios) for part in self.parts],
            variance_outside=self.variance_outside * compute_variance_factor(ratios),
            scale=scale,
        )

    def find_axes(self, most_axes: int) -> F64:
        """Compute up to `most_axes` leading axes, times the standard deviations along them, (d, r)."""
        rows = np.vstack([part.factor * part.rows.astype(np.float64, copy=False) for part in self.parts])
        return np.asarray(add_variance(find_leading_axes(rows, most_axes), self.variance_outside), np.float64)


def find_leading_axes(rows: F64, most_columns: int) -> F64:
    """Compute up to `most_columns` leading axes of the rows (n, d), each times its singular value, as columns (d, r).

    `decompose_rows` finds eigenvectors of products of the rows, which is quick, but inaccurate for small singular
    values. If leading axes have small singular values, a singular value decomposition is used, unless both n and d are
    too large for it.
    """
    limits = ritz.Limits(
        columns=most_columns, smallest_variance_share=_RANK_TOLERANCE, smallest_deviation=_SMALLEST_SINGULAR_VALUE
    )
    C = ritz.decompose_rows(rows, limits)
    full_rank = min(rows.shape)  # the most axes that the rows can have
    variance = np.square(C).sum(axis=0)
    # `decompose_rows` leaves out axes with too small singular values.
    found_all = len(variance) == min(most_columns, full_rank)
    is_accurate = len(variance) > 0 and found_all and variance[-1] > _SMALLEST_ACCURATE_SHARE * variance[0]
    is_too_large_for_svd = full_rank > MOST_SVD_ROWS
    if is_accurate or is_too_large_for_svd:
        return np.asarray(C, np.float64)
    return _decompose_by_svd(rows, most_columns)


def _decompose_by_svd(rows: F64, most_columns: int) -> F64:
    """Compute up to `most_columns` leading axes of the rows (n, d), each times its singular value, as columns."""
    if not min(rows.shape):  # no rows, or no entries
        return np.zeros((rows.shape[1], 0))
    _, sigma, axes_of_rows = np.linalg.svd(rows, full_matrices=False)
    # Rounding can make a column shorter than its singular value. With the factor 2, no squared length is subnormal.
    smallest = max(_RANK_TOLERANCE * sigma[0], 2 * _SMALLEST_SINGULAR_VALUE)
    kept_count = int(np.sum(sigma[:most_columns] > smallest))
    return np.ascontiguousarray((sigma[:kept_count, None] * axes_of_rows[:kept_count]).T)
