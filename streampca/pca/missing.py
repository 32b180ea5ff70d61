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

FILLS = 30  # times that EM fills the first block
FEW = 0.1  # share of a block: an entry or a pair that fewer messages show counts as less than a block
_MIN_NOISE = 1e-10  # σ², of the largest variance: keeps C_OᵀC_O + ridge regular
_TINY = float(np.finfo(np.float64).tiny)


class Predictor(NamedTuple):
    """What predicts missing entries from the observed ones O of a message: as m + Cx, ridge regression on C.

    x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀ(v − m)_O is the conditional mean by probabilistic PCA.
    """

    mean: F64  # m (d,)
    C: F64  # (d, n): the axes with more variance than noise, times their standard deviations
    ridge: F64  # (n,): σ²λ/(λ − σ²)


class Filled(NamedTuple):
    """A block whose missing entries are filled, and what filled them."""

    V: Array  # (n, d)
    predictor: Predictor
    X: F64  # (n, K): the fits are m + Cx
    root: F64  # (d,): √q, of the share of the messages that show each entry
    shown: NDArray[np.bool_]  # (n, d): entries that the messages have


def fill(state: State, V: Array, weights: centring.Weights, components: int, center: bool) -> Filled:
    """The block V (n, d) with its missing entries filled, where its messages have these weights."""
    missing = np.isnan(V)
    by_model = predictor(state, components) if state.count else _found_by_em(V, missing, components, center)
    shares = weights.c @ ~missing / weights.c.sum()
    root = np.sqrt(np.maximum(shares, FEW))  # the residuals of an entry that hardly any message shows stay finite
    filled, X = filling.fill(V, *by_model, root)
    return Filled(V=filled, predictor=by_model, X=X, root=root, shown=~missing)


def predictor(state: State, components: int) -> Predictor:
    """What predicts the missing entries of the messages that follow a state."""
    k = min(components, state.rank)
    seen = int((state.known_entries > 0).sum())
    total = max(state.total_variance, float(state.variance.sum()))  # the columns of an indefinite Σ may have more
    return _above_noise(state.mean, state.C[:, :k], state.variance[:k], total, seen)


def _above_noise(mean: F64, C: Array, variance: F64, total_variance: float, seen: int) -> Predictor:
    """The predictor by those columns of C (d, k) that have more variance than the noise.

    `seen` is the number of entries that some message has shown. Only these have noise.
    """
    noise = max(noise_variance(variance, seen, total_variance), _MIN_NOISE * variance.max(initial=0.0))
    has_signal = variance > noise
    if not has_signal.any():
        return _mean_alone(mean)
    rounding = 8 * float(np.finfo(C.dtype).eps)
    C = C[:, has_signal].astype(np.float64)
    # A constant entry has rounding in C. It is filled with its mean: filling must not make it vary.
    C[np.abs(C).max(axis=1) < rounding * np.abs(C).max()] = 0.0
    ridge = noise / (1 - noise / variance[has_signal])  # σ²λ/(λ − σ²)
    return Predictor(mean, np.ascontiguousarray(C), ridge)


def _mean_alone(mean: F64) -> Predictor:
    """The predictor that fills each entry with its mean: one column without variance."""
    return Predictor(mean, np.zeros((len(mean), 1)), np.ones(1))


def begin(state: State, V: Array, center: bool) -> tuple[State, Array]:
    """Prepare for entries that no message before the block V (n, d) has shown.

    Returns the state with their means in the block, and V with their outliers moved towards the others.
    """
    begins = state.known_entries <= 0
    if not begins.any():
        return state, V
    V = V.copy()
    V[:, begins] = centring.each_near_its_median(V[:, begins])
    missing = np.isnan(V)
    if state.count and center:  # in the first block of a stream, `_found_by_em` finds the means
        shown = begins & ~missing.all(axis=0)
        state = replace(state, mean=np.where(shown, _observed_mean(V, missing), state.mean))
    return state, V


