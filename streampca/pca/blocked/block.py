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
from streampca.pca.blocked.jit import compiled_for_compiled_callers, compiled_without_lock
from streampca.pca.blocked.recurrence import PLAIN, TRANSPOSED, learn_padded, product

RANDOM_SUM_COUNT = 16  # number of random sums of a block's rows, in which new directions are searched


class BlockResult(NamedTuple):
    """The results of one pass over a block."""

    Y: Array  # (n, d): the rows √c·y; YᵀY is the block's share of the covariance
    C: Array  # (d, K), after Algorithm 1
    random_sums: Array  # (d, RANDOM_SUM_COUNT): each row √c·y is added to one column, with a fixed random sign
    explained_square: F64  # (n,): ‖y‖² − ‖r‖² of each message, with the C before the message
    squared_distance: F64  # (n,): ‖v − m‖² of each message, after clipping
    kept_share: F64  # (n,): the share of v − m that clipping has left
    mean: F64  # (d,), after the block
    total_variance: float  # tr Σ after the block
    pinv_error: float  # the largest entry of |S CᵀC − I|, columns scaled to length one: how far S is from (CᵀC)⁻¹


def learn(
    V: Array, C: Array, mean: F64, total_variance: float, weights: Weights, smallest_variance: float, Y: Array
) -> BlockResult:
    """Learn the messages V (n, d) one by one by Algorithm 1: each moves the mean, tr Σ and C.

        C                (d, K): orthogonal columns: axes, times their standard deviations
        mean             (d,): m, the mean before the block
        total_variance   tr Σ before the block; if not above `smallest_variance`, the stream has no variance yet
        Y                (n, d): filled in with the rows √c·y. y is the centred message, c its share of the weight at
                         the end of the block

    The message v is centred to y = √(1 − a) (v − m), where a is its weight in the mean when it arrives.
    """
    n, d = V.shape
    # If C has all d directions, C explains every message and learns nothing. Then `_learn` gets no columns.
    has_all_directions = C.shape[1] == d
    K = 0 if has_all_directions else C.shape[1]
    kept_by_median = np.ones(n)
    lacks_variance = total_variance <= smallest_variance
    if lacks_variance:
        V, weights, kept_by_median = _clip_by_median(V, weights)
    # K rows for Cᵀ, and then space for the messages that `_learn` learns at a time.
    Ct_above_rows = np.empty((K + part_size(K), d), V.dtype)
    Ct_above_rows[:K] = C[:, :K].T
    squared_lengths = np.square(C[:, :K], dtype=np.float64).sum(axis=0)
    mean = mean.copy()
    # `_learn` fills in the next four arrays and Y, and updates C and the mean in place.
    random_sums = np.zeros((RANDOM_SUM_COUNT, d), V.dtype)  # each the sum of many rows of Y, with random signs
    explained_square = np.zeros(n)  # ‖y‖² − ‖r‖²: the part of ‖y‖² that C explains; r is the residual
    squared_distance = np.zeros(n)  # ‖v − m‖² of a message v, after clipping
    kept_share = np.zeros(n)  # the share of v − m that clipping has left
    # S is (CᵀC)⁻¹, which `_learn` updates with C, and may pad with rows and columns of zeros.
    padded_S, next_total_variance = _learn(
        V=as_kernel_input(V),
        Ct_above_rows=Ct_above_rows,
        S=np.diag(1 / squared_lengths),  # the columns of C are orthogonal
        mean=mean,
        weights=weights,
        total_variance=float(total_variance),
        smallest_variance=float(smallest_variance),
        sum_and_sign_of_rows=draw_sums_and_signs(n),  # of each row: the random sum that it is added to, and its sign
        Y=Y,
        random_sums=random_sums,
        explained_square=explained_square,
        squared_distance=squared_distance,
        kept_share=kept_share,
    )
    if has_all_directions:  # C explains all of ‖y‖², which is (1 − a) ‖v − m‖²
        explained_square = squared_distance * (1 - weights.a)
    if K:
        C = Ct_above_rows[:K].T
    return BlockResult(
        Y=Y,
        C=C,
        random_sums=random_sums.T,
        explained_square=explained_square,
        squared_distance=squared_distance,
        kept_share=kept_by_median * kept_share,  # one of the factors is 1: no message is clipped in both ways
        mean=mean,
        total_variance=next_total_variance,
        pinv_error=_measure_inverse_error(padded_S[:K, :K], C[:, :K]),
    )


