"""Merge the states of several streams into one: pooled covariance about the common mean.

With weights w_i, W = Σ w_i and m = Σ w_i m_i / W, the pooled covariance is Σ w_i/W (Σ_i + (m_i − m)(m_i − m)ᵀ). Where
Σ_i is kept this is a sum, and exact. Elsewhere Σ_i is [C | F][C | F]ᵀ; the columns of all states are put side by side,
and cuts keep the memory constant (docs/mathematics.md, section 7). Shares of missing entries are pooled like the mean.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.pca import axes
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import ritz, triangle
from streampca.pca.jackknife import FEWEST
from streampca.pca.learning import SPARE
from streampca.pca.scaling import rescaled
from streampca.pca.state import MissingShares, State

_MOST_GROUPS = 8  # more cost more, and improve the estimate of the sampling error little
_GROUPED = 640  # columns of all groups, if the fewest groups do not have more: their cost grows with its cube
_RANK_TOLERANCE = 1000 * float(np.finfo(np.float64).eps)  # larger than ritz's: sums of many states
_SMALLEST = float(np.sqrt(np.finfo(np.float64).tiny))  # squares of smaller singular values are subnormal
_GRADED = 1e-10  # share of the largest variance below which variances from a Gram matrix have few correct digits


class PooledCovariance:
    """The pooled covariance and mean of the states added so far."""

    def __init__(self, columns: int, uncut: int = 0) -> None:
        """Pools states of up to `columns` columns. More than twice `columns` (at least 40) and `uncut` rows are cut."""
        self._cut = max(columns, SPARE)
        self._most = max(2 * self._cut, uncut)
        self._covariance: F64 | None = None  # packed; None: not kept
        self._rows: list[tuple[float, Array]] = []  # else: factors and rows (r, d), one above the other Jᵀ with JJᵀ = Σ
        self._mean: F64 = np.zeros(0)
        self._total_variance, self._count, self._concentration, self._clipped = 0.0, 0, 0.0, 0
        self._missing: MissingShares | None = None
        self._scale: F64 | None = None  # D of the rows; None: not standardised
        self._variances: F64 | None = None  # (d,): of the entries, where factors are standardised
        self.weight = 0.0  # W

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        self.weight *= share

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state with this share of its weight; one without weight is left out."""
        added = state.weight * share
        if added <= 0:
            return
        W = self.weight + added
        past, new = self.weight / W, added / W
        mean, other = self._means(state) if past else (state.mean, state.mean)
        between = np.sqrt(past * new) * (other - mean)
        self._scale = state.scale if self._scale is None else self._scale
        if state.covariance is not None:
            d = len(mean)
            before = np.zeros(d * (d + 1) // 2) if self._covariance is None else past * self._covariance
            self._covariance = before + new * state.covariance + triangle.outer(between)
        else:
            self._add_rows(state, past, new, between)
        self._total_variance = past * self._total_variance + new * state.total_variance + float(between @ between)
        self._missing = _pooled(self._missing, past, state.missing, new)
        self._concentration = past**2 * self._concentration + new**2 * state.concentration
        self._mean, self.weight = mean + new * (other - mean), W
        self._count += state.count
        self._clipped += state.clipped
        if sum(len(part) for _, part in self._rows) > self._most:
            cut = self.state()
            self._rows, self._scale = [(1.0, cut.C.T)], cut.scale

    def _add_rows(self, state: State, past: float, new: float, between: F64) -> None:
        """Add a factor and the rank-one part of the means."""
        rows = state.C.T
        if self._scale is not None and state.scale is not None and state.variances is not None:
            before = 0.0 if self._variances is None else past * self._variances
            self._variances = before + new * state.variances + np.square(between)
            rows, between = rows * (self._scale / state.scale), between * self._scale
        self._rows = [(np.sqrt(past) * factor, part) for factor, part in self._rows]
        self._rows += [(np.sqrt(new), rows), (1.0, between[None])][: 2 if past else 1]

    def _means(self, state: State) -> tuple[F64, F64]:
        """The mean so far and that of a state; an entry that one of them has never seen has the other's."""
        mean, other = self._mean, state.mean
        if self._missing:
            mean = np.where(self._missing.never, other, mean)
        if state.missing:
            other = np.where(state.missing.never, mean, other)
        return mean, other

    def state(self, columns: int | None = None, dtype: Any = np.float64) -> State:
        """The pooled state. There must be weight.

        With up to `columns` columns; None: without axes of a covariance, or with as many columns as a cut leaves.
        """
        d, rows = len(self._mean), self._rows
        numbers = self.weight, self._total_variance, self._count, self._concentration, self._clipped
        state = State(np.zeros((d, 0)), self._mean, *numbers, self._missing, self._covariance, None, self._variances)
        if self._scale is not None:
            state, scale = rescaled(state)
            rows = [(factor, part * (scale / self._scale)) for factor, part in rows]
        if self._covariance is None:
            state = replace(state, C=_leading(rows, columns or self._cut))
        elif columns:
            state = axes.decomposed(state, columns)
        return replace(state, C=state.C.astype(dtype, copy=False))


class StateMerger:
    """Merges states of K = `columns`, one by one; a function of their sequence, whose memory does not grow with it.

    They are dealt into groups, like cards, so that the groups can be compared (jackknife.py).
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


def _pooled(before: MissingShares | None, past: float, added: MissingShares | None, new: float) -> MissingShares | None:
    """The pooled shares; None: nothing was missing."""
    none = MissingShares.none(1, seen=True)
    return (before or none).times(past).plus((added or none).times(new)) if before or added else None


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
