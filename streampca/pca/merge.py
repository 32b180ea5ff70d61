"""Merge the states of several streams into one: pooled covariance about the common mean.

With weights w_i, W = Σ w_i and m = Σ w_i m_i / W, the pooled covariance is Σ w_i/W (Σ_i + (m_i − m)(m_i − m)ᵀ). Where
Σ_i is kept this is a sum, and exact. Otherwise Σ_i is [C | F][C | F]ᵀ, plus the state's mean variance outside of these
columns in all other directions. The columns of all states are put side by side, and reduced to the leading axes when
there are too many. If states have known an entry for different times, w_i differs for each pair of entries: it is the
weight for which the state has known both (docs/mathematics.md, section 7).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.pca import axes, missing
from streampca.pca.arrays import F64, Array, limit_correlations, packed_diagonal, take_entries
from streampca.pca.blocked import ritz, triangle
from streampca.pca.learning import SPARE
from streampca.pca.scaling import change_of_variances, rescale
from streampca.pca.state import State, add_variance

FEWEST = 4  # with fewer streams, or groups of streams, their differences say too little about an error
_MOST_GROUPS = 8  # more groups take more time, and hardly improve the estimate of the sampling error
UNCUT_ROWS = 640  # up to so many rows are decomposed exactly: the time grows with the cube of their number
_RANK_TOLERANCE = 1000 * float(np.finfo(np.float64).eps)  # larger than in ritz.py, because many states are summed
_SMALLEST = float(np.sqrt(np.finfo(np.float64).tiny))  # squares of smaller singular values are subnormal
_ALWAYS_KNOWN = 1 - 1e-9  # N from which a pair counts as always known, despite rounding
_FILLED_WEIGHT = 1e-15  # N of a pair that no message shows: what filled messages say of it hardly counts
_RARE = 0.1  # share of the messages: if fewer show an entry, the entry counts less in a merge
_GRADED = 1e-10  # share of the largest variance below which variances from a Gram matrix have few correct digits


class PooledCovariance:
    """The pooled covariance and mean of the states added so far.

    If entries have begun late or are shown by few messages, a state has a weight of its own in each pair of entries.
    Then the order of the states changes the result, because each state is pooled with the sum of the states before it.
    """

    def __init__(self, columns: int, uncut_rows: int = 0) -> None:
        """Prepare to pool states of up to `columns` columns.

        If Σ is not kept, the columns of the states are collected as rows. When there are more than twice `columns` (at
        least 40) and more than `uncut_rows` of them, they are replaced by the leading axes of their sum.
        """
        self._cut_to = max(columns, SPARE)  # rows that remain after such a replacement
        self._most_rows = max(2 * self._cut_to, uncut_rows)
        self._pooled = State.empty(0)  # without C and D
        self._is_sum = False  # whether more than one state was added
        # If Σ is not kept, the pooled covariance is JJᵀ plus `_variance_outside` in all directions.
        self._rows: list[tuple[float, Array]] = []  # parts of Jᵀ: a factor, and rows (r, d) to multiply by it
        self._variance_outside = 0.0
        self._scale: F64 | None = None  # D of the rows; None: not standardised

    @property
    def weight(self) -> float:
        """The sum of the weights of the states."""
        return self._pooled.weight

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        self._pooled = replace(self._pooled, weight=self.weight * share)

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state with this share of its weight; neither may be 0."""
        before = self._pooled
        added = state.weight * share
        weight = before.weight + added
        past = before.weight / weight
        new = added / weight
        if past:
            self._is_sum = True
            moments = self._pool_moments(state, past, new)
        else:  # the first state
            self._set_rows(state)
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
        if sum(len(rows) for _, rows in self._rows) > self._most_rows:
            self._set_rows(self.state())

    def _set_rows(self, state: State) -> None:
        """Replace the rows by the columns of a state."""
        self._variance_outside = state.variance_outside
        self._rows = [(1.0, add_variance(state.C, -self._variance_outside).T)]
        self._scale = state.scale

    def _pool_moments(self, state: State, past: float, new: float) -> State:
        """Pool the means, covariances and shares of missing entries with those of one more state.

        The states before have the share `past` of the weight, and `state` has the share `new`. Each pair of entries,
        and each entry, has shares of its own if the states have known it for different times.
        """
        before = self._pooled
        d = len(state.mean)
        step = state.mean - before.mean
        pair_share = _compute_added_share(before, state, past, new)
        entry_share: F64 | float = new
        past_entry_share: F64 | float = past
        if pair_share is not None:
            entry_share = take_entries(pair_share, d)
            past_entry_share = 1 - entry_share
        between = np.sqrt(past_entry_share * entry_share) * step  # its squares are the variances between the two means
        total_variance = past * before.total_variance + new * state.total_variance + float(between @ between)
        variances = covariance = None
        if before.variances is not None and state.variances is not None:
            variances = past_entry_share * before.variances + entry_share * state.variances + np.square(between)
        if before.covariance is None or state.covariance is None:
            self._add_rows(state, past, new, between)
        elif pair_share is None:
            covariance = past * before.covariance + new * state.covariance + triangle.pack_outer(between)
        else:
            # The means move by the shares of entries, which differ from those of pairs. So each Σ is first taken about
            # the new mean, and then the pairs are pooled.
            covariance_before = before.covariance + triangle.pack_outer(entry_share * step)
            covariance_added = state.covariance + triangle.pack_outer(past_entry_share * step)
            covariance = (1 - pair_share) * covariance_before + pair_share * covariance_added
            total_variance = float(covariance[packed_diagonal(d)].sum())
        known = _pool_shares(before.known, past, state.known, new, if_none=1.0)
        return replace(
            before,
            mean=before.mean + entry_share * step,
            total_variance=total_variance,
            covariance=covariance,
            variances=variances,
            missing=_pool_shares(before.missing, past, state.missing, new, if_none=0.0),
            known=None if known is None or known.min() > _ALWAYS_KNOWN else known,
        )

    def _add_rows(self, state: State, past: float, new: float, between: F64) -> None:
        """If Σ is not kept, collect the columns of a state as rows, and one row for the step between the means.

        The rows before get the share `past` of the weight, and those of the state the share `new`. `between` (d,) is
        the root of the variance between the two means.
        """
        outside = state.variance_outside
        rows = add_variance(state.C, -outside).T
        if self._scale is not None and state.scale is not None:  # all rows are in the units of the first state
            units = self._scale / state.scale
            rows = rows * units
            outside *= change_of_variances(units)
            between = between * self._scale
        self._rows = [(np.sqrt(past) * factor, earlier) for factor, earlier in self._rows]
        self._rows += [(np.sqrt(new), rows), (1.0, between[None])]
        self._variance_outside = past * self._variance_outside + new * outside

    def state(self, columns: int | None = None, dtype: Any = np.float64) -> State:
        """Return the pooled state, with up to `columns` columns. There must be weight.

        If `columns` is given, the covariance of two entries that no state has known together is computed from the
        entries that link them. If `columns` is None, a state with Σ has no columns, and a state without Σ has as many
        as rows are cut to.
        """
        state = replace(self._pooled, C=np.zeros((len(self._pooled.mean), 0)))
        rows = self._rows
        outside = self._variance_outside
        if columns and self._is_sum:  # the state of a single stream stays as it was learned
            state = _complete(state)
        if self._scale is not None:
            state, scale = rescale(state)
            units = scale / self._scale
            rows = [(factor, of_state * units) for factor, of_state in rows]
            outside *= change_of_variances(units)
        if state.covariance is None:
            C = _find_leading_axes(rows, columns or self._cut_to)
            state = replace(state, C=add_variance(C, outside))
        elif columns:
            state = axes.decompose(state, columns)
        return replace(state, C=state.C.astype(dtype, copy=False))


