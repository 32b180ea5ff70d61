"""Fills the missing entries (NaN) of a block with predictions by the leading axes of the state before it.

Algorithm 1 learns the rows m + Cx, with r/√q added where an entry is observed (blocked/filling.py). q_j is the share of
the block's messages that have entry j, so that rows keep their length on average. For Σ, the fits Cx and the residuals
r are averaged separately (gaps.py). In the first block of a stream, EM finds the axes. docs/mathematics.md, section 11.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array, compute_observed_mean, limit_covariances
from streampca.pca.blocked import centring, filling, pairs, ritz
from streampca.pca.spiked_covariance import compute_noise_variance
from streampca.pca.state import State

EM_ITERATIONS = 30  # in the first block

_MIN_NOISE = 1e-10  # smallest σ², as a share of the largest variance: C_OᵀC_O + ridge must have an inverse
_TINY = float(np.finfo(np.float64).tiny)
_ROUNDING = 8  # times eps times the largest entry of C: smaller entries of C are rounding errors


class Predictor(NamedTuple):
    """Predicts the missing entries of a message v from its observed entries O, by ridge regression on C.

    The prediction is m + Cx with x = (C_OᵀC_O + diag(ridge))⁻¹ C_Oᵀ(v − m)_O. By probabilistic PCA, this is the mean of
    the missing entries, given the observed ones. λ are the variances along the axes, and σ² is the noise variance.
    """

    mean: F64  # m (d,)
    C: F64  # (d, n): the axes with more variance than noise, times their standard deviations
    ridge: F64  # (n,): σ²λ/(λ − σ²)


class Filled(NamedTuple):
    """A block whose missing entries are filled, with the predictor that filled them."""

    V: Array  # (n, d)
    predictor: Predictor
    X: F64  # (n, K): the x of each message, whose prediction is m + Cx
    root_q: F64  # (d,): √q, where q is the share of the messages in which an entry is observed, at least 0.1
    shown: NDArray[np.bool_]  # (n, d): which entries are observed


def fill_missing_entries(state: State, V: Array, weights: centring.Weights, components: int, center: bool) -> Filled:
    """Fill the missing entries of the block V (n, d) that follows `state` with predictions from the observed entries.

    A filled entry is exactly its prediction, so entries with gaps would vary too little. To make up for this, an
    observed entry, which differs from its prediction by r, becomes the prediction plus r/√q. q is the weighted share of
    the messages in which the entry is observed: the sum of r²/q is about what the sum of r² would be without gaps.
    """
    missing = np.isnan(V)
    is_first_block = not state.count
    predictor = _fit_by_em(V, missing, components, center) if is_first_block else make_predictor(state, components)
    observed_weight = weights.c @ ~missing  # c: the weight of each message
    q = observed_weight / weights.c.sum()
    # q has a floor: 1/√q of a smaller q would make the few messages that have a rare entry too long.
    root_q = np.sqrt(np.maximum(q, pairs.RARELY_SHOWN))
    filled, X = filling.fill(  # X: the coordinates of the predictions
        V, mean=predictor.mean, C=predictor.C, ridge=predictor.ridge, root_q=root_q
    )
    return Filled(V=filled, predictor=predictor, X=X, root_q=root_q, shown=~missing)


def make_predictor(state: State, components: int) -> Predictor:
    """Make the predictor of missing entries in the messages that follow a state."""
    k = min(components, state.rank)
    # With gaps, Σ may have negative eigenvalues. Then the total variance, which is the trace of Σ, may be less than the
    # variance along the leading axes. The total must not be less than this part.
    total_variance = max(state.total_variance, float(state.variance.sum()))
    return _build_predictor(
        state.mean,
        state.C[:, :k],  # `state.C` holds all columns, [C | F]
        state.variance[:k],
        total_variance=total_variance,
        seen_dimensions=state.seen_dimensions,
    )


def _build_predictor(mean: F64, C: Array, variance: F64, total_variance: float, seen_dimensions: int) -> Predictor:
    """Make a predictor from the columns of C (d, k) that have more variance λ than the noise variance σ².

    σ² is the mean variance outside of the columns: `total_variance` less all λ (`variance`), for each of the other
    directions of the `seen_dimensions`.

        ridge = σ² λ/(λ − σ²) = σ² / (1 − σ²/λ)

    Probabilistic PCA predicts by ridge regression with the ridge σ² on axes of the squared lengths λ − σ². The columns
    of C have the squared lengths λ, which are larger by the factor λ/(λ − σ²). The prediction is the same if the ridge
    of each axis is larger by the same factor as its squared length.
    """
    noise = max(
        compute_noise_variance(variance, seen_dimensions, total_variance), _MIN_NOISE * variance.max(initial=0.0)
    )
    has_signal = variance > noise
    if not has_signal.any():  # nothing can be predicted from other entries
        return _build_mean_predictor(mean)
    ridge = noise / (1 - noise / variance[has_signal])
    signal_C = C[:, has_signal].astype(np.float64)
    # A constant entry has only rounding errors in its row of C. With zeros, it is filled with exactly its mean.
    rounding = _ROUNDING * float(np.finfo(C.dtype).eps)
    is_constant = np.abs(signal_C).max(axis=1) < rounding * np.abs(signal_C).max()
    signal_C[is_constant] = 0.0
    return Predictor(mean, np.ascontiguousarray(signal_C), ridge)


def _build_mean_predictor(mean: F64) -> Predictor:
    """Make a predictor that fills each missing entry with its mean: it has one column of zeros."""
    return Predictor(mean, np.zeros((len(mean), 1)), np.ones(1))


def prepare_new_entries(state: State, V: Array, center: bool) -> tuple[State, Array]:
    """Clip outliers of the new entries of the block V (n, d). A new entry was missing in all messages before the block.

    Returns the state and the clipped block. If means are learned (`center`), the state gets the mean of each new entry
    that some message of the block has. In the first block of a stream, no mean is set, because EM will find the means.
    """
    is_new = state.known_shares <= 0
    if not is_new.any():
        return state, V
    clipped = V.copy()
    clipped[:, is_new] = centring.move_entries_near_medians(clipped[:, is_new])  # clips to ten median distances
    is_first_block = not state.count
    if is_first_block or not center:
        return state, clipped
    # In a stream without variance, each later value that differs from the mean is an outlier. So the mean must not be
    # rounded.
    stream_was_constant = state.total_variance == 0
    block_mean = _compute_exact_mean(clipped) if stream_was_constant else compute_observed_mean(clipped)
    begins_in_block = is_new & ~np.isnan(clipped).all(axis=0)
    return replace(state, mean=np.where(begins_in_block, block_mean, state.mean)), clipped


def _compute_exact_mean(V: Array) -> F64:
    """Compute the mean of the observed values of each entry in V (n, d): exactly, if all values of the entry are equal.

    A computed mean may be off by rounding. In a stream without variance, all later values would then be outliers.
    """
    constant_values = _find_constant_values(V)  # NaN for an entry with several values
    return np.where(np.isnan(constant_values), compute_observed_mean(V), constant_values)


def _find_constant_values(V: Array) -> F64:
    """Find the one value of each entry in the messages that have it, (d,): NaN for several values, 0 for none."""
    lowest = np.fmin.reduce(V, axis=0)  # NaN if no message has the entry
    highest = np.fmax.reduce(V, axis=0)
    constant_values = np.where(lowest == highest, lowest, np.nan)
    return np.where(np.isnan(lowest), 0.0, constant_values).astype(np.float64)


def _fit_by_em(V: Array, missing: NDArray[np.bool_], components: int, center: bool) -> Predictor:
    """Find the predictor for the first block V (n, d) of a stream by expectation maximisation (EM)."""
    d = V.shape[1]
    if center:
        constant_values = _find_constant_values(V)  # NaN for an entry with several values
        are_all_constant = not np.isnan(constant_values).any()
        if are_all_constant:
            # The values are the means. Computed means may be off by rounding, and all later values would be outliers.
            return _build_mean_predictor(constant_values)
    seen_dimensions = int((~missing).any(axis=0).sum())  # number of entries that some message has
    mean = compute_observed_mean(V) if center else np.zeros(d)
    predictor = _start_em(V - mean, mean, missing, components)
    root_q = np.ones(d)  # `fill` divides the residuals of observed entries by this: with 1, the entries do not change
    for _ in range(EM_ITERATIONS):
        filled, _ = filling.fill(V, mean=predictor.mean, C=predictor.C, ridge=predictor.ridge, root_q=root_q)
        if center:
            mean = filled.mean(axis=0, dtype=np.float64)
        predictor = _fit_to_filled(filled, mean, components, seen_dimensions)
    return predictor


def _fit_to_filled(filled: Array, mean: F64, components: int, seen_dimensions: int) -> Predictor:
    """Make the predictor of missing entries from messages that were filled, (n, d), by their covariance YᵀY.

    `seen_dimensions` is the number of entries that some message has.
    """
    Y = (filled - mean) / np.sqrt(len(filled))
    limits = ritz.Limits(columns=components, smallest_variance_share=ritz.RANK_TOLERANCE, smallest_deviation=0.0)
    C = ritz.decompose_rows(Y, limits)  # the axes of YᵀY, times their standard deviations
    variance = np.vecdot(C.T, C.T)  # the squared length of each column
    total_variance = float(np.vdot(Y, Y))
    return _build_predictor(mean, C, variance, total_variance=total_variance, seen_dimensions=seen_dimensions)


def _start_em(Y: Array, mean: F64, missing: NDArray[np.bool_], components: int) -> Predictor:
    """Make the predictor with which EM begins on centred messages Y (n, d).

    Usually the predictor fills missing entries with their means. If two entries never occur in one message, EM would
    often end in a wrong optimum. In this case the predictor is made from a covariance matrix, in which the covariance
    of the two entries is estimated from the entries that occur with both.
    """
    shown = (~missing).astype(np.float64)
    pair_counts = shown.T @ shown  # messages that have both entries
    seen = np.flatnonzero(pair_counts.diagonal() > 0)  # entries that some message has
    has_all_pairs = (pair_counts[np.ix_(seen, seen)] > 0).all()
    if has_all_pairs:
        return _build_mean_predictor(mean)
    Y_with_zeros = np.where(missing, 0.0, Y)
    S = complete_covariance(Y_with_zeros.T @ Y_with_zeros / np.maximum(pair_counts, 1.0), is_known=pair_counts > 0)
    ascending_variance, axes = np.linalg.eigh(S)
    variance = np.maximum(ascending_variance[::-1][:components], 0.0)
    C = axes[:, ::-1][:, :components] * np.sqrt(variance)
    return _build_predictor(mean, C, variance, total_variance=float(np.trace(S)), seen_dimensions=len(seen))


def complete_covariance(S: F64, is_known: NDArray[np.bool_]) -> F64:
    """Fill in the covariances, in the matrix S (d, d), of the pairs of entries that never occurred in one message.

    `is_known` (d, d), which is symmetric, says of each pair whether both entries occurred in one message. Entries whose
    rows of `is_known` are equal form a group. So between two groups, either all covariances are known or none. If none
    is known, all are filled in at once.
    """
    seen = np.flatnonzero(is_known.diagonal())  # entries that occurred in some message
    if is_known[np.ix_(seen, seen)].all():
        return S
    completed = S.copy()
    _, group_indices = np.unique(is_known[seen], axis=0, return_inverse=True)  # the group of each seen entry
    groups = [seen[group_indices.ravel() == g] for g in range(group_indices.max() + 1)]
    for g, group_i in enumerate(groups):
        for group_j in groups[:g]:
            occurred_together = is_known[group_i[0], group_j[0]]  # the same for all entries of the two groups
            if not occurred_together:
                covariances = _link_groups(completed, is_known, group_i, group_j)
                completed[np.ix_(group_i, group_j)] = covariances
                completed[np.ix_(group_j, group_i)] = covariances.T
    return completed


def _link_groups(S: F64, is_known: NDArray[np.bool_], group_i: NDArray[np.intp], group_j: NDArray[np.intp]) -> F64:
    """Estimate the covariances between two groups i and j of entries as Σ_iL Σ_LL⁻¹ Σ_Lj.

    `is_known` (d, d) says of each pair of entries whether both occurred in one message. Some entries occurred with both
    groups. L are those of them that occurred with every one of them, so that all of Σ_LL is known. All entries of a
    group have equal rows of `is_known`, so the first row stands for all.
    """
    with_both_groups = np.flatnonzero(is_known[group_i[0]] & is_known[group_j[0]])
    occurred_together = is_known[np.ix_(with_both_groups, with_both_groups)]
    L = with_both_groups[occurred_together.all(axis=1)]
    if not len(L):
        return np.zeros((len(group_i), len(group_j)))
    variance, axes = np.linalg.eigh(S[np.ix_(L, L)])
    least = max(_MIN_NOISE * variance[-1], _TINY)  # Σ_LL may be singular
    inverse = (axes / np.maximum(variance, least)) @ axes.T  # of Σ_LL, with each eigenvalue at least `least`
    with np.errstate(over="ignore", invalid="ignore"):
        covariances = np.nan_to_num(S[np.ix_(group_i, L)] @ inverse @ S[np.ix_(L, group_j)])
    # Negative eigenvalues of Σ_LL, as from few messages, were raised to `least`. The inverse of `least` is huge, so the
    # covariances may be far too large, and are limited.
    variances = S.diagonal()
    return limit_covariances(covariances, variances[group_i], variances[group_j])
