"""One pass over a block: messages are centred and learned by Algorithm 1, in parts that stay in the processor's cache.

A part has few messages, so that G = YYᵀ is small (recurrence.py); each part meets the C that the parts before it have
left. This equals Algorithm 1 message by message, to rounding. docs/mathematics.md, sections 2 and 9.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring
from streampca.pca.blocked.centring import Weights, centre_rows
from streampca.pca.blocked.jit import compiled_with_free_sums, compiled_without_lock
from streampca.pca.blocked.recurrence import learn_padded, resize

SKETCH = 8  # random combinations of a block's rows, in which new directions are looked for


class BlockResult(NamedTuple):
    """A block after one pass over it."""

    Y: Array  # (n, d): the rows √c·y, of which the block's share of the covariance is YᵀY
    C: Array  # (d, K), after Algorithm 1
    sketch: Array  # (d, SKETCH): sums of the rows √c·y with fixed random signs, each in one of the columns
    explained: F64  # (n,): ‖y‖² − ‖r‖² of each message by the served columns of the C that it met
    norm: F64  # (n,): ‖v − m‖² of each message
    mean: F64  # (d,), after the block
    total_variance: float  # tr Σ after the block
    clipped: int  # messages
    pinv_error: float  # the largest entry of |S CᵀC − I|, columns scaled to length one: how far S is from (CᵀC)⁻¹


def learn(
    V: Array, C: Array, mean: F64, total_variance: float, weights: Weights, served: int, smallest: float, Y: Array
) -> BlockResult:
    """Learn the messages V (n, d) with the factor C (d, K), orthogonal columns; K may be 0.

    `served` columns count for the losses. A `total_variance` of at most `smallest` counts as none. Fills in Y (n, d).
    """
    first = total_variance <= smallest and len(V) >= centring.SHORT  # without a variance to compare with
    V, clipped = centring.near_median(V) if first else (V, 0)
    (n, d), K = V.shape, C.shape[1] if C.shape[1] < len(C) else 0  # with K = d no message would move C
    CY, sketch, sums = np.empty((K + part_of(K), d), V.dtype), np.zeros((SKETCH, d), V.dtype), np.zeros((2, n))
    CY[:K], mean, N = C[:, :K].T, mean.copy(), np.square(C[:, :K], dtype=np.float64).sum(axis=0)
    scale = (float(total_variance), float(smallest), centring.SHARE if total_variance > smallest else np.inf)
    rows = np.require(V, None, ["C", "A"]).view()
    rows.flags.writeable = False  # one type for compiled code, whatever array the caller has
    S, total, more = _learn(
        rows, CY, (np.diag(N), np.diag(1 / N)), served, mean, weights, scale, combinations(n), Y, sketch, sums
    )
    explained, norm = sums
    explained = norm * (1 - weights.a) if C.shape[1] == d else explained
    C = CY[:K].T
    return BlockResult(Y, C, sketch.T, explained, norm, mean, total, clipped + more, _inverse_error(S[:K, :K], C))


def part_of(columns: int) -> int:
    """Messages that are learned together: products with G cost as many, and the new C costs K²/part of them."""
    return min(max(32, 1 << columns.bit_length() >> 1), 256)


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
    V: Array, CY: Array, small: tuple[F64, F64], served: int, mean: F64, weights: Weights,
    scale: tuple[float, float, float], combinations: Any, Y: Array, sketch: Array, sums: F64,
) -> tuple[F64, float, int]:  # fmt: skip
    """Move C in CY = [C | Yᵀ]ᵀ, which has room for the Y of a part: so P and G are one product with it.

    Fills in Y, the sketch (SKETCH, d) and the sums (2, n), `explained` and `norm`; updates the mean. `small`: N = CᵀC
    and S. `scale`: as in `centre_rows`. Returns S, tr Σ, and the messages clipped.
    """
    n, (N, S), total, clipped = len(V), small, scale[0], 0
    K, (explained, norm), eta = len(N), sums, weights.eta
    part = len(CY) - K
    for i in range(0, n, part):
        e = min(i + part, n)
        y, limits = CY[K : K + e - i], (total, scale[1], scale[2])
        total, more = centre_rows(V[i:e], mean, weights.a[i:e], eta[i:e], weights.before[i:e], limits, y, norm[i:e])
        clipped += more
        if K:
            PG = y @ CY[: K + e - i].T
            X, Z, p, growth, S = learn_padded(PG[:, :K], PG[:, K:], S, eta[i:e])
            if served < K:
                _explain(PG, N, served, explained[i:e])
                _grow(N, X, growth)
            else:
                for s in range(e - i):
                    for j in range(K):
                        explained[i + s] += X[s, j] * p[s, j]
            _move(CY[: K + e - i], X, Z)
        _scale(y, weights.c[i:e], combinations[i:e], Y[i:e], sketch)
    return S, total, clipped


@compiled_with_free_sums
def _move(CY: Array, X: F64, Z: F64) -> None:
    """C ← C(I − XᵀZ) + YᵀZ for the rows of [C | Yᵀ]ᵀ."""
    K = len(CY) - len(X)
    Y, x, z = CY[K:], np.empty((len(X), K), CY.dtype), np.empty((K, len(X)), CY.dtype)
    for s in range(len(X)):
        for j in range(K):
            x[s, j] = X[s, j]
            z[j, s] = Z[s, j]
    residual = x @ CY[:K]
    for s in range(len(X)):
        for j in range(CY.shape[1]):
            residual[s, j] = Y[s, j] - residual[s, j]
    change = z @ residual
    for i in range(K):
        for j in range(CY.shape[1]):
            CY[i, j] += change[i, j]


@compiled_with_free_sums
def _scale(y: Array, c: F64, combinations: Any, Y: Array, sketch: Array) -> None:
    """Fill in Y (b, d), the rows √c·y, and add them to the sketch."""
    for s in range(len(y)):
        factor, column, sign = math.sqrt(c[s]), combinations[s, 0], np.float64(combinations[s, 1])
        for j in range(y.shape[1]):
            Y[s, j] = factor * y[s, j]
        for j in range(y.shape[1]):
            sketch[column, j] += sign * Y[s, j]


@compiled_with_free_sums
def _grow(N: F64, X: F64, growth: F64) -> None:
    """N = CᵀC after messages with these x (b, ·) and growths (b,)."""
    for s in range(len(growth)):
        for i in range(len(N)):
            for j in range(len(N)):
                N[i, j] += growth[s] * X[s, i] * X[s, j]


@compiled_with_free_sums
def _explain(P: Array, N: F64, k: int, explained: F64) -> None:
    """‖y‖² − ‖r‖² of messages by the first k columns, which fall in length: p N⁻¹ p."""
    X = np.linalg.solve(resize(N, k, k), resize(P.T, k, len(P)))
    for s in range(len(P)):
        for j in range(k):
            explained[s] += P[s, j] * X[j, s]
