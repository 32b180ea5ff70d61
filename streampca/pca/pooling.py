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
from streampca.pca.learning_config import FEWEST_F_COLUMNS_WITHOUT_COVARIANCE
from streampca.pca.pooled_moments import pool_moments
from streampca.pca.pooled_rows import MOST_SVD_ROWS, PooledRows
from streampca.pca.scaling import rescale
from streampca.pca.state import State


class PooledCovariance:
    """The pooled covariance and mean of the states added so far.

    If entries have begun late or are shown by few messages, a state has a weight of its own in each pair of entries.
    Then the order of the states changes the result, because each state is pooled with the sum of the states before it.
    """

    def __init__(self, columns: int, most_rows: int = 0) -> None:
        """Prepare to pool states of up to `columns` columns.

        If the states do not keep Σ, the pooled covariance is RᵀR plus a variance in all directions. The rows R are the
        columns of all states and the differences between their means. When R has more rows than `most_rows` and than
        twice the columns, the rows are replaced by their leading axes.
        """
        self._columns_kept = max(columns, FEWEST_F_COLUMNS_WITHOUT_COVARIANCE)
        self._most_rows = max(2 * self._columns_kept, most_rows)
        self._moments = State.empty(0)  # the pooled state, but without columns and scale
        self._rows = PooledRows.of(self._moments)  # R if the states do not keep Σ; and the scale of standardised states
        self._holds_several_states = False

    @property
    def weight(self) -> float:
        """The sum of the weights of the states."""
        return self._moments.weight

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        self._moments = replace(self._moments, weight=self.weight * share)

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state, which counts with this share of its weight. The share and the weight must not be 0.

        Means, variances and, if states keep it, Σ are pooled in `_moments`. If states keep no Σ, the columns of their C
        become rows of `_rows`. When `_rows` has too many rows, they are replaced by their leading axes.
        """
        before = self._moments
        added_weight = state.weight * share
        weight = before.weight + added_weight
        past_share = before.weight / weight
        new_share = added_weight / weight
        is_first = past_share == 0
        if is_first:
            moments = state
            self._rows = PooledRows.of(state)  # if the state keeps Σ, only the scale in these rows is used
        else:
            self._holds_several_states = True
            moments, weighted_difference = pool_moments(before, state, past_share, new_share)
            if moments.covariance is None:
                self._rows = self._rows.with_state(state, past_share, new_share, weighted_difference)
        self._moments = replace(
            moments,
            C=np.zeros((0, 0)),  # the columns and the scale are in `_rows`
            scale=None,
            weight=weight,
            count=before.count + state.count,
            # the sum of the squared shares of all messages
            concentration=past_share**2 * before.concentration + new_share**2 * state.concentration,
            clipped=before.clipped + state.clipped,
        )
        if self._rows.row_count > self._most_rows:
            self._rows = PooledRows.of(self.pooled_state())

    def state(self, columns: int, dtype: Any = np.float64) -> State:
        """Return the pooled state for a model, with up to `columns` columns of C. The weight must not be 0.

        If several states were pooled and none has the covariance of two entries, it is estimated from other entries.
        A single state stays as it was learned.
        """
        moments = self._moments
        if self._holds_several_states:
            moments = _complete_covariance(moments)
        state = axes.decompose(self._with_columns(moments, columns), columns)
        return replace(state, C=state.C.astype(dtype, copy=False))

    def pooled_state(self) -> State:
        """Return the pooled state, so that it can be added to another pool. The weight must not be 0."""
        return self._with_columns(self._moments, self._columns_kept)

    def _with_columns(self, moments: State, columns: int) -> State:
        """Return the pooled moments as a state, with the scale and the columns C that they lack.

        1. A standardised stream gets the scale that follows from the pooled variances of the entries.
        2. If Σ is not kept, C gets up to `columns` leading axes of `_rows`, which has the columns of all pooled states.
           If Σ is kept, C stays empty: the axes can be computed from Σ.
        """
        state = replace(moments, C=np.zeros((len(moments.mean), 0)))
        is_standardised = self._rows.scale is not None
        if is_standardised:
            state, _ = rescale(state, state.entry_variances)
        if state.covariance is not None:
            return state
        rows = self._rows.in_units_of(state.scale)
        return replace(state, C=rows.find_columns(columns))


def pool_groups(groups: Sequence[State], columns: int) -> PooledCovariance:
    """Pool the states of groups, each with up to `columns` columns. A group has some of the streams.

    jackknife.py pools all groups but one, and takes the differences between such pools for sampling errors. If rows
    were replaced by their leading axes, the pools would also differ by what is left out. So up to `MOST_SVD_ROWS` rows
    are kept.
    """
    pool = PooledCovariance(columns, most_rows=MOST_SVD_ROWS)
    for group in groups:
        pool.add(group)
    return pool


def _complete_covariance(state: State) -> State:
    """Fill in the covariances of pairs of entries of which no state has one, and limit correlations to ±1."""
    if state.known is None or state.covariance is None:
        return state
    d = len(state.mean)
    S = triangle.unpack(state.covariance, d)
    known_shares = triangle.unpack(state.known, d)  # of the weight; above 0 if a message has shown both entries
    # If no message has shown both entries of a pair, messages with filled entries may still have given it a covariance.
    has_covariance = (known_shares > 0) | (S != 0)
    completed = missing.complete_covariance(S, has_covariance)
    return replace(state, covariance=limit_correlations(completed)[np.tril_indices(d)])
