"""Merge the states of several streams into one: pooled covariance about the common mean.

With weights w_i, W = Σ w_i and m = Σ w_i m_i / W, the pooled covariance is Σ w_i/W (Σ_i + (m_i − m)(m_i − m)ᵀ). Where
Σ_i is kept this is a sum, and exact. Elsewhere Σ_i is [C | F][C | F]ᵀ; the columns of all states are put side by side,
and cuts keep the memory constant (docs/mathematics.md, section 7). Shares of missing entries are pooled like the mean.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.pca import axes, missing
from streampca.pca.arrays import F64, Array, packed_diagonal
from streampca.pca.blocked import ritz, triangle
from streampca.pca.learning import SPARE
from streampca.pca.scaling import rescaled
from streampca.pca.state import State

FEWEST = 4  # streams, and groups; fewer say little about an error
_MOST_GROUPS = 8  # more cost more, and improve the estimate of the sampling error little
GROUPED = 640  # columns of all groups, if the fewest groups do not have more: their cost grows with its cube
_RANK_TOLERANCE = 1000 * float(np.finfo(np.float64).eps)  # larger than ritz's: sums of many states
_SMALLEST = float(np.sqrt(np.finfo(np.float64).tiny))  # squares of smaller singular values are subnormal
_WHOLE = 1 - 1e-9  # N of pairs that were always known, less rounding
_FILLED = 1e-15  # of the weight of a pair that messages show: what a pair counts that no message shows
_RARE = 0.1  # share of the messages: an entry that fewer show counts less in a merge
_GRADED = 1e-10  # share of the largest variance below which variances from a Gram matrix have few correct digits


class PooledCovariance:
    """The pooled covariance and mean of the states added so far.

    Where entries have begun late or are shown by few messages, states weigh differently in each pair of entries. Then
    the order in which states are added changes the result, because each is pooled with the sum of those before it.
    """

    def __init__(self, columns: int, uncut: int = 0) -> None:
        """Pools states of up to `columns` columns. More than twice `columns` (at least 40) and `uncut` rows are cut."""
        self._cut = max(columns, SPARE)
        self._most = max(2 * self._cut, uncut)
        self._pooled = State.empty(0)  # without C and D
        self._is_sum = False  # whether more than one state was added
        self._rows: list[tuple[float, Array]] = []  # where Σ is not kept: factors and rows (r, d) of Jᵀ with JJᵀ = Σ
        self._scale: F64 | None = None  # D of the rows; None: not standardised

    @property
    def weight(self) -> float:
        """W."""
        return self._pooled.weight

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        self._pooled = replace(self._pooled, weight=self.weight * share)

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state with this share of its weight; neither may be 0."""
        before, added = self._pooled, state.weight * share
        weight = before.weight + added
        past, new = before.weight / weight, added / weight
        if past:
            self._is_sum = True
            moments = self._with_moments(state, past, new)
        else:
            self._scale, self._rows = state.scale, [(1.0, state.C.T)]
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
        if sum(len(part) for _, part in self._rows) > self._most:
            cut = self.state()
            self._rows, self._scale = [(1.0, cut.C.T)], cut.scale

    def _with_moments(self, state: State, past: float, new: float) -> State:
        """The pooled state with the means, the covariance, N and shares of missing entries of one more state."""
        before, d = self._pooled, len(state.mean)
        step, part = state.mean - before.mean, _part_of_new(before, state, past, new)
        kept: F64 | float = past  # shares of each entry, as `part` is of each pair
        taken: F64 | float = new
        if part is not None:
            taken = part if len(part) == d else part[packed_diagonal(d)]
            kept = 1 - taken
        between = np.sqrt(kept * taken) * step
        total = past * before.total_variance + new * state.total_variance + float(between @ between)
        covariance, variances = None, None
        if before.variances is not None and state.variances is not None:
            variances = kept * before.variances + taken * state.variances + np.square(between)
        if before.covariance is None or state.covariance is None:
            self._add_rows(state, past, new, between)
        elif part is None:
            covariance = past * before.covariance + new * state.covariance + triangle.outer(between)
        else:  # about the pooled mean, to which the two means have moved by their own shares
            of_before = before.covariance + triangle.outer(taken * step)
            of_state = state.covariance + triangle.outer(kept * step)
            covariance = (1 - part) * of_before + part * of_state
            total = float(covariance[packed_diagonal(d)].sum())
        known = _pooled(before.known, past, state.known, new, 1.0)
        return replace(
            before,
            mean=before.mean + taken * step,
            total_variance=total,
            covariance=covariance,
            variances=variances,
            missing=_pooled(before.missing, past, state.missing, new, 0.0),
            known=None if known is None or known.min() > _WHOLE else known,
        )

    def _add_rows(self, state: State, past: float, new: float, between: F64) -> None:
        """Add a factor, and the rank-one part of the means."""
        rows = state.C.T
        if self._scale is not None and state.scale is not None:
            rows, between = rows * (self._scale / state.scale), between * self._scale
        self._rows = [(np.sqrt(past) * factor, part) for factor, part in self._rows]
        self._rows += [(np.sqrt(new), rows), (1.0, between[None])]

    def state(self, columns: int | None = None, dtype: Any = np.float64) -> State:
        """The pooled state. There must be weight.

        With up to `columns` columns; None: without axes of a covariance, or with as many columns as a cut leaves. With
        `columns`, pairs of entries of which no state says anything follow from the entries that have met both.
        """
        state, rows = replace(self._pooled, C=np.zeros((len(self._pooled.mean), 0))), self._rows
        if columns and self._is_sum:
            state = _completed(state)
        if self._scale is not None:
            state, scale = rescaled(state)
            rows = [(factor, part * (scale / self._scale)) for factor, part in rows]
        if state.covariance is None:
            state = replace(state, C=_leading(rows, columns or self._cut))
        elif columns:
            state = axes.decomposed(state, columns)
        return replace(state, C=state.C.astype(dtype, copy=False))


