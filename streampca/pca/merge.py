"""Merge the states of several streams into one: pooled covariance about the common mean.

With weights w_i, W = Σ w_i and m = Σ w_i m_i / W, the pooled covariance is Σ w_i/W (Σ_i + (m_i − m)(m_i − m)ᵀ). Where
Σ_i is kept this is a sum, and exact. Elsewhere Σ_i is [C | F][C | F]ᵀ; the columns of all states are put side by side,
and cuts keep the memory constant: docs/mathematics.md, section 7, has their cost. Shares of gaps are pooled like the
mean.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.pca import axes
from streampca.pca.arrays import F64, Array, power_of_two
from streampca.pca.blocked import triangle
from streampca.pca.state import Gaps, State

_MOST_GROUPS = 8  # more cost more, and improve the estimate of the sampling error little
_FEWEST_GROUPS = 4
_GROUPED = 512  # columns of all groups, if the fewest groups do not have more: their cost grows with its cube
_SPARE = 40  # columns beyond K of a cut, at least: as many as a state has
_TOLERANCE = 1000 * float(np.finfo(np.float64).eps)  # singular values below this share of the largest are rounding
_SMALLEST = float(np.sqrt(np.finfo(np.float64).tiny))  # squares of smaller ones are subnormal
_GRADED = 1e-10  # share of the largest variance below which variances from a Gram matrix have few correct digits


class PooledCovariance:
    """The pooled covariance and mean of the states added so far."""

    def __init__(self, columns: int, uncut: int = 0) -> None:
        """For a result of K = `columns`: more than 4K columns of factors, and more than `uncut`, are cut to 2K."""
        self._cut = columns + max(columns, _SPARE)
        self._most = max(2 * self._cut, uncut)
        self._covariance: F64 | None = None  # packed; None: not kept
        self._parts: list[tuple[float, Array]] = []  # else: factors and columns (d, r), side by side J with JJᵀ = Σ
        self._mean: F64 = np.zeros(0)
        self._total_variance, self._count = 0.0, 0
        self._gaps: Gaps | None = None
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
        step = state.mean - self._mean if past else state.mean
        between = np.sqrt(past * new) * step
        if state.covariance is not None:
            self._add_covariance(past, state.covariance, new, between)
        else:
            self._add_columns(past, state.C, new, between)
        self._total_variance = past * self._total_variance + new * state.total_variance
        self._total_variance += float(between @ between) if past else 0.0
        self._gaps = _shared(self._gaps, past, state.gaps, new)
        self._mean, self.weight = self._mean + new * step if past else state.mean, W
        self._count += state.count

    def _add_covariance(self, past: float, covariance: F64, new: float, between: F64) -> None:
        if self._covariance is None:
            self._covariance = covariance
        else:
            pooled = past * self._covariance + new * covariance
            self._covariance = triangle.plus(pooled, 1.0, np.outer(between, between))[0]

    def _add_columns(self, past: float, columns: Array, new: float, between: F64) -> None:
        self._parts = [(np.sqrt(past) * factor, others) for factor, others in self._parts] if past else []
        self._parts.append((np.sqrt(new), columns))
        if past:
            self._parts.append((1.0, between[:, None]))
        if sum(columns.shape[1] for _, columns in self._parts) > self._most:
            self._parts = [(1.0, _leading(self._parts, self._cut, np.float64))]

    def state(self, columns: int | None = None, dtype: Any = np.float64) -> State:
        """The pooled state. There must be weight.

        With up to `columns` columns; None: without axes of a covariance, or with as many columns as a cut leaves.
        """
        d = len(self._mean)
        C = np.zeros((d, 0)) if self._covariance is not None else _leading(self._parts, columns or self._cut, dtype)
        state = State(
            C, self._mean, self.weight, self._total_variance, self._count, gaps=self._gaps, covariance=self._covariance
        )
        if columns and state.covariance is not None:
            state = axes.decomposed(state, columns)
            state = replace(state, C=state.C.astype(dtype, copy=False))
        return state


class Merger:
    """Merges states that are added one by one; a function of their sequence, whose memory does not grow with it.

    They are dealt into groups, like cards, so that the groups can be compared (jackknife.py).
    """

    def __init__(self, columns: int) -> None:
        """For merged states of K = `columns`."""
        size = min(_MOST_GROUPS, max(_GROUPED // (columns + 1), _FEWEST_GROUPS))
        self._groups, self._added = [PooledCovariance(columns) for _ in range(size)], 0

    def fade(self, share: float) -> None:
        """Multiply the weights of all states so far by `share`."""
        for group in self._groups:
            group.fade(share)

    def add(self, state: State, share: float = 1.0) -> None:
        """Add a state with this share of its weight; one without weight is left out."""
        if state.weight * share > 0:
            self._groups[self._added % len(self._groups)].add(state, share)
            self._added += 1

    def groups(self) -> list[State]:
        """The pooled states of the groups with weight, in float64."""
        return [group.state() for group in self._groups if group.weight > 0]


def pooled(groups: Sequence[State], columns: int, most: int, dtype: Any) -> State:
    """The groups of a `Merger` of K = `columns` as one state with at most `most` columns. There must be one group."""
    pool = PooledCovariance(columns, uncut=_GROUPED)
    for group in groups:
        pool.add(group)
    return pool.state(most, dtype)


def merge(states: Sequence[State], columns: int, decay: Sequence[float] | None = None) -> State:
    """The pooled state with at most `columns` columns; `decay` in (0, 1] discounts each state to a common time.

    `count` is the sum of the counts, `weight` is W. States without messages are left out.
    """
    groups = grouped(states, columns, decay)
    return pooled(groups, columns, columns, states[0].C.dtype) if groups else states[0]


def grouped(states: Sequence[State], columns: int, decay: Sequence[float] | None = None) -> list[State]:
    """The groups of these states, for `pooled` and for the jackknife."""
    merger = Merger(columns)
    for state, share in zip(states, decay if decay is not None else [1.0] * len(states), strict=True):
        merger.add(state, share)
    return merger.groups()


def _shared(before: Gaps | None, past: float, added: Gaps | None, new: float) -> Gaps | None:
    """The pooled shares; None stands for no gaps."""
    if before is None or added is None:
        return before.times(past) if before else added.times(new) if added else None
    return before.times(past).plus(added.times(new))


def _leading(parts: Sequence[tuple[float, Array]], most: int, dtype: Any) -> Array:
    """U diag(σ) (d, r) of up to `most` leading singular values of J that are above rounding.

    From the smaller Gram matrix where that is accurate enough.
    """
    J = np.hstack([factor * columns.astype(np.float64, copy=False) for factor, columns in parts])
    (d, n), unit = J.shape, power_of_two(float(np.abs(J).max(initial=0.0)))
    J /= unit  # so that no square overflows
    squares, U = np.linalg.eigh(J @ J.T if d <= n else J.T @ J)
    squares, U = squares[::-1][:most], U[:, ::-1][:, :most]
    if min(d, n) <= _GROUPED and not (len(squares) and squares[-1] > _GRADED * squares[0]):
        U, sigma, _ = np.linalg.svd(J, full_matrices=False)
        r = int(np.sum(sigma[:most] > max(_TOLERANCE * sigma[0], 2 * _SMALLEST / unit))) if len(sigma) else 0
        return np.ascontiguousarray(unit * U[:, :r] * sigma[:r], dtype)
    r = int(np.sum(squares > _TOLERANCE * squares[0])) if squares[0] > 0 else 0
    squares, U = squares[:r], U[:, :r]
    C = U * np.sqrt(squares) if d <= n else J @ U
    return np.ascontiguousarray(unit * C, dtype)
