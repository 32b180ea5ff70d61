"""Fills the missing entries (NaN) of a block with predictions by the leading axes of the state before it.

Algorithm 1 learns the rows m + Cx, with r/√q added where an entry is observed (blocked/filling.py). q_j is the share of
the block's messages that have entry j, so that rows keep their length on average. For Σ, the fits Cx and the residuals
r are averaged separately (gaps.py). In the first block of a stream, EM finds the axes. docs/mathematics.md, section 11.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, filling, pairs, ritz
from streampca.pca.spiked_covariance import compute_noise_variance
from streampca.pca.state import State

EM_ITERATIONS = 30  # in the first block

_MIN_NOISE = 1e-10  # smallest σ², as a share of the largest variance: C_OᵀC_O + ridge must have an inverse
_TINY = float(np.finfo(np.float64).tiny)


class Predictor(NamedTuple):
    """Predicts the missing entries of a message v from its observed entries O, by ridge regression on C.

    The prediction is m + Cx with x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀ(v − m)_O. By probabilistic PCA, this is the mean of
    the missing entries, given the observed ones.
    """

    mean: F64  # m (d,)
    C: F64  # (d, n): the axes with more variance than noise, times their standard deviations
    ridge: F64  # (n,): σ²λ/(λ − σ²)


class Filled(NamedTuple):
    """A block whose missing entries are filled, with the predictor that filled them."""

    V: Array  # (n, d)
    predictor: Predictor
    X: F64  # (n, K): the x of each message, whose prediction is m + Cx
    root_q: F64  # (d,): √q, where q is the share of the messages that show each entry
    shown: NDArray[np.bool_]  # (n, d): which entries the messages have


def fill_missing_entries(state: State, V: Array, weights: centring.Weights, components: int, center: bool) -> Filled:
    """Fill the missing entries of the block V (n, d) that follows `state`, whose messages have these weights.

    Only the share q of the messages shows an entry and has a residual r there. Divided by √q, these residuals vary as
    much as if all messages had one.
    """
    missing = np.isnan(V)
    is_first_block = not state.count
    predictor = _fit_by_em(V, missing, components, center) if is_first_block else make_predictor(state, components)
    q = weights.c @ ~missing / weights.c.sum()
    root_q = np.sqrt(np.maximum(q, pairs.RARELY_SHOWN))  # if hardly any message shows an entry, r/√q stays finite
    filled, X = filling.fill(V, *predictor, root_q)
    return Filled(V=filled, predictor=predictor, X=X, root_q=root_q, shown=~missing)


def make_predictor(state: State, components: int) -> Predictor:
    """Make the predictor of missing entries in the messages that follow a state."""
    k = min(components, state.rank)
    # Σ may have negative eigenvalues. Then the columns of the state may have more variance than the trace of Σ.
    total_variance = max(state.total_variance, float(state.variance.sum()))
    return _build_predictor(
        state.mean,
        state.C[:, :k],
        state.variance[:k],
        total_variance=total_variance,
        seen=state.seen_dimensions,  # number of entries that some message has shown; the noise is spread over these
    )


def _build_predictor(mean: F64, C: Array, variance: F64, total_variance: float, seen: int) -> Predictor:
    """Make a predictor of missing entries from the columns of C (d, k) that have more variance λ than the noise σ².

    For a message y, the predictor minimises ‖y − Cx‖² + Σ ridge_i x_i² over the observed entries. The ridge is σ²
    divided by the variance of x_i. By probabilistic PCA, messages have along axis i the variance λ_i, of which σ² is
    noise. The rest is λ_i var(x_i), because column i has the squared length λ_i. So var(x_i) is 1 − σ²/λ_i.

    `seen` is the number of entries that some message has shown. Only these have noise, so σ² is the variance that the
    columns do not have, divided by the number of directions that remain of `seen`.
    """
    noise = max(compute_noise_variance(variance, seen, total_variance), _MIN_NOISE * variance.max(initial=0.0))
    has_signal = variance > noise
    if not has_signal.any():
        return _build_mean_predictor(mean)
    rounding = 8 * float(np.finfo(C.dtype).eps)
    C = C[:, has_signal].astype(np.float64)
    # A constant entry has only rounding errors in its row of C. They become 0, so that the entry is filled with its
    # mean where it is missing. Otherwise it would begin to vary.
    is_constant = np.abs(C).max(axis=1) < rounding * np.abs(C).max()
    C[is_constant] = 0.0
    ridge = noise / (1 - noise / variance[has_signal])  # σ²/(1 − σ²/λ), (k,)
    return Predictor(mean, np.ascontiguousarray(C), ridge)


def _build_mean_predictor(mean: F64) -> Predictor:
    """Make a predictor that fills each missing entry with its mean: it has one column of zeros."""
    return Predictor(mean, np.zeros((len(mean), 1)), np.ones(1))


def prepare_new_entries(state: State, V: Array, center: bool) -> tuple[State, Array]:
    """Prepare the entries that no message before the block V (n, d) has shown.

    Returns V with outliers of these entries clipped. If the block shows such an entry, the state gets its mean.
    """
    is_unseen = state.known_entries <= 0
    if not is_unseen.any():
        return state, V
    V = V.copy()
    V[:, is_unseen] = centring.move_entries_near_medians(V[:, is_unseen])
    is_first_block = not state.count  # then `_fit_by_em` finds the means
    if is_first_block or not center:
        return state, V
    missing = np.isnan(V)
    is_first_shown = is_unseen & ~missing.all(axis=0)
    observed_mean = _compute_observed_mean(V, missing)
    was_constant = state.total_variance == 0
    if was_constant:  # a rounded mean of equal values would give the stream a variance, and later values be outliers
        only_values = _find_only_values(V, missing)
        observed_mean = np.where(np.isnan(only_values), observed_mean, only_values)
    mean = np.where(is_first_shown, observed_mean, state.mean)
    return replace(state, mean=mean), V


def _compute_observed_mean(V: Array, missing: NDArray[np.bool_]) -> F64:
    """Compute the mean of the observed values of each entry, (d,); 0 if there are none."""
    counts = (~missing).sum(axis=0)
    return np.asarray(np.where(missing, 0.0, V).sum(axis=0) / np.maximum(counts, 1))


def _find_only_values(V: Array, missing: NDArray[np.bool_]) -> F64:
    """Find the value of each entry that has the same value in all messages that show it, (d,).

    It is NaN for an entry with several values, and 0 for an entry that no message shows.
    """
    lowest = np.where(missing, np.inf, V).min(axis=0)
    highest = np.where(missing, -np.inf, V).max(axis=0)
    only_values = np.where(lowest == highest, lowest, np.nan)
    return np.where(missing.all(axis=0), 0.0, only_values).astype(np.float64)


def _fit_by_em(V: Array, missing: NDArray[np.bool_], components: int, center: bool) -> Predictor:
    """Find the predictor for the first block V (n, d) of a stream by expectation maximisation (EM).

    Each iteration fills the block with the predictions, and makes the next predictor from the axes of the filled block.
    """
    n, d = V.shape
    if center:
        only_values = _find_only_values(V, missing)
        is_constant = not np.isnan(only_values).any()
        if is_constant:  # rounded means would give the stream a variance, and all that follows would be outliers
            return _build_mean_predictor(only_values)
    seen = int((~missing).any(axis=0).sum())
    mean = _compute_observed_mean(V, missing) if center else np.zeros(d)
    predictor = _start_em(V - mean, mean, missing, components)
    for _ in range(EM_ITERATIONS):
        # `fill` divides residuals of observed entries by `root_q`: with 1, observed entries stay as they are.
        filled, _ = filling.fill(V, *predictor, root_q=np.ones(d))
        if center:
            mean = filled.mean(axis=0, dtype=np.float64)
        Y = (filled - mean) / np.sqrt(n)
        limits = ritz.Limits(columns=components, rounding=ritz.RANK_TOLERANCE, smallest=0.0)  # no axis is too short
        C = ritz.decompose_rows(Y, limits)
        variance = np.vecdot(C.T, C.T)  # squared lengths of the columns
        total_variance = float(np.vdot(Y, Y))  # the sum of all squares
        predictor = _build_predictor(mean, C, variance, total_variance=total_variance, seen=seen)
    return predictor


def _start_em(Y: Array, mean: F64, missing: NDArray[np.bool_], components: int) -> Predictor:
    """Make the predictor with which EM begins on centred messages Y (n, d).

    If each pair of entries is in some message, EM begins by filling entries with their means. If some pair is in no
    message, this start leads to a wrong local optimum in half of the streams that were tried. Then EM begins with the
    axes of a covariance. For such a pair, the covariance is computed from third entries, which were shown with both.
    """
    shown = (~missing).astype(np.float64)
    counts = shown.T @ shown  # numbers of messages that show both entries of a pair, (d, d)
    seen = np.flatnonzero(counts.diagonal() > 0)
    has_all_pairs = (counts[np.ix_(seen, seen)] > 0).all()
    if has_all_pairs:
        return _build_mean_predictor(mean)
    Y = np.where(missing, 0.0, Y)
    S = complete_covariance(Y.T @ Y / np.maximum(counts, 1.0), is_known=counts > 0)
    ascending_variance, axes = np.linalg.eigh(S)
    variance = np.maximum(ascending_variance[::-1][:components], 0.0)
    C = axes[:, ::-1][:, :components] * np.sqrt(variance)
    return _build_predictor(mean, C, variance, total_variance=float(np.trace(S)), seen=len(seen))


def complete_covariance(S: F64, is_known: NDArray[np.bool_]) -> F64:
    """Fill in the covariances in Σ (d, d) of pairs of entries that are not known, by the mask `is_known` (d, d).

    They are computed from entries that link the two: Σ_ij = Σ_iL Σ_LL⁻¹ Σ_Lj. The entries L were known together with i,
    with j and with each other. If there are none, Σ_ij is 0.
    """
    seen = np.flatnonzero(is_known.diagonal())
    if is_known[np.ix_(seen, seen)].all():
        return S
    S = S.copy()
    # Entries with equal rows of `is_known` have the same linking entries L, so they are filled together, as a group.
    # Within a group nothing is unknown: each entry was known with itself, and so with all entries of equal rows.
    _, group_indices = np.unique(is_known[seen], axis=0, return_inverse=True)
    groups = [seen[group_indices.ravel() == g] for g in range(group_indices.max() + 1)]
    for g, left in enumerate(groups):
        for right in groups[:g]:
            # Either all pairs of a left and a right entry were known together, or none. So the first pair tells.
            were_together = is_known[left[0], right[0]]
            if not were_together:
                linked = _link_groups(S, is_known, left, right)  # Σ_iL Σ_LL⁻¹ Σ_Lj
                S[np.ix_(left, right)] = linked
                S[np.ix_(right, left)] = linked.T
    return S


def _link_groups(S: F64, is_known: NDArray[np.bool_], left: NDArray[np.intp], right: NDArray[np.intp]) -> F64:
    """Compute the covariances between two groups of entries, which were never known together, from linking entries L.

    `is_known` (d, d) says of each pair of entries whether it was known together. All entries of a group have the same
    row in `is_known`, so the first entry stands for its group.
    """
    with_both = np.flatnonzero(is_known[left[0]] & is_known[right[0]])  # entries that were known with both groups
    L = with_both[is_known[np.ix_(with_both, with_both)].all(axis=1)]  # of these, those known with all the others
    if not len(L):
        return np.zeros((len(left), len(right)))
    variance, axes = np.linalg.eigh(S[np.ix_(L, L)])
    least = max(_MIN_NOISE * variance[-1], _TINY)  # Σ_LL may be singular, or have negative eigenvalues
    inverse = (axes / np.maximum(variance, least)) @ axes.T
    return np.asarray(S[np.ix_(left, L)] @ inverse @ S[np.ix_(L, right)])
