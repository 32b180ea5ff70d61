"""Weights of messages, and what precedes learning: messages are centred, and clipped if they are too far away.

A message v that keeps the share ρ of the past is learned as

    w ← ρw + 1        a = 1/w        y = √(1−a) (v − m)        m ← m + a(v − m)        Σ ← (1−a)Σ + y (a yᵀ)

so that Σ is the weighted covariance about the weighted mean m. First v is moved to ‖v − m‖² ≤ max(qρw, 30) tr Σ/(1−κ);
κ is the sum of the squared shares of the messages before, and tr Σ/(1−κ) the unbiased total variance. In a first block
v is moved to ten times the median distance from the median. docs/mathematics.md, sections 3 and 5.
"""

import math
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled, compiled_within
from streampca.pca.state import State

SHARE = 0.05  # q
ORDINARY = 30.0  # times tr Σ: one variable that is Gaussian exceeds it in four of 10⁸ messages
SHORT = 32  # messages: before, or in a shorter first block, nothing is clipped
_MEDIANS = 10.0  # distances from the median of a first block


class Weights(NamedTuple):
    """Weights of the n messages of a block, and of the past before it."""

    eta: F64  # (n,): its step size, 1/w
    a: F64  # (n,): its weight in the running mean when it arrives; zero without centring
    c: F64  # (n,): its share of the moments at the end of the block
    past: float  # the share of everything before the block, at the end of the block
    before: F64  # (n,): ρw, the weight of everything before it
    total: float  # w at the end of the block
    reach: F64  # (n,): the squared distance from the mean, in units of tr Σ, to which it is clipped
    concentration: float  # κ at the end of the block


def weights(state: State, retention: F64, center: bool = True, age: float = 1.0) -> Weights:
    """Weights of the messages of a block that follows a state; `retention` (n,) holds each ρ.

    `age` is the share of the weight since the newest entry was first seen.
    """
    kappa, count = state.concentration, state.count
    before, eta, c, past, reach, kappa = _weights(state.weight, kappa, count, retention, SHARE * age, center)
    a = eta if center else np.zeros(len(eta))
    return Weights(eta, a, c, past, before, float(before[-1] + 1.0), reach, kappa)


def near_median(V: Array) -> tuple[Array, F64]:
    """The messages V (n, d), none farther from their median than ten median distances, and the shares kept (n,)."""
    median = np.median(V, axis=0)
    D = V.astype(np.float64) - median
    largest = np.abs(D).max(axis=1)
    lengths = largest * np.linalg.norm(D / np.maximum(largest, np.finfo(np.float64).tiny)[:, None], axis=1)
    apart = lengths[lengths > 0]  # of messages that are alike, as many as like, the distances say nothing
    limit = _MEDIANS * np.median(apart) if len(apart) else np.inf
    far, kept = lengths > limit, np.ones(len(V))
    if far.any():
        V, kept[far] = V.copy(), limit / lengths[far]
        V[far] = median + D[far] * kept[far, None]
    return V, kept


def each_near_its_median(V: Array) -> Array:
    """The messages V (n, d), no entry farther from its median than ten median distances; missing entries stay NaN.

    For entries that begin: an outlier among their first values would decide their mean and their scale.
    """
    median = _medians(V)
    distances = np.abs(V - median)
    distances[distances == 0] = np.nan
    limit = _MEDIANS * _medians(distances)
    limit = np.where(np.isnan(limit), np.inf, limit)  # of values that are alike, or missing
    return np.clip(V, median - limit, median + limit)


def _medians(V: Array) -> F64:
    """The median of each column of V (n, d) without its NaN; NaN of a column that has nothing else."""
    n = (~np.isnan(V)).sum(axis=0)
    ordered = np.sort(V, axis=0)  # NaN come last
    middle = np.take_along_axis(ordered, np.array([np.maximum(n - 1, 0) // 2, np.minimum(n // 2, len(V) - 1)]), axis=0)
    return np.asarray(middle.mean(axis=0, dtype=np.float64))


@compiled
def _weights(
    w: float, kappa: float, count: int, retention: F64, share: float, center: bool
) -> tuple[F64, F64, F64, float, F64, float]:
    n, kept = len(retention), 1.0
    before, eta, c, reach = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for s in range(n):
        before[s] = retention[s] * w
        w = before[s] + 1.0
        eta[s] = 1.0 / w
        known = 1.0 - kappa if center else 1.0  # of the variance: the rest is the mean's, which is estimated
        reach[s] = max(share * before[s], ORDINARY) / known if count + s >= SHORT else np.inf
        kappa = (1.0 - eta[s]) * (1.0 - eta[s]) * kappa + eta[s] * eta[s]
    for s in range(n - 1, -1, -1):
        c[s] = eta[s] * kept
        kept *= 1.0 - eta[s]
    return before, eta, c, kept, reach, kappa


@compiled_within
def centre_rows(
    V: Array, mean: F64, weights: Weights, first: int, total: float, smallest: float, Y: Array, norm: F64, kept: F64
) -> float:
    """Centre the messages V (b, d), which begin at message `first` of the block that has these weights.

    Fills in Y (b, d), the rows y, and for each message its squared distance from the mean, `norm`, and the share of the
    distance that clipping has left, `kept`; updates the mean. `total` is tr Σ; at most `smallest` counts as none.
    Returns tr Σ after the messages.
    """
    for s in range(len(V)):
        eta, a = weights.eta[first + s], weights.a[first + s]
        square, part = 0.0, 1.0
        for j in range(V.shape[1]):
            y = V[s, j] - mean[j]
            square += y * y
        limit = weights.reach[first + s] * total
        if square > limit and total > smallest:
            part, square = math.sqrt(limit / square), limit
        root, step = math.sqrt(1.0 - a), part * a
        for j in range(V.shape[1]):
            y = V[s, j] - mean[j]
            Y[s, j] = part * root * y
            mean[j] += step * y
        norm[s], kept[s] = square, part
        total = (1.0 - eta) * total + eta * (1.0 - a) * square
    return total
