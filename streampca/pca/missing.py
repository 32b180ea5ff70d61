"""Messages that lack entries, which are NaN: a block's missing entries are predicted by the leading axes before it.

The rows m + Cx, and r/√q more where an entry is observed, are what Algorithm 1 learns (blocked/filling.py): q_j is the
share of the block's messages that have entry j, so rows keep their length on average. Σ is estimated from the fits Cx
and the residuals r apart (gaps.py). In a first block EM finds the axes. docs/mathematics.md, section 11.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, filling, ritz
from streampca.pca.projection import noise_variance
from streampca.pca.state import State

FILLS = 30  # of the first block
FEW = 0.1  # share of a block: an entry or a pair that fewer messages show counts as less than a block
_MIN_NOISE = 1e-10  # σ², of the largest variance: keeps C_OᵀC_O + ridge regular
_TINY = float(np.finfo(np.float64).tiny)


class Predictor(NamedTuple):
    """What predicts entries from others: the mean, and the axes with more variance than noise."""

    mean: F64  # (d,)
    C: F64  # (d, n): axes times their standard deviations
    ridge: F64  # (n,): σ²λ/(λ − σ²)


class Filled(NamedTuple):
    """A block whose missing entries are filled, and by what."""

    V: Array  # (n, d)
    by: Predictor
    X: F64  # (n, K): the fits are m + Cx
    root: F64  # (d,): √q
    shown: NDArray[np.bool_]  # (n, d)


def fill(state: State, V: Array, weights: centring.Weights, components: int, center: bool) -> Filled:
    """The block V (n, d) with its missing entries filled, where its messages have these weights."""
    missing = np.isnan(V)
    by = predictor(state, components) if state.count else _found_by_em(V, missing, components, center)
    shares = weights.c @ ~missing / weights.c.sum()
    root = np.sqrt(np.maximum(shares, FEW))
    filled, X = filling.fill(V, *by, root)
    return Filled(filled, by, X, root, ~missing)


def predictor(state: State, components: int) -> Predictor:
    """What predicts the entries of the messages that follow a state."""
    k = min(components, state.rank)
    seen = int((state.known_entries > 0).sum())
    total = max(state.total_variance, float(state.variance.sum()))  # the columns of an indefinite Σ may have more
    return _predictor(state.mean, state.C[:, :k], state.variance[:k], total, seen)


def _predictor(mean: F64, C: Array, variance: F64, total_variance: float, seen: int) -> Predictor:
    """The predictor by the columns C (d, k) with these variances, if so many of the d entries were ever `seen`."""
    noise = max(noise_variance(variance, seen, total_variance), _MIN_NOISE * variance.max(initial=0.0))
    signal = variance > noise
    if not signal.any():  # nothing predicts entries but the mean
        return Predictor(mean, np.zeros((len(C), 1)), np.ones(1))
    rounding = 8 * float(np.finfo(C.dtype).eps)
    C = C[:, signal].astype(np.float64)
    C[np.abs(C).max(axis=1) < rounding * np.abs(C).max()] = 0.0  # of constant entries, which filling must not make vary
    return Predictor(mean, np.ascontiguousarray(C), noise / (1 - noise / variance[signal]))


def begin(state: State, V: Array, center: bool) -> tuple[State, Array]:
    """What learns the entries that begin in the block V (n, d): the state with their means, and V without outliers."""
    begins = state.known_entries <= 0
    if not begins.any():
        return state, V
    V = V.copy()
    V[:, begins] = centring.each_near_its_median(V[:, begins])
    missing = np.isnan(V)
    if state.count and center:
        shown = begins & ~missing.all(axis=0)
        state = replace(state, mean=np.where(shown, _observed_mean(V, missing), state.mean))
    return state, V


def _observed_mean(V: Array, missing: NDArray[np.bool_]) -> F64:
    """The mean of the observed entries, (d,); 0 without any."""
    return np.asarray(np.where(missing, 0.0, V).sum(axis=0) / np.maximum((~missing).sum(axis=0), 1))


def _found_by_em(V: Array, missing: NDArray[np.bool_], components: int, center: bool) -> Predictor:
    """The predictor of a first block V (n, d), which is filled, decomposed, and filled again."""
    n, d = V.shape
    seen = int((~missing).any(axis=0).sum())
    mean = _observed_mean(V, missing) if center else np.zeros(d)
    by = _start_of_em(V - mean, mean, missing, components)
    for _ in range(FILLS):
        filled, _ = filling.fill(V, *by, np.ones(d))
        if center:
            mean = filled.mean(axis=0, dtype=np.float64)
        Y = (filled - mean) / np.sqrt(n)
        C = ritz.strongest(Y, ritz.Limits(components, ritz.RANK_TOLERANCE, 0.0))
        by = _predictor(mean, C, np.vecdot(C.T, C.T), float(np.vdot(Y, Y)), seen)
    return by


def _start_of_em(Y: Array, mean: F64, missing: NDArray[np.bool_], components: int) -> Predictor:
    """The predictor with which EM begins on centred messages Y (n, d).

    This is the mean, unless some sensors are never together. From the mean EM would then end in a wrong local optimum
    in half of all cases, so it begins with what links them.
    """
    shown = (~missing).astype(np.float64)
    together = shown.T @ shown
    seen = np.flatnonzero(together.diagonal() > 0)
    if (together[np.ix_(seen, seen)] > 0).all():
        return Predictor(mean, np.zeros((len(mean), 1)), np.ones(1))
    Y = np.where(missing, 0.0, Y)
    S = completed(Y.T @ Y / np.maximum(together, 1.0), together)
    variance, axes = np.linalg.eigh(S)
    variance = np.maximum(variance[::-1][:components], 0.0)
    C = axes[:, ::-1][:, :components] * np.sqrt(variance)
    return _predictor(mean, C, variance, float(np.trace(S)), len(seen))


def completed(S: F64, known: F64) -> F64:
    """Σ (d, d) in which two sensors that were never together (0 in `known`) agree with those that have met both.

    Then Σ_ij = Σ_iL Σ_LL⁻¹ Σ_Lj, where L are the sensors that have met i, j and each other; 0 without any.
    """
    seen = np.flatnonzero(known.diagonal() > 0)
    met = known > 0
    if met[np.ix_(seen, seen)].all():
        return S
    S = S.copy()
    _, group_of = np.unique(met[seen], axis=0, return_inverse=True)
    groups = [seen[group_of.ravel() == g] for g in range(group_of.max() + 1)]  # sensors that have met the same ones
    for g, left in enumerate(groups):
        for right in groups[:g]:
            if not met[left[0], right[0]]:
                linked = _linked(S, met, left, right)
                S[np.ix_(left, right)] = linked
                S[np.ix_(right, left)] = linked.T
    return S


def _linked(S: F64, met: NDArray[np.bool_], left: NDArray[np.intp], right: NDArray[np.intp]) -> F64:
    """The covariances of two groups of sensors, by those that have met both."""
    common = np.flatnonzero(met[left[0]] & met[right[0]])
    common = common[met[np.ix_(common, common)].all(axis=1)]
    if not len(common):
        return np.zeros((len(left), len(right)))
    variance, axes = np.linalg.eigh(S[np.ix_(common, common)])
    least = max(_MIN_NOISE * variance[-1], _TINY)
    inverse = (axes / np.maximum(variance, least)) @ axes.T
    return np.asarray(S[np.ix_(left, common)] @ inverse @ S[np.ix_(common, right)])


def cut(S: F64) -> F64:
    """Σ (d, d) with correlations of at most 1: of pairs that few messages have shown they may seem larger."""
    root = np.sqrt(np.maximum(S.diagonal(), 0.0))
    largest = np.outer(root, root)
    return np.clip(S, -largest, largest)