def _part_of_new(before: State, state: State, past: float, new: float) -> F64 | None:
    """The part of the pooled moments that a state contributes to each pair, packed, or without Σ to each entry.

    None: `new` everywhere.
    """
    of_before, of_state = _counted(before), _counted(state)
    if of_before is None and of_state is None:
        return None
    added = new * (1.0 if of_state is None else of_state)
    both = added + past * (1.0 if of_before is None else of_before)
    return np.asarray(added / np.where(both > 0, both, 1.0))


def _counted(state: State) -> F64 | None:
    """How much each pair, or without Σ each entry, counts in a merge; None: all fully.

    A pair counts by N, which says for how long it has been known. But a single message begins that, so an entry that
    less than a tenth of the messages show counts no more than the square of ten times their share. A pair that no
    message shows together counts only beside another such pair: Σ holds what filled messages say of it.
    """
    d = len(state.mean)
    entries = np.ones(d) if state.known_entries is None else state.known_entries
    if state.missing is not None:
        entries = np.minimum(entries, np.square((1 - state.missing) / _RARE))
    if state.known is None and entries.min() >= 1:
        return None
    if state.covariance is None:
        return entries
    least = np.minimum.outer(entries, entries)[np.tril_indices(d)]
    if state.known is None:
        return least
    filled = np.where(state.covariance != 0, _FILLED * least, 0.0)
    return np.where(state.known > 0, np.minimum(state.known, least), filled)


def _completed(state: State) -> State:
    """The state with what Σ lacks about pairs that no state has met, and correlations of at most 1."""
    if state.known is None or state.covariance is None:
        return state
    d = len(state.mean)
    S, known = triangle.square(state.covariance, d), triangle.square(state.known, d)
    S = missing.completed(S, np.where(S != 0, 1.0, known))
    return replace(state, covariance=missing.cut(S)[np.tril_indices(d)])


class StateMerger:
    """Merges states of K = `columns`, one by one; a function of their sequence, whose memory does not grow with it.

    They are dealt into groups, like cards, so that the groups can be compared.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        size = min(_MOST_GROUPS, max(GROUPED // (columns + 1), FEWEST))
        self._groups, self._added = [PooledCovariance(columns) for _ in range(size)], 0

    @property
    def weight(self) -> float:
        return sum(group.weight for group in self._groups)

    def fade(self, share: float) -> None:
        for group in self._groups:
            group.fade(share)

    def add(self, state: State, share: float = 1.0) -> None:
        if state.weight * share > 0:
            self._groups[self._added % len(self._groups)].add(state, share)
            self._added += 1

    def groups(self) -> list[State]:
        """The pooled states of the groups with weight, in float64."""
        return [group.state() for group in self._groups if group.weight > 0]

    def state(self, most: int, dtype: Any) -> State:
        """All states as one with at most `most` columns. There must be weight."""
        pool = PooledCovariance(self._columns, uncut=GROUPED)
        for group in self.groups():
            pool.add(group)
        return pool.state(most, dtype)


def _pooled(before: F64 | None, past: float, added: F64 | None, new: float, none: float) -> F64 | None:
    """Pooled shares (n,), of which None are all `none`."""
    if before is None and added is None:
        return None
    return np.asarray(past * (none if before is None else before) + new * (none if added is None else added))


def _leading(parts: Sequence[tuple[float, Array]], most: int) -> F64:
    """U diag(σ) (d, r) of up to `most` leading singular values of J that are above rounding, from the rows of Jᵀ.

    From the smaller Gram matrix where that is accurate enough, or J too large for more.
    """
    rows = np.vstack([factor * part.astype(np.float64, copy=False) for factor, part in parts])
    C, whole = ritz.strongest(rows, ritz.Limits(most, _RANK_TOLERANCE, _SMALLEST)), min(rows.shape)
    variance = np.square(C).sum(axis=0)
    if whole > GROUPED or (0 < len(variance) == min(most, whole) and variance[-1] > _GRADED * variance[0]):
        return np.asarray(C, np.float64)
    _, sigma, axes_of_rows = np.linalg.svd(rows, full_matrices=False)
    r = int(np.sum(sigma[:most] > max(_RANK_TOLERANCE * sigma[0], 2 * _SMALLEST))) if whole else 0
    return np.ascontiguousarray((sigma[:r, None] * axes_of_rows[:r]).T)
