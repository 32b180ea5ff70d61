"""Messages that lack entries, which are NaN: a block's are filled, and then it is learned like any other block.

With y = v − m, the observed entries O, and the leading axes times their standard deviations C (d, k), before the block:

    x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀy_O            filled: m + Cx, and r/π more where observed, r = (y − Cx)_O

Cx is the prediction of `projection.fill`, compiled since whole streams pass here, and clipped since what is filled is
learned. π_j, the running share of incomplete messages that have entry j, makes up for residuals that are not seen. It
makes squares too large by r_j²(1/π_j² − 1/π_j), the surplus, by which Σ's diagonal, the total variance and the losses
are corrected. The first block is filled by EM: fill, refit, repeat. docs/mathematics.md, section 11.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import ritz
from streampca.pca.blocked.centring import Weights
from streampca.pca.blocked.jit import compiled_within, compiled_without_lock
from streampca.pca.projection import noise_variance
from streampca.pca.state import MissingShares, State

FILLS = 30  # of the first block
_LONGEST_FIRST_BLOCK = 2000  # messages
_MIN_SHARE = 0.3  # a residual counts at most 1/0.3-fold
_MIN_NOISE = 1e-10  # σ², of the largest variance: keeps C_OᵀC_O + ridge regular
_UNSEEN = 0.5  # messages: an entry that fewer have shown has no mean
_NEW = 32  # messages: the mean of an entry that has just begun, and that fewer have shown, is too rough to be kept
_ROWS = 16  # messages whose intermediate results fit the processor's cache
_EPS = float(np.finfo(np.float64).eps)


def _predictor(mean: F64, C: Array, variance: F64, total_variance: float) -> tuple[F64, F64, F64]:
    """The mean, C (d, n) and the ridge σ²λ/(λ − σ²) (n,) of the axes with more than noise, which predict entries."""
    noise = max(noise_variance(variance, len(C), total_variance), _MIN_NOISE * variance.max(initial=0.0))
    signal = variance > noise
    if not signal.any():  # nothing to predict by: the mean
        return mean, np.zeros((len(C), 1)), np.ones(1)
    C, variance, rounding = C[:, signal].astype(np.float64), variance[signal], 8 * float(np.finfo(C.dtype).eps)
    C[np.abs(C).max(axis=1) < rounding * np.abs(C).max()] = 0.0  # of constant entries, which filling must not make vary
    return mean, np.ascontiguousarray(C), noise / (1 - noise / variance)


def first_block(V: Array, first: int) -> int:
    """Messages in the first block of a stream that begins with V (n, d); more than n if it lacks some.

    It ends when every entry was seen `first` times, at most at 2,000 messages: sensors may be off at first, and guesses
    of what has never been seen would stay in the covariance.
    """
    if len(V) < first:
        return first
    longest = max(first, _LONGEST_FIRST_BLOCK)
    seen = (~np.isnan(V[:longest])).cumsum(axis=0, dtype=np.int32).min(axis=1)
    return int(np.searchsorted(seen, first)) + 1 if seen[-1] >= first else longest


def fill(state: State, V: Array, weights: Weights, components: int, center: bool) -> tuple[Array, Array, MissingShares]:
    """The block V (n, d) with its missing entries filled, where its messages have these weights.

    Also returns what π adds to the square of each entry's distance from the mean (n, d), and the shares of missing
    entries at its end.
    """
    missing, shares = np.isnan(V), state.missing or MissingShares.none(V.shape[1], seen=state.count > 0)
    shares = shares.times(weights.past).plus(_shares_of(missing, weights, shares.never))
    observed = np.maximum(shares.observed, _MIN_SHARE)
    if state.count:
        k = min(components, state.rank)
        predictor = _predictor(state.mean, state.C[:, :k], state.variance[:k], state.total_variance)
    else:
        predictor = _by_em(V, missing, components, center)
    filled, surplus = _fill(V, *predictor, observed)
    return filled, surplus, shares


def _shares_of(missing: NDArray[np.bool_], weights: Weights, never: NDArray[np.bool_]) -> MissingShares:
    """What the messages of a block add to the shares; entries that were `never` seen before (d,) may appear in it."""
    before = np.append(0.0, np.cumsum(weights.c))  # the weight of the messages before each, and of all
    appears = np.where(missing.all(axis=0), len(missing), missing.argmin(axis=0))
    unseen = np.where(never, before[appears], 0.0)
    unseen[never & (appears == len(missing))] = 1.0 - weights.past  # all of it, without rounding
    return MissingShares(float(weights.c @ missing.any(axis=1)), weights.c @ missing, unseen)


def initialise_new_means(state: State, V: Array) -> State:
    """The state in which new entries that the block V (n, d) shows have the block's mean."""
    if state.missing is None or not state.count:
        return state
    missing, shown = np.isnan(V), (1.0 - state.missing.entries) * state.weight
    new = (shown < np.where(state.missing.unseen > 0.5, _NEW, _UNSEEN)) & ~missing.all(axis=0)
    return replace(state, mean=np.where(new, _observed_mean(V, missing), state.mean)) if new.any() else state


def _observed_mean(V: Array, missing: NDArray[np.bool_]) -> F64:
    """The mean of the observed entries, (d,); 0 without any."""
    return np.asarray(np.where(missing, 0.0, V).sum(axis=0) / np.maximum((~missing).sum(axis=0), 1))