def _clip_by_median(V: Array, weights: Weights) -> tuple[Array, Weights, F64]:
    """Clip outliers by their distances from the median, for a stream that has no variance yet.

    The usual limit, a multiple of tr Σ, would be 0. If V (n, d) has too few messages, none is clipped. Returns the
    messages, the weights with a new `reach`, and the share of its distance from the median that each message keeps,
    (n,).
    """
    kept_share = np.ones(len(V))
    if len(V) >= centring.UNCLIPPED_MESSAGES:
        V, kept_share = centring.move_near_median(V)
    # `_learn` clips messages that are farther from the mean than `reach`. So with ∞, no message is clipped again.
    return V, weights._replace(reach=np.full(len(V), np.inf)), kept_share


def part_size(columns: int) -> int:
    """Return the number of messages in a part: near K = `columns`, for which the work is least."""
    largest_power_of_two = (1 << columns.bit_length()) // 2
    return min(max(16, largest_power_of_two), 128)


@cache
def draw_sums_and_signs(n: int) -> NDArray[np.int64]:
    """Draw, for each of the n rows of a block, the index of a random sum and a sign, (n, 2).

    Each row is added, with its sign, to its random sum. New directions are searched in these few sums of many rows.
    """
    random = np.random.default_rng(0)
    indices = random.integers(RANDOM_SUM_COUNT, size=n)
    signs = random.choice([-1, 1], n)
    return np.column_stack([indices, signs])


def _measure_inverse_error(S: F64, C: Array) -> float:
    """Measure how far S is from (CᵀC)⁻¹, with the columns of C scaled to length one.

    So the result does not depend on the lengths of the columns.
    """
    C = C.astype(np.float64, copy=False)
    length = np.linalg.norm(C, axis=0)
    U = C / length
    LSL = length[:, None] * S * length  # L = diag(length); this is (UᵀU)⁻¹ if S is (CᵀC)⁻¹
    nearly_identity = LSL @ (U.T @ U)
    return float(np.abs(nearly_identity - np.eye(len(nearly_identity))).max(initial=0.0))


@compiled_without_lock
def _learn(
    V: Array, Ct_above_rows: Array, S: F64, mean: F64, weights: Weights, total_variance: float,
    smallest_variance: float, sum_and_sign_of_rows: Any, Y: Array, random_sums: Array, explained_square: F64,
    squared_distance: F64, kept_share: F64,
) -> tuple[F64, float]:  # fmt: skip
    """Learn the messages V (n, d) in parts of b messages. Return the next S, padded with zeros, and the next tr Σ.

    Algorithm 1 learns a centred message y by a gradient step of the size h: C ← C + h (y − Cx) xᵀ, with the coordinates
    x = SCᵀy of the message. For each part:

    1. Centre the messages, which moves the mean and tr Σ. The centred messages are the rows Y_b (b, d).
    2. Compute P = Y_b · C and G = Y_b · Y_bᵀ, both by one product.
    3. Compute x and the effect of the step for each message, from P, G and S alone, without vectors of length d
       (`learn_padded`).
    4. Update C with all steps at once (`_update_C`).
    5. Write the rows, times the roots of their weights, to Y. Add each to one of a few random sums, with a random sign.
       New directions are searched later in these few sums, instead of in all rows.

        Ct_above_rows          (K + b, d): Cᵀ, which is updated, above space for the rows Y_b
        S                      (K, K): (CᵀC)⁻¹ before the block
        mean                   (d,): the mean before the block, which is updated
        total_variance         tr Σ before the block; messages are only clipped if it is above `smallest_variance`
        sum_and_sign_of_rows   (n, 2): of each row, the index of the random sum to which it is added, and its sign
        Y and all after it     results, which are filled in (`BlockResult`)
    """
    n = len(V)
    K = len(S)
    part_size = len(Ct_above_rows) - K
    for first in range(0, n, part_size):
        end = min(first + part_size, n)
        C_and_part = Ct_above_rows[: K + end - first]
        rows = C_and_part[K:]  # Y_b, into which step 1 writes
        total_variance = centre_rows(
            V[first:end], mean, weights, first, total_variance, smallest_variance, rows, squared_distance[first:end],
            kept_share[first:end],
        )  # fmt: skip
        if K:
            PG = product(rows, C_and_part, TRANSPOSED)  # step 2: [P | G]
            # Step 3. The results have a row for each message y: X has x, p has Cᵀy with the C before the message, and Z
            # has what step 4 needs.
            X, Z, p, S = learn_padded(PG[:, :K], PG[:, K:], S, weights.eta[first:end])
            for s in range(end - first):
                for j in range(K):  # x·p = ‖y‖² − ‖r‖², the square of y that C explains
                    explained_square[first + s] += X[s, j] * p[s, j]
            _update_C(C_and_part, X, Z)  # step 4
        _write_rows(rows, weights.c[first:end], sum_and_sign_of_rows[first:end], Y[first:end], random_sums)
    return S, total_variance