def _observed_mean(V: Array, missing: NDArray[np.bool_]) -> F64:
    """The mean of the observed entries, (d,); 0 without any."""
    return np.asarray(np.where(missing, 0.0, V).sum(axis=0) / np.maximum((~missing).sum(axis=0), 1))


def _found_by_em(V: Array, missing: NDArray[np.bool_], components: int, center: bool) -> Predictor:
    """The predictor of a first block V (n, d), by expectation maximisation (EM).

    The block is filled by a predictor, decomposed into the axes of the next predictor, and filled again.
    """
    n, d = V.shape
    seen = int((~missing).any(axis=0).sum())
    mean = _observed_mean(V, missing) if center else np.zeros(d)
    found = _start_of_em(V - mean, mean, missing, components)
    for _ in range(FILLS):
        filled, _ = filling.fill(V, *found, np.ones(d))
        if center:
            mean = filled.mean(axis=0, dtype=np.float64)
        Y = (filled - mean) / np.sqrt(n)
        C = ritz.strongest(Y, ritz.Limits(components, ritz.RANK_TOLERANCE, 0.0))
        found = _above_noise(mean, C, np.vecdot(C.T, C.T), float(np.vdot(Y, Y)), seen)
    return found


def _start_of_em(Y: Array, mean: F64, missing: NDArray[np.bool_], components: int) -> Predictor:
    """The predictor with which EM begins on centred messages Y (n, d).

    If every two sensors are together in some message, this is the mean. From there EM would end in a wrong local
    optimum in half of the streams in which some sensors never are. So it then begins with the axes of a covariance in
    which these pairs follow from the sensors that link them.
    """
    shown = (~missing).astype(np.float64)
    together = shown.T @ shown  # messages with both sensors, (d, d)
    seen = np.flatnonzero(together.diagonal() > 0)
    if (together[np.ix_(seen, seen)] > 0).all():
        return _mean_alone(mean)
    Y = np.where(missing, 0.0, Y)
    S = completed(Y.T @ Y / np.maximum(together, 1.0), together)
    variance, axes = np.linalg.eigh(S)
    variance = np.maximum(variance[::-1][:components], 0.0)
    C = axes[:, ::-1][:, :components] * np.sqrt(variance)
    return _above_noise(mean, C, variance, float(np.trace(S)), len(seen))


def completed(S: F64, known: F64) -> F64:
    """Σ (d, d) in which two sensors that were never together (0 in `known`) agree with those that have met both.

    Then Σ_ij = Σ_iL Σ_LL⁻¹ Σ_Lj, where L are the sensors that have met i, j and each other; 0 without any.
    """
    seen = np.flatnonzero(known.diagonal() > 0)
    met = known > 0
    if met[np.ix_(seen, seen)].all():
        return S
    S = S.copy()
    # Sensors that have met the same sensors are a group, which is linked to another one at once.
    _, group_of = np.unique(met[seen], axis=0, return_inverse=True)
    groups = [seen[group_of.ravel() == g] for g in range(group_of.max() + 1)]
    for g, left in enumerate(groups):
        for right in groups[:g]:
            if not met[left[0], right[0]]:
                linked = _linked(S, met, left, right)
                S[np.ix_(left, right)] = linked
                S[np.ix_(right, left)] = linked.T
    return S


def _linked(S: F64, met: NDArray[np.bool_], left: NDArray[np.intp], right: NDArray[np.intp]) -> F64:
    """The covariances between two groups of sensors, from those of the sensors L that have met both and each other."""
    common = np.flatnonzero(met[left[0]] & met[right[0]])
    common = common[met[np.ix_(common, common)].all(axis=1)]
    if not len(common):
        return np.zeros((len(left), len(right)))
    variance, axes = np.linalg.eigh(S[np.ix_(common, common)])
    least = max(_MIN_NOISE * variance[-1], _TINY)  # Σ_LL may be singular, or have negative eigenvalues
    inverse = (axes / np.maximum(variance, least)) @ axes.T
    return np.asarray(S[np.ix_(left, common)] @ inverse @ S[np.ix_(common, right)])
