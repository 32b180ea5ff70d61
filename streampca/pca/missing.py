"""Missing entries, which are NaN: those of a block are predicted by the leading axes of the state before it.

Algorithm 1 learns the rows m + Cx, with r/√q added where an entry is observed (blocked/filling.py). q_j is the share of
the block's messages that have entry j, so that rows keep their length on average. For Σ, the fits Cx and the residuals
r are averaged separately (gaps.py). In the first block of a stream, EM finds the axes. docs/mathematics.md, section 11.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, filling, ritz
from streampca.pca.projection import noise_variance
from streampca.pca.state import State

FILLS = 30  # iterations of EM in the first block
FEW = 0.1  # share of a block: if fewer of its messages show an entry or a pair, the block counts less for it
_MIN_NOISE = 1e-10  # smallest σ², as a share of the largest variance: keeps C_OᵀC_O + ridge regular
_TINY = float(np.finfo(np.float64).tiny)


class Predictor(NamedTuple):
    """Predicts missing entries of a message as m + Cx, from its observed entries O by ridge regression on C.

    x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀ(v − m)_O is the conditional mean by probabilistic PCA.
    """

    mean: F64  # m (d,)
    C: F64  # (d, n): the axes with more variance than noise, times their standard deviations
    ridge: F64  # (n,): σ²λ/(λ − σ²)


class Filled(NamedTuple):
    """A block whose missing entries are filled, with the predictor that filled them."""

    V: Array  # (n, d)
    predictor: Predictor
    X: F64  # (n, K): the fits are m + Cx
    root: F64  # (d,): √q, where q is the share of the messages that show each entry
    shown: NDArray[np.bool_]  # (n, d): entries that the messages have


def fill(state: State, V: Array, weights: centring.Weights, components: int, center: bool) -> Filled:
    """Fill the missing entries of the block V (n, d) that follows `state`; `weights` are those of its messages."""
    missing = np.isnan(V)
    predictor = make_predictor(state, components) if state.count else _fit_by_em(V, missing, components, center)
    shares = weights.c @ ~missing / weights.c.sum()
    root = np.sqrt(np.maximum(shares, FEW))  # if hardly any message shows an entry, r/√q stays finite
    filled, X = filling.fill(V, *predictor, root)
    return Filled(V=filled, predictor=predictor, X=X, root=root, shown=~missing)


def make_predictor(state: State, components: int) -> Predictor:
    """Make the predictor of the missing entries of the messages that follow a state."""
    k = min(components, state.rank)
    seen = int((state.known_entries > 0).sum())
    total = max(state.total_variance, float(state.variance.sum()))  # of Σ with negative eigenvalues, columns have more
    return _build_predictor(state.mean, state.C[:, :k], state.variance[:k], total, seen)


def _build_predictor(mean: F64, C: Array, variance: F64, total_variance: float, seen: int) -> Predictor:
    """Make a predictor from the columns of C (d, k) that have more variance than the noise.

    `seen` is the number of entries that some message has shown. Only these have noise.
    """
    noise = max(noise_variance(variance, seen, total_variance), _MIN_NOISE * variance.max(initial=0.0))
    has_signal = variance > noise
    if not has_signal.any():
        return _build_mean_predictor(mean)
    rounding = 8 * float(np.finfo(C.dtype).eps)
    C = C[:, has_signal].astype(np.float64)
    # The row of a constant entry holds rounding errors. Without them it is filled with its mean, and stays constant.
    C[np.abs(C).max(axis=1) < rounding * np.abs(C).max()] = 0.0
    ridge = noise / (1 - noise / variance[has_signal])  # σ²λ/(λ − σ²)
    return Predictor(mean, np.ascontiguousarray(C), ridge)


def _build_mean_predictor(mean: F64) -> Predictor:
    """Make a predictor that fills each entry with its mean: it has one column, without variance."""
    return Predictor(mean, np.zeros((len(mean), 1)), np.ones(1))


def prepare_new_entries(state: State, V: Array, center: bool) -> tuple[State, Array]:
    """Prepare for the entries that no message before the block V (n, d) has shown.

    Returns the state with the means of these entries in the block, and V with their outliers clipped.
    """
    begins = state.known_entries <= 0
    if not begins.any():
        return state, V
    V = V.copy()
    V[:, begins] = centring.move_entries_near_medians(V[:, begins])
    missing = np.isnan(V)
    if state.count and center:  # in the first block of a stream, `_fit_by_em` finds the means
        shown = begins & ~missing.all(axis=0)
        state = replace(state, mean=np.where(shown, _compute_observed_mean(V, missing), state.mean))
    return state, V


def _compute_observed_mean(V: Array, missing: NDArray[np.bool_]) -> F64:
    """Compute the mean of the observed values of each entry, (d,); 0 if there are none."""
    counts = (~missing).sum(axis=0)
    return np.asarray(np.where(missing, 0.0, V).sum(axis=0) / np.maximum(counts, 1))


def _fit_by_em(V: Array, missing: NDArray[np.bool_], components: int, center: bool) -> Predictor:
    """Fit the predictor of a first block V (n, d) by expectation maximisation (EM).

    Each iteration fills the block by the predictor, and makes the next predictor from the axes of the filled block.
    """
    n, d = V.shape
    seen = int((~missing).any(axis=0).sum())
    mean = _compute_observed_mean(V, missing) if center else np.zeros(d)
    predictor = _start_em(V - mean, mean, missing, components)
    for _ in range(FILLS):
        filled, _ = filling.fill(V, *predictor, np.ones(d))
        if center:
            mean = filled.mean(axis=0, dtype=np.float64)
        Y = (filled - mean) / np.sqrt(n)
        limits = ritz.Limits(columns=components, rounding=ritz.RANK_TOLERANCE, smallest=0.0)
        C = ritz.decompose_rows(Y, limits)
        predictor = _build_predictor(mean, C, np.vecdot(C.T, C.T), float(np.vdot(Y, Y)), seen)
    return predictor


def _start_em(Y: Array, mean: F64, missing: NDArray[np.bool_], components: int) -> Predictor:
    """Make the predictor with which EM begins on centred messages Y (n, d).

    If each pair of entries is together in some message, EM begins with the mean. If some pair never is, EM would end in
    a wrong local optimum from there, in half of such streams. Then it begins with the axes of a covariance in which the
    missing pairs are computed from entries that link them.
    """
    shown = (~missing).astype(np.float64)
    together = shown.T @ shown  # numbers of messages with both entries, (d, d)
    seen = np.flatnonzero(together.diagonal() > 0)
    if (together[np.ix_(seen, seen)] > 0).all():
        return _build_mean_predictor(mean)
    Y = np.where(missing, 0.0, Y)
    S = complete_covariance(Y.T @ Y / np.maximum(together, 1.0), together)
    variance, axes = np.linalg.eigh(S)
    variance = np.maximum(variance[::-1][:components], 0.0)
    C = axes[:, ::-1][:, :components] * np.sqrt(variance)
    return _build_predictor(mean, C, variance, float(np.trace(S)), len(seen))


def complete_covariance(S: F64, known: F64) -> F64:
    """Fill in the covariances of Σ (d, d) for pairs of entries that were never known together (0 in `known`).

    For such a pair, Σ_ij = Σ_iL Σ_LL⁻¹ Σ_Lj. L are the entries that were known together with i, with j and with each
    other; if there are none, Σ_ij is 0.
    """
    seen = np.flatnonzero(known.diagonal() > 0)
    met = known > 0
    if met[np.ix_(seen, seen)].all():
        return S
    S = S.copy()
    # Entries that were known together with the same entries form a group, because they have the same L.
    _, group_indices = np.unique(met[seen], axis=0, return_inverse=True)
    groups = [seen[group_indices.ravel() == g] for g in range(group_indices.max() + 1)]
    for g, left in enumerate(groups):
        for right in groups[:g]:
            if not met[left[0], right[0]]:
                linked = _link_groups(S, met, left, right)
                S[np.ix_(left, right)] = linked
                S[np.ix_(right, left)] = linked.T
    return S


def _link_groups(S: F64, met: NDArray[np.bool_], left: NDArray[np.intp], right: NDArray[np.intp]) -> F64:
    """Compute the covariances between two groups of entries from the entries L known with both and with each other."""
    common = np.flatnonzero(met[left[0]] & met[right[0]])
    common = common[met[np.ix_(common, common)].all(axis=1)]
    if not len(common):
        return np.zeros((len(left), len(right)))
    variance, axes = np.linalg.eigh(S[np.ix_(common, common)])
    least = max(_MIN_NOISE * variance[-1], _TINY)  # Σ_LL may be singular, or have negative eigenvalues
    inverse = (axes / np.maximum(variance, least)) @ axes.T
    return np.asarray(S[np.ix_(left, common)] @ inverse @ S[np.ix_(common, right)])
