"""Computes the weights of messages, centres messages, and clips them if they are too far from the mean.

A message v that keeps the share ρ of the past is learned as

    w ← ρw + 1        a = 1/w        y = √(1−a) (v − m)        m ← m + a(v − m)        Σ ← (1−a)Σ + y (a yᵀ)

so that Σ is the weighted covariance about the weighted mean m. Before that v is clipped: it is moved towards m until
‖v − m‖² ≤ max(qρw, 30) tr Σ/(1−κ). κ is the sum of the squared shares of the messages before, and tr Σ/(1−κ) is the
unbiased total variance. In the first block of a stream, v is moved towards the median, to at most ten times the median
distance. docs/mathematics.md, sections 3 and 5.
"""

import math
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled, compiled_for_compiled_callers
from streampca.pca.state import State

LARGEST_SHARE = 0.05  # q: the largest squared distance of a message, divided by tr Σ and by the weight before it
SMALLEST_REACH = 30.0  # times tr Σ: no limit is smaller; one Gaussian variable exceeds it in four of 10⁸ messages
UNCLIPPED_MESSAGES = 32  # the first messages of a stream, and shorter first blocks, are not clipped
_LARGEST_IN_MEDIAN_DISTANCES = 10.0  # largest distance from the median of a first block, in median distances


class Weights(NamedTuple):
    """Weights of the n messages of a block, and of the past: all messages before the block."""

    eta: F64  # (n,): the step size of each message, 1/w
    a: F64  # (n,): the weight of each message in the running mean when it arrives; zero without centring
    c: F64  # (n,): the share of each message in the moments at the end of the block
    past: float  # the share of the past in the moments at the end of the block
    total: float  # w, the weight of all messages at the end of the block
    reach: F64  # (n,): the largest squared distance from the mean, in units of tr Σ: a message farther away is clipped
    concentration: float  # κ, the sum of the squared shares of all messages, at the end of the block


def compute_weights(state: State, retention: F64, center: bool = True, known_share: float = 1.0) -> Weights:
    """Compute the weights of the messages of the block that follows a state.

    When a message is learned, it multiplies the weight of all earlier messages by its `retention` (n,). A message v
    that is far from the mean m is clipped, so that no message dominates. The limit of ‖v − m‖² / tr Σ is

        max(LARGEST_SHARE · known_share · (weight of earlier messages), SMALLEST_REACH) / (1 − κ)

    tr Σ times the weight of earlier messages is the sum of their squared distances, so ‖v − m‖² is limited to a share
    of this sum. `known_share` is the smallest share of the state's weight for which an entry of the block was known.

    Each message has a share of the weight, and κ (`concentration`) is the sum of the squared shares: 1/n for n messages
    with equal shares. tr Σ about the learned mean is too small by the factor 1 − κ, so the limit is divided by this
    factor. Without centring, the limit is not divided.
    """
    return _compute_weights(
        weight=state.weight,
        concentration=state.concentration,  # the sum of the squared shares of all messages
        count=state.count,
        retention=retention,
        largest_share=LARGEST_SHARE * known_share,
        center=center,
    )


def move_near_median(V: Array) -> tuple[Array, F64]:
    """Clip messages V (n, d) by their distances from m, which has the median of each entry.

    A message farther from m than ten times the median distance is moved towards m, to this limit. Returns the messages,
    and the share of its distance from m that each message keeps, (n,).
    """
    median = np.median(V, axis=0)
    differences = V.astype(np.float64) - median
    # Each difference is divided by its largest number before it is squared, because squares could overflow.
    largest = np.abs(differences).max(axis=1)
    divisors = np.maximum(largest, np.finfo(np.float64).tiny)[:, None]  # not 0 if a message equals m
    distances = largest * np.linalg.norm(differences / divisors, axis=1)
    positive = distances[distances > 0]  # with the zeros of equal messages, the median distance could be 0
    limit = _LARGEST_IN_MEDIAN_DISTANCES * np.median(positive) if len(positive) else np.inf
    is_far = distances > limit
    kept = np.ones(len(V))
    if is_far.any():
        V = V.copy()
        kept[is_far] = limit / distances[is_far]
        V[is_far] = median + differences[is_far] * kept[is_far, None]
    return V, kept


def move_entries_near_medians(V: Array) -> Array:
    """Clip each entry of V (n, d) to ten median distances from its median; NaN stays."""
    median = _compute_medians(V)
    distances = np.abs(V - median)
    distances[distances == 0] = np.nan  # otherwise the limit could be 0
    limit = _LARGEST_IN_MEDIAN_DISTANCES * _compute_medians(distances)
    all_equal_or_missing = np.isnan(limit)  # then all distances are NaN, and nothing is clipped
    limit = np.where(all_equal_or_missing, np.inf, limit)
    return np.clip(V, median - limit, median + limit)


