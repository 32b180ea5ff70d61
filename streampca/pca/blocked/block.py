"""One pass over a block: messages are centred and learned by Algorithm 1, in parts that stay in the processor's cache.

A part has few messages, so that G = YYᵀ is small (recurrence.py); each part meets the C that the parts before it have
left. This equals Algorithm 1 message by message, to rounding. docs/mathematics.md, sections 2 and 9.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array, of_one_type
from streampca.pca.blocked import centring
from streampca.pca.blocked.centring import Weights, centre_rows
from streampca.pca.blocked.jit import compiled_within, compiled_without_lock
from streampca.pca.blocked.recurrence import N, T, learn_padded, product

SKETCH = 16  # random combinations of a block's rows, in which new directions are looked for


class BlockResult(NamedTuple):
    """A block after one pass over it."""

    Y: Array  # (n, d): the rows √c·y, of which the block's share of the covariance is YᵀY
    C: Array  # (d, K), after Algorithm 1
    sketch: Array  # (d, SKETCH): sums of the rows √c·y with fixed random signs, each in one of the columns
    explained: F64  # (n,): ‖y‖² − ‖r‖² of each message by the C that it met
    norm: F64  # (n,): ‖v − m‖² of each message
    kept: F64  # (n,): the share of v − m that clipping has left
    mean: F64  # (d,), after the block
    total_variance: float  # tr Σ after the block
    pinv_error: float  # the largest entry of |S CᵀC − I|, columns scaled to length one: how far S is from (CᵀC)⁻¹


def learn(
    V: Array, C: Array, mean: F64, total_variance: float, weights: Weights, smallest: float, Y: Array
) -> BlockResult:
    """Learn the messages V (n, d) with the factor C (d, K), orthogonal columns; K may be 0.

    A `total_variance` of at most `smallest` counts as none. Fills in Y (n, d).
    """
    (n, d), K = V.shape, C.shape[1] if C.shape[1] < len(C) else 0  # with K = d no message would move C
    begun = np.ones(n)
    if total_variance <= smallest:  # there is no variance to compare with
        V, begun = centring.near_median(V) if n >= centring.SHORT else (V, begun)
        weights = weights._replace(reach=np.full(n, np.inf))
    CY, sketch, of_messages = np.empty((K + part_of(K), d), V.dtype), np.zeros((SKETCH, d), V.dtype), np.zeros((3, n))
    CY[:K], mean, N = C[:, :K].T, mean.copy(), np.square(C[:, :K], dtype=np.float64).sum(axis=0)
    rows, scale = of_one_type(V), (float(total_variance), float(smallest))
    S, total = _learn(rows, CY, np.diag(1 / N), mean, weights, scale, combinations(n), Y, sketch, of_messages)
    explained, norm, kept = of_messages
    explained = norm * (1 - weights.a) if C.shape[1] == d else explained
    C = CY[:K].T if K else C
    return BlockResult(Y, C, sketch.T, explained, norm, begun * kept, mean, total, _inverse_error(S[:K, :K], C[:, :K]))


def part_of(columns: int) -> int:
    """Messages that are learned together: products with G cost as many, and the new C costs K²/part of them."""
    return min(max(16, 1 << columns.bit_length() >> 1), 128)


@cache
def combinations(n: int) -> NDArray[np.int64]:
    """For each of n rows the column of the sketch to which it is added, and the sign (n, 2); the same each time."""
    random = np.random.default_rng(0)
    return np.column_stack([random.integers(SKETCH, size=n), random.choice([-1, 1], n)])


def _inverse_error(S: F64, C: Array) -> float:
    """The largest entry of |S CᵀC − I|, with columns of C scaled to length one."""
    C = C.astype(np.float64, copy=False)
    length = np.linalg.norm(C, axis=0)
    unit = C / length
    error = (length[:, None] * S * length) @ (unit.T @ unit)
    return float(np.abs(error - np.eye(len(error))).max(initial=0.0))


@compiled_without_lock
def _learn(
    V: Array, CY: Array, S: F64, mean: F64, weights: Weights, scale: tuple[float, float], combinations: Any, Y: Array,
    sketch: Array, of_messages: F64,
) -> tuple[F64, float]:  # fmt: skip
    """Move C in CY = [C | Yᵀ]ᵀ, which has room for the Y of a part: so P and G are one product with it.

    Fills in Y, the sketch (SKETCH, d) and what is said of each message (3, n): `explained`, `norm` and `kept`; updates
    the mean. `scale`: tr Σ, and the tr Σ that counts as none. Returns S = (CᵀC)⁻¹ and tr Σ.
    """
    n, K, (total, smallest), (explained, norm, kept) = len(V), len(S), scale, of_messages
    part = len(CY) - K
    for i in range(0, n, part):
        e = min(i + part, n)
        y = CY[K : K + e - i]
        total = centre_rows(V[i:e], mean, weights, i, total, smallest, y, norm[i:e], kept[i:e])
        if K:
            PG = product(y, CY[: K + e - i], T)
            X, Z, p, S = learn_padded(PG[:, :K], PG[:, K:], S, weights.eta[i:e])
            for s in range(e - i):
                for j in range(K):
                    explained[i + s] += X[s, j] * p[s, j]
            _move(CY[: K + e - i], X, Z)
        _scale(y, weights.c[i:e], combinations[i:e], Y[i:e], sketch)
    return S, total


@compiled_within
def _move(CY: Array, X: F64, Z: F64) -> None:
    """C ← C(I − XᵀZ) + YᵀZ for the rows of [C | Yᵀ]ᵀ."""
    K = len(CY) - len(X)
    Y, x, z = CY[K:], np.empty((len(X), K), CY.dtype), np.empty((K, len(X)), CY.dtype)
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
def _scale(y: Array, c: F64, combinations: Any, Y: Array, sketch: Array) -> None:
    """Fill in Y (b, d), the rows √c·y, and add them to the sketch."""
    for s in range(len(y)):
        factor, column, sign = math.sqrt(c[s]), combinations[s, 0], np.float64(combinations[s, 1])
        for j in range(y.shape[1]):
            Y[s, j] = factor * y[s, j]
        for j in range(y.shape[1]):
            sketch[column, j] += sign * Y[s, j]