def _compute_added_share(before: State, state: State, past: float, new: float) -> F64 | None:
    """Compute the share of an added state in the pooled covariance of each pair, packed; without Σ, of each entry (d,).

    `past` and `new` are the shares of the two states in the weight. Returns None if the share is `new` everywhere.
    """
    known_before = _compute_known_shares(before)
    known_added = _compute_known_shares(state)
    if known_before is None and known_added is None:
        return None
    added = new * (1.0 if known_added is None else known_added)
    both = added + past * (1.0 if known_before is None else known_before)
    return np.asarray(added / np.where(both > 0, both, 1.0))


def _compute_known_shares(state: State) -> F64 | None:
    """Compute the share of a state's weight with which each pair counts in a merge, packed; without Σ, each entry (d,).

    Returns None if all of the weight counts everywhere. A pair counts by N, the share of the weight for which both
    entries have been known. An entry is known from its first message on, however few follow. So if less than a tenth of
    the messages show an entry, it counts at most by the square of ten times their share. A pair that no message shows
    together has in Σ only what filled messages say of it. It counts so little that any state with such messages
    outweighs it.
    """
    d = len(state.mean)
    entries = state.known_entries
    if state.missing is not None:
        entries = np.minimum(entries, np.square((1 - state.missing) / _RARE))
    if state.known is None and entries.min() >= 1:
        return None
    if state.covariance is None:
        return entries
    of_rarer_entry = np.minimum.outer(entries, entries)[np.tril_indices(d)]
    if state.known is None:
        return of_rarer_entry
    # Where Σ_ij is 0, nothing is known of the pair, not even from filled messages.
    if_filled = np.where(state.covariance != 0, _FILLED_WEIGHT * of_rarer_entry, 0.0)
    return np.where(state.known > 0, np.minimum(state.known, of_rarer_entry), if_filled)


