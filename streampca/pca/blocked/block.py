"""Learns a block in one pass: messages are centred and learned by Algorithm 1, in parts that fit the processor's cache.

A part has few messages, so that G = YYᵀ is small (recurrence.py). Each part is learned with the C that the part before
has left. This equals Algorithm 1 message by message, to rounding. docs/mathematics.md, sections 2 and 9.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array, as_kernel_input
from streampca.pca.blocked import centring
from streampca.pca.blocked.centring import Weights, centre_rows
from streampca.pca.blocked.jit import compiled_within, compiled_without_lock
from streampca.pca.blocked.recurrence import N, T, learn_padded, product

SKETCH = 16  # number of random combinations of a block's rows, in which new directions are searched


class BlockResult(NamedTuple):
    """The results of one pass over a block."""

    Y: Array  # (n, d): the rows √c·y; YᵀY is the block's share of the covariance
    C: Array  # (d, K), after Algorithm 1
    sketch: Array  # (d, SKETCH): each row √c·y is added to one of the columns, with a fixed random sign
    explained: F64  # (n,): ‖y‖² − ‖r‖² of each message, with the C before the message
    norm: F64  # (n,): ‖v − m‖² of each message
    kept: F64  # (n,): the share of v − m that clipping has left
    mean: F64  # (d,), after the block
    total_variance: float  # tr Σ after the block
    pinv_error: float  # the largest entry of |S CᵀC − I|, columns scaled to length one: how far S is from (CᵀC)⁻¹


def learn(
    V: Array, C: Array, mean: F64, total_variance: float, weights: Weights, smallest: float, Y: Array
) -> BlockResult:
    """Learn the messages V (n, d) with the factor C, whose columns (d, K) are orthogonal; K may be 0.

    Fills in Y (n, d). A `total_variance` of at most `smallest` means that the stream has no variance yet. Then messages
    are clipped by their distances from the median, unless the block is short.
    """
    n, d = V.shape
    has_all_directions = C.shape[1] == d
    K = 0 if has_all_directions else C.shape[1]  # with d columns no message would move C, so C is left out
    kept_by_median = np.ones(n)
    if total_variance <= smallest:  # distances from the mean cannot be compared with a variance
        if n >= centring.SHORT:
            V, kept_by_median = centring.move_near_median(V)
        weights = weights._replace(reach=np.full(n, np.inf))
    CY = np.empty((K + part_size(K), d), V.dtype)  # Cᵀ, and below it room for the rows of a part
    CY[:K] = C[:, :K].T
    squared_lengths = np.square(C[:, :K], dtype=np.float64).sum(axis=0)
    mean = mean.copy()
    sketch = np.zeros((SKETCH, d), V.dtype)
    of_messages = np.zeros((3, n))  # `explained`, `norm` and `kept` of each message
    S, next_total_variance = _learn(
        V=as_kernel_input(V),
        CY=CY,
        S=np.diag(1 / squared_lengths),  # (CᵀC)⁻¹ of orthogonal columns
        mean=mean,
        weights=weights,
        total_and_smallest=(float(total_variance), float(smallest)),
        combinations=draw_combinations(n),
        Y=Y,
        sketch=sketch,
        of_messages=of_messages,
    )
    explained, norm, kept = of_messages
    if has_all_directions:  # C explains the whole row, √(1−a) (v − m)
        explained = norm * (1 - weights.a)
    if K:
        C = CY[:K].T
    return BlockResult(
        Y=Y,
        C=C,
        sketch=sketch.T,
        explained=explained,
        norm=norm,
        kept=kept_by_median * kept,
        mean=mean,
        total_variance=next_total_variance,
        pinv_error=_measure_inverse_error(S[:K, :K], C[:, :K]),
    )


def part_size(columns: int) -> int:
    """Return how many messages a part has, for K = `columns`.

    The time for each message is the sum of two terms: one grows in proportion to this number, for products with G, and
    the other is K² divided by this number, for the new C.
    """
    largest_power_of_two = 1 << columns.bit_length() >> 1  # up to K
    return min(max(16, largest_power_of_two), 128)


@cache
def draw_combinations(n: int) -> NDArray[np.int64]:
    """Draw for each of n rows to which combination it is added, and with which sign: (n, 2), always the same."""
    random = np.random.default_rng(0)
    combinations = random.integers(SKETCH, size=n)
    signs = random.choice([-1, 1], n)
    return np.column_stack([combinations, signs])


def _measure_inverse_error(S: F64, C: Array) -> float:
    """Measure how far S is from (CᵀC)⁻¹: the largest entry of |S CᵀC − I|, with columns of C scaled to length one."""
    C = C.astype(np.float64, copy=False)
    length = np.linalg.norm(C, axis=0)
    unit = C / length
    nearly_identity = (length[:, None] * S * length) @ (unit.T @ unit)
    return float(np.abs(nearly_identity - np.eye(len(nearly_identity))).max(initial=0.0))


@compiled_without_lock
def _learn(
    V: Array, CY: Array, S: F64, mean: F64, weights: Weights, total_and_smallest: tuple[float, float],
    combinations: Any, Y: Array, sketch: Array, of_messages: F64,
) -> tuple[F64, float]:  # fmt: skip
    """Learn the messages V (n, d) part by part, and update C; return S = (CᵀC)⁻¹ and tr Σ after them.

    The first rows of CY are Cᵀ. Below them is room for the rows y of a part, so that P and G are one product. Fills in
    Y (n, d), the sketch (SKETCH, d), and `explained`, `norm` and `kept` of each message as the rows of `of_messages`
    (3, n). Updates the mean. `total_and_smallest` are tr Σ before the block, and the tr Σ that counts as none.
    """
    n = len(V)
    K = len(S)
    total, smallest = total_and_smallest
    explained, norm, kept = of_messages
    part = len(CY) - K
    for first in range(0, n, part):
        end = min(first + part, n)
        used = K + end - first  # rows of CY: the last part may be shorter
        y = CY[K:used]
        total = centre_rows(V[first:end], mean, weights, first, total, smallest, y, norm[first:end], kept[first:end])
        if K:
            PG = product(y, CY[:used], T)  # P = YC and G = YYᵀ side by side
            X, Z, p, S = learn_padded(PG[:, :K], PG[:, K:], S, weights.eta[first:end])
            for s in range(end - first):
                for j in range(K):  # x·p = ‖y‖² − ‖r‖²
                    explained[first + s] += X[s, j] * p[s, j]
            _move(CY[:used], X, Z)
        _add_to_sketch(y, weights.c[first:end], combinations[first:end], Y[first:end], sketch)
    return S, total


@compiled_within
def _move(CY: Array, X: F64, Z: F64) -> None:
    """Update C after a part: C ← C(I − XᵀZ) + YᵀZ. The rows of CY are Cᵀ, and below them Y."""
    K = len(CY) - len(X)
    Y = CY[K:]
    x = np.empty((len(X), K), CY.dtype)  # X without its padding, in the precision of C
    z = np.empty((K, len(X)), CY.dtype)  # Zᵀ without its padding, in the precision of C
    for s in range(len(X)):
        for j in range(K):
            x[s, j] = X[s, j]
            z[j, s] = Z[s, j]
    residual = product(x, CY[:K], N)
    for s in range(len(X)):
        for j in range(CY.shape[1]):
            residual[s, j] = Y[s, j] - residual[s, j]
    change = product(z, residual, N)
    for i in range(K):
        for j in range(CY.shape[1]):
            CY[i, j] += change[i, j]


@compiled_within
def _add_to_sketch(y: Array, c: F64, combinations: Any, Y: Array, sketch: Array) -> None:
    """Write the rows √c·y to Y (b, d), and add each row, with its sign, to its combination in the sketch."""
    for s in range(len(y)):
        factor = math.sqrt(c[s])
        combination = combinations[s, 0]
        sign = np.float64(combinations[s, 1])
        for j in range(y.shape[1]):
            Y[s, j] = factor * y[s, j]
        for j in range(y.shape[1]):
            sketch[combination, j] += sign * Y[s, j]
