"""Merge the states of several streams into one: pooled covariance about the common mean.

With weights w_i, W = Σ w_i and m = Σ w_i m_i / W, the pooled covariance is Σ w_i/W (Σ_i + (m_i − m)(m_i − m)ᵀ). Where
Σ_i is kept this is a sum, and exact. Elsewhere Σ_i is [C | F][C | F]ᵀ; the columns of all states are put side by side,
and cuts keep the memory constant (docs/mathematics.md, section 7). Shares of missing entries are pooled like the mean.

The sampling error of the merged model is estimated by a jackknife: the streams are dealt into G groups of weights w_j,
and the model is compared with those of all groups but one, whose axes Rayleigh–Ritz finds near its own:

    error² = 1/G Σ_j (W/w_j − 1) sin²(model without group j, model),

which for equal weights is (G − 1)/G Σ_j sin². The covariance without group j is Σ_−j = Σ_{i≠j} w_i/(W − w_j)
(Σ_i + δ_i δ_iᵀ) − ε εᵀ, with the distances δ_i of the groups' means from m, and ε = δ_j w_j/(W − w_j).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.pca import axes, missing
from streampca.pca.arrays import F64, Array, packed_diagonal, power_of_two
from streampca.pca.blocked import ritz, triangle
from streampca.pca.learning import SPARE
from streampca.pca.scaling import rescaled
from streampca.pca.state import State

FEWEST = 4  # streams, and groups; fewer say little about an error
_MOST_GROUPS = 8  # more cost more, and improve the estimate of the sampling error little
_GROUPED = 640  # columns of all groups, if the fewest groups do not have more: their cost grows with its cube
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
        size = min(_MOST_GROUPS, max(_GROUPED // (columns + 1), FEWEST))
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
        pool = PooledCovariance(self._columns, uncut=_GROUPED)
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
    if whole > _GROUPED or (0 < len(variance) == min(most, whole) and variance[-1] > _GRADED * variance[0]):
        return np.asarray(C, np.float64)
    _, sigma, axes_of_rows = np.linalg.svd(rows, full_matrices=False)
    r = int(np.sum(sigma[:most] > max(_RANK_TOLERANCE * sigma[0], 2 * _SMALLEST))) if whole else 0
    return np.ascontiguousarray((sigma[:r, None] * axes_of_rows[:r]).T)


@dataclass(frozen=True, eq=False)
class SamplingError:
    """Estimated errors of a model's axes: their distance from the axes of the distribution of its messages."""

    subspace: float  # expected Σ sin² of the principal angles between the two subspaces, at most k
    axes: F64  # (k,) standard error of each axis: an angle in radians, at most π/2


def sampling_error(groups: Sequence[State], merged: State, components: int) -> SamplingError | None:
    """The error of the leading axes of the merged groups of a `StateMerger`; `merged` has `GUARD` more, if there are.

    None with fewer than four groups or without variance. Axes without variance are arbitrary: their error is π/2, and
    the error of the subspace counts the others alone.
    """
    rank = min(components, merged.rank)
    if len(groups) < FEWEST or not rank:
        return None
    weights = np.array([group.weight for group in groups])
    weights /= weights.sum()
    U, unit = np.asarray(ritz.orthonormal(merged.C.astype(np.float64)), np.float64), power_of_two(merged.total_variance)
    covariances = [_Covariance(group, merged, unit) for group in groups]
    subspace, squares = 0.0, np.zeros(rank)
    for j, w in enumerate(weights):
        cosines = U[:, :rank].T @ _axes_without(j, covariances, weights, U, rank)
        factor = (1 / w - 1) / len(weights)
        subspace += factor * max(rank - float((cosines**2).sum()), 0.0)
        squares += factor * (1 - cosines.diagonal() ** 2).clip(0)
    angles = np.arcsin(np.sqrt(squares.clip(0, 1)))
    return SamplingError(min(subspace, float(rank)), np.append(angles, np.full(components - rank, np.pi / 2)))


class _Covariance:
    """The covariance of a group about the mean of all, in units of the total variance, and of the entries of all."""

    def __init__(self, group: State, merged: State, unit: float) -> None:
        scale = 1.0 if merged.scale is None else merged.scale
        self.step = scale * (group.mean - merged.mean) / np.sqrt(unit)
        root = group.C if group.scale is None else group.C * (scale / group.scale)[:, None]
        self._root = root.astype(np.float64, copy=False) / np.sqrt(unit)
        self._square = None
        if group.covariance is not None:
            self._square = triangle.square(group.covariance, len(merged.mean), merged.scale) / unit
        self._known = (
            1.0 if group.known is None or self._square is None else triangle.square(group.known, len(merged.mean))
        )
        self.is_late = self._square is not None and group.known is not None

    def part(self, weight: float) -> tuple[F64, F64]:
        """N and N times the covariance about the mean of all, of this weight, where entries have begun late."""
        known = weight * self._known * np.ones((len(self.step), len(self.step)))
        return known, known * (self._square + np.outer(self.step, self.step))

    def times(self, X: F64) -> F64:
        """(Σ_j + δ_j δ_jᵀ) X."""
        of_group = self._root @ (self._root.T @ X) if self._square is None else self._square @ X
        return np.asarray(of_group + self.step[:, None] * (self.step @ X))


def _axes_without(j: int, covariances: Sequence[_Covariance], weights: F64, U: F64, rank: int) -> F64:
    """The leading axes (d, rank) of all groups but one; U (d, m) are those of all."""
    rest = 1 - weights[j]
    moved = covariances[j].step * weights[j] / rest

    def times(X: F64) -> F64:
        others = [w * c.times(X) for i, (w, c) in enumerate(zip(weights, covariances, strict=True)) if i != j]
        return np.asarray(np.sum(others, axis=0) / rest - moved[:, None] * (moved @ X))

    if any(c.is_late for c in covariances):
        parts = [c.part(w) for i, (w, c) in enumerate(zip(weights, covariances, strict=True)) if i != j]
        known, square = sum(N for N, _ in parts), sum(S for _, S in parts)
        step = sum(N.diagonal() * c.step for (N, _), c in zip(parts, (c for i, c in enumerate(covariances) if i != j)))
        step = step / np.where(known.diagonal() > 0, known.diagonal(), 1.0)
        without = square / np.where(known > 0, known, 1.0) - np.outer(step, step)
        return np.asarray(np.linalg.eigh(without)[1][:, ::-1][:, :rank])
    small = 2 * U.shape[1] < len(U)
    basis = np.asarray(ritz.orthonormal(np.hstack([U, times(U)])) if small else np.eye(len(U)), np.float64)
    vectors = np.linalg.eigh(basis.T @ times(basis))[1]
    return np.asarray(basis @ vectors[:, ::-1][:, :rank])