def _complete(state: State) -> State:
    """Fill in the covariances of pairs that no state has known together, and limit correlations to ±1."""
    if state.known is None or state.covariance is None:
        return state
    d = len(state.mean)
    S = triangle.unpack(state.covariance, d)
    known = triangle.unpack(state.known, d)
    has_covariance = np.where(S != 0, 1.0, known)  # also of a pair that only filled messages show
    S = missing.complete_covariance(S, has_covariance)
    return replace(state, covariance=limit_correlations(S)[np.tril_indices(d)])


class StateMerger:
    """Merges states of K = `columns` one by one, in memory that does not grow with their number.

    The states go to the groups in turn. The differences between groups are what `jackknife` estimates errors from.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        count = min(_MOST_GROUPS, max(UNCUT_ROWS // (columns + 1), FEWEST))
        self._groups = [PooledCovariance(columns) for _ in range(count)]
        self._added = 0  # states

    @property
    def weight(self) -> float:
        """The sum of the weights of the states."""
        return sum(group.weight for group in self._groups)

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        for group in self._groups:
            group.fade(share)

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state with this share of its weight; nothing is added if this is 0."""
        if state.weight * share > 0:
            self._groups[self._added % len(self._groups)].add(state, share)
            self._added += 1

    def groups(self) -> list[State]:
        """Return the pooled states of the groups with weight, in float64."""
        return [group.state() for group in self._groups if group.weight > 0]

    def state(self, most: int, dtype: Any) -> State:
        """Return the merged state, with at most `most` columns. There must be weight."""
        pool = PooledCovariance(self._columns, uncut_rows=UNCUT_ROWS)
        for group in self.groups():
            pool.add(group)
        return pool.state(most, dtype)


def _pool_shares(before: F64 | None, past: float, added: F64 | None, new: float, *, if_none: float) -> F64 | None:
    """Compute the mean of the shares (n,) that two states keep; the states have `past` and `new` of the weight.

    If a state keeps none, each of its shares is `if_none`. If both keep none, the result is None.
    """
    if before is None and added is None:
        return None
    before_or_same = if_none if before is None else before
    added_or_same = if_none if added is None else added
    return np.asarray(past * before_or_same + new * added_or_same)


def _find_leading_axes(parts: Sequence[tuple[float, Array]], most: int) -> F64:
    """Compute the leading axes of the rows of Jᵀ, times their singular values: U diag(σ) of J (d, r).

    `parts` are factors and the rows that they multiply. Up to `most` singular values above rounding are taken. They
    come from the smaller Gram matrix if that is accurate enough, or if J is too large for a decomposition of its own.
    """
    rows = np.vstack([factor * part.astype(np.float64, copy=False) for factor, part in parts])
    C = ritz.decompose_rows(rows, ritz.Limits(columns=most, rounding=_RANK_TOLERANCE, smallest=_SMALLEST))
    full_rank = min(rows.shape)
    variance = np.square(C).sum(axis=0)
    has_all = 0 < len(variance) == min(most, full_rank)  # otherwise the Gram matrix may have lost the smallest axes
    if full_rank > UNCUT_ROWS or (has_all and variance[-1] > _GRADED * variance[0]):
        return np.asarray(C, np.float64)
    _, sigma, axes_of_rows = np.linalg.svd(rows, full_matrices=False)
    r = 0
    if full_rank:
        r = int(np.sum(sigma[:most] > max(_RANK_TOLERANCE * sigma[0], 2 * _SMALLEST)))
    return np.ascontiguousarray((sigma[:r, None] * axes_of_rows[:r]).T)
