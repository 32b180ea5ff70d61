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
from streampca.pca.learning_config import SPARE_WITHOUT_COVARIANCE
from streampca.pca.pooled_moments import pool_moments
from streampca.pca.pooled_rows import UNCUT_ROWS, PooledRows
from streampca.pca.scaling import rescale
from streampca.pca.state import State


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
        self._moments = State.empty(0)  # the pooled state, but without columns and scale
        self._rows = PooledRows.of(self._moments)  # the covariance if the states do not keep Σ, and the scale
        self._holds_several_states = False

    @property
    def weight(self) -> float:
        """The sum of the weights of the states."""
        return self._moments.weight

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        self._moments = replace(self._moments, weight=self.weight * share)

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state, which counts with this share of its weight. The share and the weight must not be 0."""
        before = self._moments
        added_weight = state.weight * share
        weight = before.weight + added_weight
        past = before.weight / weight
        new = added_weight / weight
        if past:
            self._holds_several_states = True
            moments, weighted_step = pool_moments(before, state, past, new)
            if moments.covariance is None:
                self._rows = self._rows.with_state(state, past, new, weighted_step)
        else:
            moments = state
            self._rows = PooledRows.of(state)
        self._moments = replace(
            moments,
            C=before.C,
            scale=None,
            weight=weight,
            count=before.count + state.count,
            concentration=past**2 * before.concentration + new**2 * state.concentration,
            clipped=before.clipped + state.clipped,
        )
        if self._rows.row_count > self._most_rows:
            self._rows = PooledRows.of(self.pooled_state())

    def state(self, columns: int, dtype: Any = np.float64) -> State:
        """Return the pooled state for a model, with up to `columns` columns. The weight must not be 0."""
        moments = self._moments
        if self._holds_several_states:  # a single state stays as it was learned
            moments = _complete_covariance(moments)
        state = axes.decompose(self._with_columns(moments, columns), columns)
        return replace(state, C=state.C.astype(dtype, copy=False))

    def pooled_state(self) -> State:
        """Return the pooled state, so that it can be added to another pool. The weight must not be 0."""
        return self._with_columns(self._moments, self._columns_kept)

    def _with_columns(self, moments: State, columns: int) -> State:
        """Add the scale to the pooled moments and, without a covariance, up to `columns` columns C."""
        state = replace(moments, C=np.zeros((len(moments.mean), 0)))
        if self._rows.scale is not None:
            state, _ = rescale(state, state.entry_variances)
        if state.covariance is not None:
            return state
        rows = self._rows.in_units_of(state.scale)
        return replace(state, C=rows.find_columns(columns))


def pool_groups(groups: Sequence[State], columns: int) -> PooledCovariance:
    """Pool the states of groups, of up to `columns` columns.

    The pool keeps up to `UNCUT_ROWS` rows: fewer would distort the differences between merges.
    """
    pool = PooledCovariance(columns, uncut_rows=UNCUT_ROWS)
    for group in groups:
        pool.add(group)
    return pool


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
