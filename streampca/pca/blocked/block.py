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
from streampca.pca.blocked.recurrence import PLAIN, TRANSPOSED, learn_padded, product

SKETCH_SIZE = 16  # number of random sums of a block's rows, in which new directions are searched


class BlockResult(NamedTuple):
    """The results of one pass over a block."""

    Y: Array  # (n, d): the rows √c·y; YᵀY is the block's share of the covariance
    C: Array  # (d, K), after Algorithm 1
    sketch: Array  # (d, SKETCH_SIZE): each row √c·y is added to one of the columns, with a fixed random sign
    explained: F64  # (n,): ‖y‖² − ‖r‖² of each message, with the C before the message
    norm: F64  # (n,): ‖v − m‖² of each message
    kept: F64  # (n,): the share of v − m that clipping has left
    mean: F64  # (d,), after the block
    total_variance: float  # tr Σ after the block
    pinv_error: float  # the largest entry of |S CᵀC − I|, columns scaled to length one: how far S is from (CᵀC)⁻¹


def learn(
    V: Array, C: Array, mean: F64, total_variance: float, weights: Weights, smallest_variance: float, Y: Array
) -> BlockResult:
    """Learn the messages V (n, d) one by one: each moves the mean and C (d, K).

    Y (n, d) gets the centred messages y, times the roots of their weights c.
    """
    n, d = V.shape
    # With d columns, C explains every message.
    has_all_directions = C.shape[1] == d
    K = 0 if has_all_directions else C.shape[1]
    kept_by_median = np.ones(n)
    if total_variance <= smallest_variance:  # the stream has no variance yet
        if n >= centring.UNCLIPPED_MESSAGES:
            V, kept_by_median = centring.move_near_median(V)
        weights = weights._replace(reach=np.full(n, np.inf))  # clips nothing
    C_and_rows = np.empty((K + part_size(K), d), V.dtype)  # Cᵀ above a part
    C_and_rows[:K] = C[:, :K].T
    squared_lengths = np.square(C[:, :K], dtype=np.float64).sum(axis=0)
    mean = mean.copy()
    sketch = np.zeros((SKETCH_SIZE, d), V.dtype)
    explained = np.zeros(n)
    norm = np.zeros(n)
    kept = np.zeros(n)
    S, next_total_variance = _learn(
        V=as_kernel_input(V),
        C_and_rows=C_and_rows,
        S=np.diag(1 / squared_lengths),  # (CᵀC)⁻¹, because the columns of C are orthogonal
        mean=mean,
        weights=weights,
        total_variance=float(total_variance),
        smallest_variance=float(smallest_variance),
        sums_of_rows=draw_sketch_sums(n),
        Y=Y,
        sketch=sketch,
        explained=explained,
        norm=norm,
        kept=kept,
    )
    if has_all_directions:  # ‖y‖² is (1−a)‖v − m‖²
        explained = norm * (1 - weights.a)
    if K:
        C = C_and_rows[:K].T
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
    """Return the number of messages in a part: near K = `columns`, for which the work is least."""
    largest_power_of_two = (1 << columns.bit_length()) // 2
    return min(max(16, largest_power_of_two), 128)


@cache
def draw_sketch_sums(n: int) -> NDArray[np.int64]:
    """Draw for each of n rows the index of its sum in the sketch, and its sign: (n, 2)."""
    random = np.random.default_rng(0)
    indices = random.integers(SKETCH_SIZE, size=n)
    signs = random.choice([-1, 1], n)
    return np.column_stack([indices, signs])


def _measure_inverse_error(S: F64, C: Array) -> float:
    """Measure how far S is from (CᵀC)⁻¹, with the columns of C scaled to length one."""
    C = C.astype(np.float64, copy=False)
    length = np.linalg.norm(C, axis=0)
    U = C / length
    LSL = length[:, None] * S * length  # L = diag(length); this is (UᵀU)⁻¹ if S is (CᵀC)⁻¹
    nearly_identity = LSL @ (U.T @ U)
    return float(np.abs(nearly_identity - np.eye(len(nearly_identity))).max(initial=0.0))


@compiled_without_lock
def _learn(
    V: Array, C_and_rows: Array, S: F64, mean: F64, weights: Weights, total_variance: float, smallest_variance: float,
    sums_of_rows: Any, Y: Array, sketch: Array, explained: F64, norm: F64, kept: F64,
) -> tuple[F64, float]:  # fmt: skip
    """Learn the messages V (n, d) part by part; return S = (CᵀC)⁻¹ and tr Σ after them.

    Updates C and the mean, and fills in Y and the arguments after it.
    """
    n = len(V)
    K = len(S)
    part_size = len(C_and_rows) - K
    for first in range(0, n, part_size):
        end = min(first + part_size, n)
        C_and_part = C_and_rows[: K + end - first]
        rows = C_and_part[K:]
        total_variance = centre_rows(
            V[first:end], mean, weights, first, total_variance, smallest_variance, rows, norm[first:end],
            kept[first:end],
        )  # fmt: skip
        if K:
            PG = product(rows, C_and_part, TRANSPOSED)  # P = rows · C and G = rows · rowsᵀ
            # X are the coordinates of the messages, and p is Cᵀy before each.
            X, Z, p, S = learn_padded(PG[:, :K], PG[:, K:], S, weights.eta[first:end])
            for s in range(end - first):
                for j in range(K):
                    explained[first + s] += X[s, j] * p[s, j]
            _update_C(C_and_part, X, Z)
        _add_to_sketch(rows, weights.c[first:end], sums_of_rows[first:end], Y[first:end], sketch)
    return S, total_variance


@compiled_within
def _update_C(C_and_rows: Array, X: F64, Z: F64) -> None:  # noqa: N802
    """Update C after the messages Y: C ← C + (Y − XCᵀ)ᵀZ. `C_and_rows` is Cᵀ above Y."""
    K = len(C_and_rows) - len(X)
    d = C_and_rows.shape[1]
    Y = C_and_rows[K:]
    x = np.empty((len(X), K), C_and_rows.dtype)
    z = np.empty((K, len(X)), C_and_rows.dtype)
    for s in range(len(X)):
        for j in range(K):
            x[s, j] = X[s, j]
            z[j, s] = Z[s, j]
    residual = product(x, C_and_rows[:K], PLAIN)  # XCᵀ
    for s in range(len(X)):
        for j in range(d):
            residual[s, j] = Y[s, j] - residual[s, j]  # Y − XCᵀ
    change = product(z, residual, PLAIN)  # transposed change of C
    for i in range(K):
        for j in range(d):
            C_and_rows[i, j] += change[i, j]


@compiled_within
def _add_to_sketch(rows: Array, c: F64, sums_of_rows: Any, Y: Array, sketch: Array) -> None:
    """Write the rows, times √c, to Y (b, d), and add each to a sum in the sketch.

    `sums_of_rows` (b, 2): index of the sum, and sign.
    """
    for s in range(len(rows)):
        factor = math.sqrt(c[s])
        sum_index = sums_of_rows[s, 0]
        sign = np.float64(sums_of_rows[s, 1])
        for j in range(rows.shape[1]):
            Y[s, j] = factor * rows[s, j]
        for j in range(rows.shape[1]):
            sketch[sum_index, j] += sign * Y[s, j]
