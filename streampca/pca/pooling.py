"""The pooled covariance of several streams about their common mean.

With weights w_i, W = Σ w_i and m = Σ w_i m_i / W, the pooled covariance is Σ w_i/W (Σ_i + (m_i − m)(m_i − m)ᵀ). If
states keep their Σ_i, this sum is computed, and is exact. Otherwise Σ_i is [C | F][C | F]ᵀ, plus the state's mean
variance outside of these columns in all other directions. The columns of all states are put side by side. When there
are too many, they are replaced by the leading axes. If states have known an entry for different times, each pair of
entries has its own w_i: the weight for which the state has known both (docs/mathematics.md, section 7).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streampca.pca import axes, missing
from streampca.pca.arrays import F64, Array, find_packed_diagonal, limit_correlations, take_entries
from streampca.pca.blocked import ritz, triangle
from streampca.pca.learning_config import SPARE_WITHOUT_COVARIANCE
from streampca.pca.pooled_shares import compute_added_share, pool_shares
from streampca.pca.scaling import compute_variance_factor, rescale
from streampca.pca.state import State, add_variance

UNCUT_ROWS = 640  # more rows are too many for an exact decomposition: its time grows with the cube of their number
_RANK_TOLERANCE = 1000 * float(np.finfo(np.float64).eps)  # larger than in ritz.py, because many states are summed
_SMALLEST_SINGULAR_VALUE = float(np.sqrt(np.finfo(np.float64).tiny))  # squares of smaller numbers are subnormal
_ALWAYS_KNOWN = 1 - 1e-9  # N from which a pair counts as always known, despite rounding
_SMALLEST_ACCURATE_SHARE = 1e-10  # of the largest variance: of a smaller one, a Gram matrix gives few correct digits


class _ScaledRows(NamedTuple):
    """Rows, and a factor by which they are multiplied later, when they are decomposed: that saves copies."""

    factor: float
    rows: Array  # (r, d)


class PooledCovariance:
    """The pooled covariance and mean of the states added so far.

    If entries have begun late or are shown by few messages, a state has a weight of its own in each pair of entries.
    Then the order of the states changes the result, because each state is pooled with the sum of the states before it.
    """

    def __init__(self, columns: int, uncut_rows: int = 0) -> None:
        """Prepare to pool states of up to `columns` columns.

        Up to `uncut_rows` rows are never replaced by leading axes.
        """
        self._columns_kept = max(columns, SPARE_WITHOUT_COVARIANCE)
        self._most_rows = max(2 * self._columns_kept, uncut_rows)
        self._pooled = State.empty(0)
        self._holds_several_states = False
        # Without Σ, the pooled covariance is RᵀR plus `_variance_outside` in all directions.
        self._rows: list[_ScaledRows] = []
        self._variance_outside = 0.0
        self._scale_of_rows: F64 | None = None  # D

    @property
    def weight(self) -> float:
        """The sum of the weights of the states."""
        return self._pooled.weight

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        self._pooled = replace(self._pooled, weight=self.weight * share)

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state, which counts with this share of its weight. The share and the weight must not be 0."""
        before = self._pooled
        added_weight = state.weight * share
        weight = before.weight + added_weight
        past = before.weight / weight
        new = added_weight / weight
        if past:
            self._holds_several_states = True
            moments = self._pool_moments_and_rows(state, past, new)
        else:
            self._replace_rows_by_columns(state)
            moments = state
        self._pooled = replace(
            moments,
            C=before.C,
            scale=None,
            weight=weight,
            count=before.count + state.count,
            concentration=past**2 * before.concentration + new**2 * state.concentration,
            clipped=before.clipped + state.clipped,
        )
        row_count = sum(len(part.rows) for part in self._rows)
        if row_count > self._most_rows:
            pooled = self.pooled_state()
            self._replace_rows_by_columns(pooled)

    def _replace_rows_by_columns(self, state: State) -> None:
        """Replace the rows R by the columns of a state, so that RᵀR + `_variance_outside` · I is its covariance."""
        rows, self._variance_outside = state.split_covariance()
        self._rows = [_ScaledRows(1.0, rows)]
        self._scale_of_rows = state.scale

    def _pool_moments_and_rows(self, state: State, past: float, new: float) -> State:
        """Return the pooled moments after one more state (docs/mathematics.md, section 7).

        With the shares p and n of the past and the new state, and the step δ of the mean, Σ = pΣ₁ + nΣ₂ + pn δδᵀ.
        """
        before = self._pooled
        mean_step = state.mean - before.mean  # δ
        p: F64 | float = past
        n: F64 | float = new
        added_shares = compute_added_share(before, state, past, new)  # None: `new` everywhere
        if added_shares is not None:
            n = take_entries(added_shares, len(mean_step))
            p = 1 - n
        weighted_step = np.sqrt(p * n) * mean_step
        variances = None
        if before.variances is not None and state.variances is not None:
            variances = p * before.variances + n * state.variances + np.square(weighted_step)
        pooled = replace(
            before,
            mean=before.mean + n * mean_step,
            total_variance=past * before.total_variance
            + new * state.total_variance
            + float(weighted_step @ weighted_step),
            covariance=None,
            variances=variances,
            missing=pool_shares(before.missing, past, state.missing, new, if_none=0.0),
            known=_pool_known(before, state, past, new),
        )
        if before.covariance is None or state.covariance is None:
            self._add_rows(state, past, new, weighted_step)
            return pooled
        if added_shares is None:
            covariance = past * before.covariance + new * state.covariance + triangle.pack_outer(weighted_step)
            return replace(pooled, covariance=covariance)
        covariance = _pool_pair_by_pair(before.covariance, state.covariance, mean_step, pair_shares=added_shares)
        total_variance = float(covariance[find_packed_diagonal(len(mean_step))].sum())
        return replace(pooled, covariance=covariance, total_variance=total_variance)

    def _add_rows(self, state: State, past: float, new: float, weighted_step: F64) -> None:
        """If Σ is not kept, add the columns of a state to the rows R, and `weighted_step` for the means."""
        rows, variance_outside = state.split_covariance()
        step_row = weighted_step
        if self._scale_of_rows is not None and state.scale is not None:
            ratio = self._scale_of_rows / state.scale
            rows = rows * ratio
            variance_outside *= compute_variance_factor(ratio)
            step_row = weighted_step * self._scale_of_rows
        earlier = [_ScaledRows(np.sqrt(past) * part.factor, part.rows) for part in self._rows]
        self._rows = [*earlier, _ScaledRows(np.sqrt(new), rows), _ScaledRows(1.0, step_row[None])]
        self._variance_outside = past * self._variance_outside + new * variance_outside

    def state(self, columns: int, dtype: Any = np.float64) -> State:
        """Return the pooled state for a model, with up to `columns` columns. The weight must not be 0."""
        state = self._pooled
        if self._holds_several_states:  # a single state stays as it was learned
            state = _complete_covariance(state)
        state = self._with_columns(state, columns)
        state = axes.decompose(state, columns)
        return replace(state, C=state.C.astype(dtype, copy=False))

    def pooled_state(self) -> State:
        """Return the pooled state, so that it can be added to another pool. The weight must not be 0."""
        return self._with_columns(self._pooled, self._columns_kept)

    def _with_columns(self, state: State, columns: int) -> State:
        """Complete the pooled moments: add the scale and, without a covariance, up to `columns` columns C."""
        state = replace(state, C=np.zeros((len(state.mean), 0)))
        rows = self._rows
        variance_outside = self._variance_outside
        if self._scale_of_rows is not None:
            state, pooled_scale = rescale(state, state.entry_variances)
            ratio = pooled_scale / self._scale_of_rows
            rows = [_ScaledRows(part.factor, part.rows * ratio) for part in rows]
            variance_outside *= compute_variance_factor(ratio)
        if state.covariance is None:
            C = _find_leading_axes(rows, columns)
            state = replace(state, C=add_variance(C, variance_outside))
        return state


