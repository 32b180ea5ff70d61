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
_GRADED = 1e-10  # share of the largest variance below which variances from a Gram matrix have few correct digits


class PooledCovariance:
    """The pooled covariance and mean of the states added so far."""

    def __init__(self, columns: int, uncut: int = 0) -> None:
        """Pools states of up to `columns` columns. More than twice `columns` (at least 40) and `uncut` rows are cut."""
        self._cut = max(columns, SPARE)
        self._most = max(2 * self._cut, uncut)
        self._pooled = State.empty(0)  # without C and D
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
        pooled, added = self._pooled, state.weight * share
        W = self.weight + added
        past, new = self.weight / W, added / W
        if pooled.known is not None or state.known is not None:
            return self._add_late(state, past, new, W)
        mean, other = (pooled.mean, state.mean) if past else (state.mean, state.mean)
        between = np.sqrt(past * new) * (other - mean)
        self._scale = state.scale if self._scale is None else self._scale
        covariance, variances = pooled.covariance, pooled.variances
        if state.covariance is None:
            variances = self._add_rows(state, past, new, between)
        else:
            before = 0.0 if covariance is None else past * covariance
            covariance = before + new * state.covariance + triangle.outer(between)
        self._pooled = State(
            pooled.C,
            mean + new * (other - mean),
            W,
            past * pooled.total_variance + new * state.total_variance + float(between @ between),
            pooled.count + state.count,
            past**2 * pooled.concentration + new**2 * state.concentration,
            pooled.clipped + state.clipped,
            _pooled(pooled.missing, past, state.missing, new, 0.0),
            covariance,
            variances=variances,
        )
        self._shorten()

    def _add_late(self, state: State, past: float, new: float, W: float) -> None:
        """Add a state where entries have begun late: pairs count by N, the share of the weight that knows them."""
        pooled, d = self._pooled if past else replace(state, weight=0.0), len(state.mean)
        size = d if state.covariance is None else d * (d + 1) // 2
        ones = np.ones(size)
        old, add = past * (ones if pooled.known is None else pooled.known), new * (ones if state.known is None else state.known)
        known = old + add
        part = np.where(known > 0, add / np.where(known > 0, known, 1.0), 0.0)
        of_entries = part if size == d else part[packed_diagonal(d)]
        step = state.mean - pooled.mean
        near, far = of_entries * step, (1 - of_entries) * step
        covariance, variances = None, None
        self._scale = state.scale if self._scale is None else self._scale
        if state.covariance is None or pooled.covariance is None:
            variances = self._add_rows(state, past, new, np.sqrt(past * new) * step)
            if variances is not None:
                b = 0.0 if pooled.variances is None else pooled.variances
                variances = (1 - part) * (b + near**2) + part * (state.variances + far**2)
            total = past * pooled.total_variance + new * state.total_variance + past * new * float(step @ step)
        else:
            covariance = (1 - part) * (pooled.covariance + triangle.outer(near)) + part * (state.covariance + triangle.outer(far))
            total = float(covariance[packed_diagonal(d)].sum())
        self._pooled = replace(
            pooled, mean=pooled.mean + near, weight=W, total_variance=total, count=self._pooled.count + state.count,
            concentration=past**2 * pooled.concentration + new**2 * state.concentration,
            clipped=self._pooled.clipped + state.clipped, missing=_pooled(self._pooled.missing, past, state.missing, new, 0.0),
            covariance=covariance, variances=variances, known=None if known.min() > 1 - 1e-9 else known,
        )  # fmt: skip
        self._shorten()

    def _shorten(self) -> None:
        if sum(len(part) for _, part in self._rows) > self._most:
            cut = self.state()
            self._rows, self._scale = [(1.0, cut.C.T)], cut.scale

    def _add_rows(self, state: State, past: float, new: float, between: F64) -> F64 | None:
        """Add a factor and the rank-one part of the means. Returns the variances of the entries, if standardised."""
        rows, variances = state.C.T, self._pooled.variances
        if self._scale is not None and state.scale is not None and state.variances is not None:
            before = 0.0 if variances is None else past * variances
            variances = before + new * state.variances + np.square(between)
            rows, between = rows * (self._scale / state.scale), between * self._scale
        self._rows = [(np.sqrt(past) * factor, part) for factor, part in self._rows]
        self._rows += [(np.sqrt(new), rows), (1.0, between[None])][: 2 if past else 1]
        return variances

    def state(self, columns: int | None = None, dtype: Any = np.float64) -> State:
        """The pooled state. There must be weight.

        With up to `columns` columns; None: without axes of a covariance, or with as many columns as a cut leaves.
        """
        state, rows = replace(self._pooled, C=np.zeros((len(self._pooled.mean), 0))), self._rows
        if state.known is not None and state.covariance is not None:
            d = len(state.mean)
            S, known = (triangle.square(part, d) for part in (state.covariance, state.known))
            state = replace(state, covariance=missing.cut(missing.completed(S, known))[np.tril_indices(d)])
        if self._scale is not None:
            state, scale = rescaled(state)
            rows = [(factor, part * (scale / self._scale)) for factor, part in rows]
        if state.covariance is None:
            state = replace(state, C=_leading(rows, columns or self._cut))
        elif columns:
            state = axes.decomposed(state, columns)
        return replace(state, C=state.C.astype(dtype, copy=False))


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
