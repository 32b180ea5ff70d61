"""The pooled covariance of several streams about their common mean.

With weights w_i, W = Σ w_i and m = Σ w_i m_i / W, the pooled covariance is Σ w_i/W (Σ_i + (m_i − m)(m_i − m)ᵀ). If
states keep their Σ_i, this sum is computed, and is exact. Otherwise Σ_i is [C | F][C | F]ᵀ, plus the state's mean
variance outside of these columns in all other directions. The columns of all states are put side by side. When there
are too many, they are replaced by the leading axes. If states have known an entry for different times, each pair of
entries has its own w_i: the weight for which the state has known both (docs/mathematics.md, section 7).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.pca import axes, missing
from streampca.pca.arrays import limit_correlations
from streampca.pca.blocked import triangle
from streampca.pca.learning_config import BASE_F_COLUMNS_WITHOUT_COVARIANCE
from streampca.pca.pooled_moments import pool_moments
from streampca.pca.pooled_rows import MOST_SVD_ROWS, PooledRows
from streampca.pca.scaling import rescale
from streampca.pca.state import State


class PooledCovariance:
    """The pooled covariance and mean of the states added so far.

    If entries have begun late or are shown by few messages, a state has a weight of its own in each pair of entries.
    Then the order of the states changes the result, because each state is pooled with the sum of the states before it.
    """

    def __init__(self, columns: int, uncompressed_rows: int = 0) -> None:
        """Prepare to pool states that have up to `columns` axes each.

        - If the states keep Σ, Σ is pooled in `_moments`. Of `_rows`, only the scale is used: whether the streams are
          standardised.
        - Otherwise the pooled covariance is RᵀR plus a variance in all directions. R is held in `_rows`, with a row for
          each axis of each state, and for each difference between means. Too many rows are replaced by their leading
          axes, but never if R has up to `uncompressed_rows` rows.
        """
        # Too many rows are replaced by this many axes: at least the fewest columns that F has in a state without Σ.
        self._axes_kept = max(columns, BASE_F_COLUMNS_WITHOUT_COVARIANCE)
        self._row_limit = max(2 * self._axes_kept, uncompressed_rows)  # 2: rows are replaced only now and then
        self._moments = State.empty(0)  # means, counts, variances and Σ; its axes and its scale are not used
        self._rows = PooledRows.of(self._moments)
        self._holds_several_states = False  # if it does, `state` estimates covariances that no state knows

    @property
    def weight(self) -> float:
        """The sum of the weights of the states."""
        return self._moments.weight

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        self._moments = replace(self._moments, weight=self.weight * share)

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state, which counts with this share of its weight. The share and the weight must not be 0.

        Means and variances are pooled in `_moments`. If the states keep their covariance Σ, `_moments` pools Σ, too. If
        the states do not keep Σ, their axes, which are the columns of `state.C` = [C | F], become rows of `_rows`. When
        there are too many rows, the rows are replaced by their leading axes.
        """
        before = self._moments
        added_weight = state.weight * share
        weight = before.weight + added_weight
        past_share = before.weight / weight
        new_share = added_weight / weight
        is_first = past_share == 0
        if is_first:
            moments = state
            self._rows = PooledRows.of(state)  # if the states keep Σ, only the scale of the rows is used
        else:
            self._holds_several_states = True
            moments, weighted_difference = pool_moments(before, state, past_share, new_share)
            if moments.covariance is None:  # the states keep no Σ
                # The means differ, which adds to the covariance: their weighted difference becomes a row, too.
                self._rows = self._rows.with_state(state, past_share, new_share, weighted_difference)
        self._moments = replace(
            moments,
            C=np.zeros((0, 0)),  # `_add_scale_and_axes` computes the axes, and the scale of standardised streams
            scale=None,
            weight=weight,
            count=before.count + state.count,
            # the sum of the squared shares of all messages
            concentration=past_share**2 * before.concentration + new_share**2 * state.concentration,
            clipped=before.clipped + state.clipped,
        )
        if self._rows.row_count > self._row_limit:
            self._rows = PooledRows.of(self.pooled_state())  # the pooled state has only the leading axes

    def state(self, columns: int, dtype: Any = np.float64) -> State:
        """Return the pooled state for a model, with up to `columns` axes. The weight must not be 0.

        If several states were pooled, and no message has two entries together, the covariance of the two is estimated
        from covariances with other entries. For a single state, nothing is estimated.
        """
        moments = self._moments
        if self._holds_several_states:
            moments = _complete_covariance(moments)
        state = self._add_scale_and_axes(moments, most_axes=columns)
        keeps_covariance = state.covariance is not None
        if keeps_covariance:  # the axes are not computed yet: they follow from the pooled Σ
            state = axes.decompose(state, columns)
        return replace(state, C=state.C.astype(dtype, copy=False))

    def pooled_state(self) -> State:
        """Return the pooled state, so that it can be added to another pool. The weight must not be 0."""
        return self._add_scale_and_axes(self._moments, most_axes=self._axes_kept)

    def _add_scale_and_axes(self, moments: State, most_axes: int) -> State:
        """Return these pooled moments with a scale and axes, which they lack.

        1. If the streams are standardised, the scale follows from the pooled variances of the entries.
        2. If the states do not keep Σ, their axes are the rows of one matrix, `_rows`. Up to `most_axes` leading axes
           of this matrix become `state.C`. If the states keep Σ, `state.C` stays empty: Σ gives the axes.
        """
        state = replace(moments, C=np.zeros((len(moments.mean), 0)))  # no axes
        if self._rows.scale is not None:  # 1. The streams are standardised.
            state, _ = rescale(state, state.entry_variances)
        if state.covariance is not None:
            return state
        rows = self._rows.in_units_of(state.scale)  # 2. The rows are still in an earlier scale.
        return replace(state, C=rows.find_axes(most_axes))


def pool_groups(groups: Sequence[State], columns: int) -> PooledCovariance:
    """Pool the states of groups, each with up to `columns` axes. A group has some of the streams that were learned.

    If the states keep Σ, the pooled Σ is exact. Otherwise a pool holds the axes of the states as rows, and replaces too
    many rows by their leading axes. jackknife.py takes differences between pools for sampling errors, to which the
    error of this replacement would add. So up to `MOST_SVD_ROWS` rows are not replaced.
    """
    pool = PooledCovariance(columns, uncompressed_rows=MOST_SVD_ROWS)
    for group in groups:
        pool.add(group)
    return pool


def _complete_covariance(state: State) -> State:
    """Estimate each missing covariance, and limit correlations to ±1.

    A covariance is missing if no message has both entries, and it was not estimated from filled entries before. If the
    state does not keep Σ, or if all pairs of entries were always known (`state.known` is None), the state is returned
    as it is.
    """
    if state.known is None or state.covariance is None:
        return state
    d = len(state.mean)
    S = triangle.unpack(state.covariance, d)
    known_shares = triangle.unpack(state.known, d)  # of the weight; above 0 if some message has both entries
    keep = (known_shares > 0) | (S != 0)  # S may hold an estimate, not 0, for a pair that no message has together
    completed = missing.complete_covariance(S, keep)
    return replace(state, covariance=limit_correlations(completed)[np.tril_indices(d)])