def _by_em(V: Array, missing: NDArray[np.bool_], components: int, center: bool) -> tuple[F64, F64, F64]:
    """The predictor of the first block, which starts from the block's mean and is refitted to the filled block."""
    n, d = V.shape
    mean, whole = _observed_mean(V, missing) if center else np.zeros(d), np.ones(d)
    predictor = _predictor(mean, np.zeros((d, 1)), np.zeros(1), 0.0)
    for _ in range(FILLS):
        filled, _ = _fill(V, *predictor, whole)
        if center:
            mean = filled.mean(axis=0, dtype=np.float64)
        Y = (filled - mean) / np.sqrt(n)
        C = ritz.strongest(Y, ritz.Limits(components, ritz.RANK_TOLERANCE, 0.0))
        predictor = _predictor(mean, C, np.vecdot(C.T, C.T), float(np.vdot(Y, Y)))
    return predictor


@compiled_without_lock
def _fill(V: Array, mean: F64, C: F64, ridge: F64, shares: F64) -> tuple[Array, Array]:
    """The messages V (B, d) with missing entries filled, and the surplus (B, d); `shares` (d,) are the π.

    x is clipped to ‖x‖² ≤ k + √2k, the mean and a standard deviation of complete Gaussian messages: where few
    entries say little, their noise would be magnified, learned, and magnified again.
    """
    (B, d), whole = V.shape, C.T @ C
    filled, surplus, more, growth = np.empty(V.shape, V.dtype), np.zeros(V.shape, V.dtype), np.empty(d), np.empty(d)
    for j in range(d):
        more[j] = 1.0 / shares[j] - 1.0
        growth[j] = more[j] * (1.0 + more[j])
    for i in range(0, B, _ROWS):
        e = min(i + _ROWS, B)
        _fill_few(V[i:e], filled[i:e], surplus[i:e], (mean, C, whole, ridge, more, growth))
    return filled, surplus


@compiled_within
def _fill_few(V: Array, filled: Array, surplus: Array, fixed: Any) -> None:
    """Fill a few messages. `fixed`: the mean, C, CᵀC, the ridge, 1/π − 1 and 1/π² − 1/π."""
    mean, C, whole, ridge, more, growth = fixed
    (B, d), missing = V.shape, np.zeros(len(V), np.int64)
    Y = np.empty((B, d))
    for s in range(B):
        gone = 0
        for j in range(d):  # without branches, so that it vectorises; only NaN differs from itself
            y = V[s, j] - mean[j]
            Y[s, j] = y if y == y else 0.0
            gone += 0 if y == y else 1
        missing[s] = gone
    fits = _coordinates(V, missing, Y @ C, C, whole, ridge) @ C.T
    for s in range(B):
        if missing[s] == 0:
            for j in range(d):
                filled[s, j] = V[s, j]
        else:
            for j in range(d):
                v, r = V[s, j], Y[s, j] - fits[s, j]
                filled[s, j] = v + r * more[j] if v == v else mean[j] + fits[s, j]
            for j in range(d):
                r = Y[s, j] - fits[s, j]
                surplus[s, j] = r * r * growth[j] if V[s, j] == V[s, j] else 0.0


@compiled_within
def _coordinates(V: Array, missing: Any, P: F64, C: F64, whole: F64, ridge: F64) -> F64:
    """x (B, k) of each message, from P = C_Oᵀy_O (B, k) and the number of its missing entries; 0 for complete ones."""
    (B, d), k = V.shape, C.shape[1]
    X = np.zeros((B, k))
    for s in range(B):
        if missing[s] == 0:
            continue
        fewer = missing[s] <= d - missing[s]  # sum over the missing rows of C, if they are fewer, or the observed ones
        part, i = np.zeros((max(1, min(missing[s], d - missing[s])), k)), 0
        for j in range(d):
            if math.isnan(V[s, j]) == fewer:
                for m in range(k):
                    part[i, m] = C[j, m]
                i += 1
        H = part.T @ part
        for i in range(k):
            for m in range(k):
                H[i, m] = (whole[i, m] - H[i, m] if fewer else H[i, m]) + (ridge[i] if i == m else 0.0)
        _solve(H, P[s], X[s])
        _clip(X[s])
    return X


@compiled_within
def _clip(x: F64) -> None:
    """Clip x to ‖x‖² ≤ k + √2k."""
    square, limit = 0.0, len(x) + math.sqrt(2.0 * len(x))
    for i in range(len(x)):
        square += x[i] * x[i]
    scale = math.sqrt(limit / square) if square > limit else 1.0
    for i in range(len(x)):
        x[i] *= scale


@compiled_within
def _solve(H: F64, p: F64, x: F64) -> None:
    """x = H⁻¹p; 0 if H is not numerically positive definite."""
    L, good = _cholesky(H)
    if not good:
        return
    for i in range(len(p)):
        left = p[i]
        for j in range(i):
            left -= L[i, j] * x[j]
        x[i] = left / L[i, i]
    for i in range(len(p) - 1, -1, -1):
        left = x[i]
        for j in range(i + 1, len(p)):
            left -= L[j, i] * x[j]
        x[i] = left / L[i, i]


@compiled_within
def _cholesky(A: F64) -> tuple[F64, bool]:
    """Lower-triangular L with LLᵀ = A, and whether A is numerically positive definite; if not, L is undefined."""
    K = len(A)
    L = np.zeros((K, K))
    for i in range(K):
        for j in range(i + 1):
            left = A[i, j]
            for m in range(j):
                left -= L[i, m] * L[j, m]
            if j < i:
                L[i, j] = left / L[j, j]
            elif left > K * _EPS * A[i, i] and left < np.inf:  # else the rest of the column is rounding
                L[i, i] = math.sqrt(left)
            else:
                return L, False
    return L, True