def _pool_known(before: State, added: State, past: float, new: float) -> F64 | None:
    """Pool the shares of the weight for which pairs of entries were known; None if all are 1."""
    known = pool_shares(before.known, past, added.known, new, if_none=1.0)
    always_known = known is not None and known.min() > _ALWAYS_KNOWN
    return None if always_known else known


def _pool_pair_by_pair(before: F64, added: F64, mean_step: F64, pair_shares: F64) -> F64:
    """Pool two packed covariances if `added` has its own share in each pair of entries.

    `mean_step` is the mean of `added` less the mean of `before`.
    """
    entry_shares = take_entries(pair_shares, len(mean_step))
    before_about_new_mean = before + triangle.pack_outer(entry_shares * mean_step)
    added_about_new_mean = added + triangle.pack_outer((1 - entry_shares) * mean_step)
    return (1 - pair_shares) * before_about_new_mean + pair_shares * added_about_new_mean


def _complete_covariance(state: State) -> State:
    """Fill in the covariances of pairs of which nothing is known, and limit correlations to ±1."""
    if state.known is None or state.covariance is None:
        return state
    d = len(state.mean)
    S = triangle.unpack(state.covariance, d)
    known = triangle.unpack(state.known, d)
    has_covariance = (known > 0) | (S != 0)
    S = missing.complete_covariance(S, has_covariance)
    return replace(state, covariance=limit_correlations(S)[np.tril_indices(d)])


def _find_leading_axes(parts: Sequence[_ScaledRows], columns: int) -> F64:
    """Compute up to `columns` leading axes of the rows, times their singular values, (d, r)."""
    rows = np.vstack([part.factor * part.rows.astype(np.float64, copy=False) for part in parts])
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
