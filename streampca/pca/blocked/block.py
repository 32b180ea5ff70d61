"""One pass over a block: messages are centred and learned by Algorithm 1, in parts that stay in the processor's cache.

A part has few messages, so that G = YYᵀ is small (recurrence.py). Each part is learned with the C after the part before
it. This equals Algorithm 1 message by message, to rounding. docs/mathematics.md, sections 2 and 9.
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

SKETCH = 16  # number of random combinations of a block's rows, among which new directions are looked for


class BlockResult(NamedTuple):
    """A block after one pass over it."""

    Y: Array  # (n, d): the rows √c·y, of which the block's share of the covariance is YᵀY
    C: Array  # (d, K), after Algorithm 1
    sketch: Array  # (d, SKETCH): sums of the rows √c·y with fixed random signs, each in one of the columns
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

    A `total_variance` of at most `smallest` counts as none. Fills in Y (n, d).
    """
    n, d = V.shape
    is_complete = C.shape[1] == d
    K = 0 if is_complete else C.shape[1]  # with d columns no message would move C, so none of them is learned
    kept_by_median = np.ones(n)
    if total_variance <= smallest:  # without variance, distances from the mean cannot be compared with it
        if n >= centring.SHORT:
            V, kept_by_median = centring.move_near_median(V)
        weights = weights._replace(reach=np.full(n, np.inf))
    CY = np.empty((K + part_size(K), d), V.dtype)
    CY[:K] = C[:, :K].T
    squared_lengths = np.square(C[:, :K], dtype=np.float64).sum(axis=0)
    mean = mean.copy()
    sketch = np.zeros((SKETCH, d), V.dtype)
    of_messages = np.zeros((3, n))  # `explained`, `norm` and `kept` of each message
    S, total = _learn(
        V=as_kernel_input(V),
        CY=CY,
        S=np.diag(1 / squared_lengths),
        mean=mean,
        weights=weights,
        scale=(float(total_variance), float(smallest)),
        combinations=draw_combinations(n),
        Y=Y,
        sketch=sketch,
        of_messages=of_messages,
    )
    explained, norm, kept = of_messages
    if is_complete:
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
        total_variance=total,
        pinv_error=_measure_inverse_error(S[:K, :K], C[:, :K]),
    )


def part_size(columns: int) -> int:
    """Return how many messages are learned together for K = `columns`.

    For each message, products with G cost in proportion to this number, and the new C to K² divided by it.
    """
    return min(max(16, 1 << columns.bit_length() >> 1), 128)


@cache
def draw_combinations(n: int) -> NDArray[np.int64]:
    """Draw for each of n rows the combination to which it is added, and its sign: (n, 2), always the same."""
    random = np.random.default_rng(0)
    combinations = random.integers(SKETCH, size=n)
    signs = random.choice([-1, 1], n)
    return np.column_stack([combinations, signs])


def _measure_inverse_error(S: F64, C: Array) -> float:
    """Return the largest entry of |S CᵀC − I|, with the columns of C scaled to length one."""
    C = C.astype(np.float64, copy=False)
    length = np.linalg.norm(C, axis=0)
    unit = C / length
    identity = (length[:, None] * S * length) @ (unit.T @ unit)  # but for the error
    return float(np.abs(identity - np.eye(len(identity))).max(initial=0.0))


@compiled_without_lock
def _learn(
    V: Array, CY: Array, S: F64, mean: F64, weights: Weights, scale: tuple[float, float], combinations: Any, Y: Array,
    sketch: Array, of_messages: F64,
) -> tuple[F64, float]:  # fmt: skip
    """Learn the messages V (n, d) part by part: move C in CY, the rows [C | Yᵀ]ᵀ, and return S = (CᵀC)⁻¹ and tr Σ.

    CY has room for the rows Y of a part below the rows of Cᵀ, so that P and G are one product. Fills in Y (n, d), the
    sketch (SKETCH, d), and `explained`, `norm` and `kept` of each message as the rows of `of_messages` (3, n). Updates
    the mean. `scale` is tr Σ before the block, and the tr Σ that counts as none.
    """
    n = len(V)
    K = len(S)
    total, smallest = scale
    explained, norm, kept = of_messages
    part = len(CY) - K
    for first in range(0, n, part):
        end = min(first + part, n)
        used = K + end - first  # rows of CY: the last part may be shorter
        y = CY[K:used]
        total = centre_rows(V[first:end], mean, weights, first, total, smallest, y, norm[first:end], kept[first:end])
        if K:
            PG = product(y, CY[:used], T)
            X, Z, p, S = learn_padded(PG[:, :K], PG[:, K:], S, weights.eta[first:end])
            for s in range(end - first):
                for j in range(K):
                    explained[first + s] += X[s, j] * p[s, j]
            _move(CY[:used], X, Z)
        _add_to_sketch(y, weights.c[first:end], combinations[first:end], Y[first:end], sketch)
    return S, total


@compiled_within
def _move(CY: Array, X: F64, Z: F64) -> None:
    """Move C after a part: C ← C(I − XᵀZ) + YᵀZ, in the rows CY of [C | Yᵀ]ᵀ."""
    K = len(CY) - len(X)
    Y = CY[K:]
    x = np.empty((len(X), K), CY.dtype)  # X without its padding, in the precision of C
    z = np.empty((K, len(X)), CY.dtype)  # Zᵀ, likewise
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
    """Fill in Y (b, d), the rows √c·y, and add each row, with its sign, to its combination in the sketch."""
    for s in range(len(y)):
        factor = math.sqrt(c[s])
        combination = combinations[s, 0]
        sign = np.float64(combinations[s, 1])
        for j in range(y.shape[1]):
            Y[s, j] = factor * y[s, j]
        for j in range(y.shape[1]):
            sketch[combination, j] += sign * Y[s, j]