def _compute_medians(V: Array) -> F64:
    """Compute the median of each column of V (n, d) without its NaN."""
    counts = (~np.isnan(V)).sum(axis=0)
    ordered = np.sort(V, axis=0)  # NaN come last
    lower = np.maximum(counts - 1, 0) // 2
    upper = counts // 2
    middle = np.take_along_axis(ordered, np.array([lower, upper]), axis=0)
    return np.asarray(middle.mean(axis=0, dtype=np.float64))


@compiled
def _compute_weights(
    weight: float, concentration: float, count: int, retention: F64, largest_share: float, center: bool
) -> Weights:
    """Compute the weights of n messages, in two passes: forward for all but c, backward for c.

        w ← ρw + 1                         w: weight of all messages, at first `weight`; ρ: `retention` (n,)
        η = 1/w                            share of a message in this weight when it arrives
        a = η, or 0 without centring       how far a message moves the mean, as a share of its distance from the mean
        κ ← (1 − η)² κ + η²                `concentration`: sum of the squared shares of all messages
        c_s = η_s (1 − η_s₊₁) … (1 − η_n)  share of message s after all n messages

    A message is clipped beyond this squared distance from the mean, in units of tr Σ, with w and κ before the message:

        reach = max(largest_share · ρw, SMALLEST_REACH) / (1 − κ)

    `compute_weights` has the reasons. The first `UNCLIPPED_MESSAGES` of a stream have no limit. Before this block,
    `count` messages were learned.
    """
    n = len(retention)
    eta = np.empty(n)
    c = np.empty(n)
    reach = np.empty(n)
    for s in range(n):
        past_weight = retention[s] * weight  # ρw
        weight = past_weight + 1.0
        eta[s] = 1.0 / weight
        # The learned mean follows the messages, so the expected tr Σ is too small by the factor 1 − κ. Dividing the
        # limit by 1 − κ corrects this. Without centring, there is no such bias.
        bias = 1.0 - concentration if center else 1.0
        has_limit = count + s >= UNCLIPPED_MESSAGES
        reach[s] = max(largest_share * past_weight, SMALLEST_REACH) / bias if has_limit else np.inf
        concentration = (1.0 - eta[s]) * (1.0 - eta[s]) * concentration + eta[s] * eta[s]
    share_left = 1.0  # the share of earlier weights that the messages after s leave
    for s in range(n - 1, -1, -1):
        c[s] = eta[s] * share_left
        share_left *= 1.0 - eta[s]
    return Weights(
        eta=eta,
        a=eta if center else np.zeros(n),
        c=c,
        past=share_left,
        total=weight,
        reach=reach,
        concentration=concentration,
    )


@compiled_for_compiled_callers
def centre_rows(
    V: Array, mean: F64, weights: Weights, first: int, total_variance: float, smallest_variance: float, Y: Array,
    squared_distance: F64, kept_share: F64,
) -> float:  # fmt: skip
    """Centre and clip the messages V (b, d), which follow the `first` messages of a block; return tr Σ after them.

    For each message v, with its step size η and its weight a in the mean (a = η, or 0 without centring):

    1. If ‖v − m‖² exceeds reach · tr Σ, clip v: keep only a share of v − m, so that ‖v − m‖² is this limit.
    2. y = √(1−a) (v − m)
    3. m ← m + a (v − m)
    4. tr Σ ← (1−η) tr Σ + η ‖y‖²

    Updates `mean` (d,), which is m. Fills in `Y` with the rows y, `squared_distance` with ‖v − m‖² after clipping, and
    `kept_share` with the share of v − m that was kept.
    """
    for s in range(len(V)):
        eta = weights.eta[first + s]
        a = weights.a[first + s]
        # 1. The clipped difference is share · (v − m). Its squared length is `square`.
        square = 0.0  # ‖v − m‖²
        share = 1.0  # of v − m that is kept
        for j in range(V.shape[1]):
            difference = V[s, j] - mean[j]
            square += difference * difference
        limit = weights.reach[first + s] * total_variance
        has_variance = total_variance > smallest_variance  # a stream that was constant so far clips nothing
        if square > limit and has_variance:
            share = math.sqrt(limit / square)
            square = limit
        # 2. and 3.
        root = math.sqrt(1.0 - a)
        step = share * a
        for j in range(V.shape[1]):
            difference = V[s, j] - mean[j]
            Y[s, j] = share * root * difference
            mean[j] += step * difference
        squared_distance[s] = square
        kept_share[s] = share
        # 4. ‖y‖² is (1 − a) · square.
        total_variance = (1.0 - eta) * total_variance + eta * (1.0 - a) * square
    return total_variance