@compiled_for_compiled_callers
def _update_C(Ct_above_Y: Array, X: F64, Z: F64) -> None:  # noqa: N802
    """Update C by the gradient steps of b messages at once. `Ct_above_Y` (K + b, d) is Cᵀ above the messages Y.

        Cᵀ ← Cᵀ + Zᵀ(Y − XCᵀ)

    X (b, w) are the coordinates of the messages on C, with K numbers in a row and then zeros. A row of Z (b, w) is the
    coordinates of a message times the size of its step. In Algorithm 1, each step changes the residuals of the later
    messages. Z is corrected for these changes, so that one joint step has the same result (recurrence.py).
    """
    K = len(Ct_above_Y) - len(X)
    d = Ct_above_Y.shape[1]
    Y = Ct_above_Y[K:]
    # The rows of X and Z are padded with zeros. These are copies without padding, in the type of C.
    unpadded_X = np.empty((len(X), K), Ct_above_Y.dtype)
    unpadded_Z_transposed = np.empty((K, len(X)), Ct_above_Y.dtype)
    for s in range(len(X)):
        for j in range(K):
            unpadded_X[s, j] = X[s, j]
            unpadded_Z_transposed[j, s] = Z[s, j]
    residual = product(unpadded_X, Ct_above_Y[:K], PLAIN)  # XCᵀ; `PLAIN`: no factor is transposed
    for s in range(len(X)):
        for j in range(d):
            residual[s, j] = Y[s, j] - residual[s, j]  # Y − XCᵀ
    change = product(unpadded_Z_transposed, residual, PLAIN)  # transposed change of C
    for i in range(K):
        for j in range(d):
            Ct_above_Y[i, j] += change[i, j]


@compiled_for_compiled_callers
def _write_rows(rows: Array, c: F64, sum_and_sign_of_rows: Any, Y: Array, random_sums: Array) -> None:
    """Write the rows (b, d), times the roots of their weights c (b,), to Y (b, d), and add each to a random sum.

    Each row of `random_sums` becomes the sum of many rows with random signs. New directions are searched in these sums.
    `sum_and_sign_of_rows` (b, 2) has, for each row, the index of its random sum, and its sign, ±1.
    """
    for s in range(len(rows)):
        factor = math.sqrt(c[s])
        sum_index = sum_and_sign_of_rows[s, 0]
        sign = np.float64(sum_and_sign_of_rows[s, 1])
        # Two loops, so that the compiler vectorises both.
        for j in range(rows.shape[1]):
            Y[s, j] = factor * rows[s, j]
        for j in range(rows.shape[1]):
            random_sums[sum_index, j] += sign * Y[s, j]
