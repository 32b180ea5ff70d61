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
    """Fill the missing entries of the block V (n, d) that follows `state`."""
    missing = np.isnan(V)
    is_first_block = not state.count
    predictor = _fit_by_em(V, missing, components, center) if is_first_block else make_predictor(state, components)
    q = weights.c @ ~missing / weights.c.sum()  # share of messages that show each entry
    # Residuals are divided by √q, so that their squares are right on average.
    root_q = np.sqrt(np.maximum(q, pairs.RARELY_SHOWN))
    filled, X = filling.fill(V, *predictor, root_q)  # X: the coordinates of the predictions
    return Filled(V=filled, predictor=predictor, X=X, root_q=root_q, shown=~missing)


def make_predictor(state: State, components: int) -> Predictor:
    """Make the predictor of missing entries in the messages that follow a state."""
    k = min(components, state.rank)
    # The columns may have more variance than Σ if Σ has negative eigenvalues.
    total_variance = max(state.total_variance, float(state.variance.sum()))
    return _build_predictor(
        state.mean,
        state.C[:, :k],
        state.variance[:k],
        total_variance=total_variance,
        seen_dimensions=state.seen_dimensions,
    )


def _build_predictor(mean: F64, C: Array, variance: F64, total_variance: float, seen_dimensions: int) -> Predictor:
    """Make a predictor from the columns of C (d, k) with more variance than noise."""
    noise = max(
        compute_noise_variance(variance, seen_dimensions, total_variance), _MIN_NOISE * variance.max(initial=0.0)
    )
    has_signal = variance > noise
    if not has_signal.any():
        return _build_mean_predictor(mean)
    rounding = 8 * float(np.finfo(C.dtype).eps)
    C = C[:, has_signal].astype(np.float64)
    # A constant entry must be filled with exactly its mean.
    is_constant = np.abs(C).max(axis=1) < rounding * np.abs(C).max()
    C[is_constant] = 0.0
    ridge = noise / (1 - noise / variance[has_signal])
    return Predictor(mean, np.ascontiguousarray(C), ridge)


def _build_mean_predictor(mean: F64) -> Predictor:
    """Make a predictor that fills each missing entry with its mean: it has one column of zeros."""
    return Predictor(mean, np.zeros((len(mean), 1)), np.ones(1))


def prepare_new_entries(state: State, V: Array, center: bool) -> tuple[State, Array]:
    """Clip outliers of the entries that no message before the block V (n, d) has shown.

    If means are learned, the state gets the block's means of these entries.
    """
    is_unseen = state.known_entries <= 0
    if not is_unseen.any():
        return state, V
    V = V.copy()
    V[:, is_unseen] = centring.move_entries_near_medians(V[:, is_unseen])
    is_first_block = not state.count
    if is_first_block or not center:  # EM finds the means of a first block
        return state, V
    observed_mean = compute_observed_mean(V)
    was_constant = state.total_variance == 0
    if was_constant:
        # A rounded mean of equal values would make later values outliers.
        constant_values = _find_constant_values(V)
        observed_mean = np.where(np.isnan(constant_values), observed_mean, constant_values)
    is_first_shown = is_unseen & ~np.isnan(V).all(axis=0)
    return replace(state, mean=np.where(is_first_shown, observed_mean, state.mean)), V


def _find_constant_values(V: Array) -> F64:
    """Find the value that each entry has in all messages that show it, (d,): NaN if there are several, 0 if none."""
    lowest = np.fmin.reduce(V, axis=0)  # NaN if no message shows the entry
    highest = np.fmax.reduce(V, axis=0)
    constant_values = np.where(lowest == highest, lowest, np.nan)
    return np.where(np.isnan(lowest), 0.0, constant_values).astype(np.float64)


def _fit_by_em(V: Array, missing: NDArray[np.bool_], components: int, center: bool) -> Predictor:
    """Find the predictor for the first block V (n, d) of a stream by expectation maximisation (EM)."""
    d = V.shape[1]
    if center:
        constant_values = _find_constant_values(V)
        is_constant = not np.isnan(constant_values).any()
        if is_constant:
            # Rounded means would make later messages outliers.
            return _build_mean_predictor(constant_values)
    seen_dimensions = int((~missing).any(axis=0).sum())
    mean = compute_observed_mean(V) if center else np.zeros(d)
    predictor = _start_em(V - mean, mean, missing, components)
    for _ in range(EM_ITERATIONS):
        # With `root_q` 1, observed entries stay as they are.
        filled, _ = filling.fill(V, *predictor, root_q=np.ones(d))
        if center:
            mean = filled.mean(axis=0, dtype=np.float64)
        predictor = _fit_to_filled(filled, mean, components, seen_dimensions)
    return predictor


def _fit_to_filled(filled: Array, mean: F64, components: int, seen_dimensions: int) -> Predictor:
    """Make the predictor from the covariance of filled messages (n, d) about the mean."""
    Y = (filled - mean) / np.sqrt(len(filled))
    limits = ritz.Limits(columns=components, rounding=ritz.RANK_TOLERANCE, smallest=0.0)
    C = ritz.decompose_rows(Y, limits)
    variance = np.vecdot(C.T, C.T)
    total_variance = float(np.vdot(Y, Y))
    return _build_predictor(mean, C, variance, total_variance=total_variance, seen_dimensions=seen_dimensions)


def _start_em(Y: Array, mean: F64, missing: NDArray[np.bool_], components: int) -> Predictor:
    """Make the predictor with which EM begins on centred messages Y (n, d).

    If no message shows some pair, EM begins with a covariance instead of means.
    """
    shown = (~missing).astype(np.float64)
    pair_counts = shown.T @ shown  # messages that show both entries
    seen = np.flatnonzero(pair_counts.diagonal() > 0)
    has_all_pairs = (pair_counts[np.ix_(seen, seen)] > 0).all()
    if has_all_pairs:
        return _build_mean_predictor(mean)
    Y = np.where(missing, 0.0, Y)
    S = complete_covariance(Y.T @ Y / np.maximum(pair_counts, 1.0), is_known=pair_counts > 0)
    ascending_variance, axes = np.linalg.eigh(S)
    variance = np.maximum(ascending_variance[::-1][:components], 0.0)
    C = axes[:, ::-1][:, :components] * np.sqrt(variance)
    return _build_predictor(mean, C, variance, total_variance=float(np.trace(S)), seen_dimensions=len(seen))


def complete_covariance(S: F64, is_known: NDArray[np.bool_]) -> F64:
    """Fill in the covariances in Σ (d, d) of pairs of entries that are not known together.

    From entries L that are known with both, Σ_ij becomes Σ_iL Σ_LL⁻¹ Σ_Lj. Entries with equal rows of `is_known` are
    a group.
    """
    seen = np.flatnonzero(is_known.diagonal())
    if is_known[np.ix_(seen, seen)].all():
        return S
    S = S.copy()
    _, group_indices = np.unique(is_known[seen], axis=0, return_inverse=True)
    groups = [seen[group_indices.ravel() == g] for g in range(group_indices.max() + 1)]
    for g, left in enumerate(groups):
        for right in groups[:g]:
            are_known_together = is_known[left[0], right[0]]
            if not are_known_together:
                linked = _link_groups(S, is_known, left, right)
                S[np.ix_(left, right)] = linked
                S[np.ix_(right, left)] = linked.T
    return S


def _link_groups(S: F64, is_known: NDArray[np.bool_], left: NDArray[np.intp], right: NDArray[np.intp]) -> F64:
    """Compute the covariances between two groups of entries from entries L.

    L were known with both groups and with each other. All entries of a group have equal rows of `is_known`.
    """
    with_both = np.flatnonzero(is_known[left[0]] & is_known[right[0]])
    L = with_both[is_known[np.ix_(with_both, with_both)].all(axis=1)]
    if not len(L):
        return np.zeros((len(left), len(right)))
    variance, axes = np.linalg.eigh(S[np.ix_(L, L)])
    least = max(_MIN_NOISE * variance[-1], _TINY)  # Σ_LL may be singular
    inverse = (axes / np.maximum(variance, least)) @ axes.T
    with np.errstate(over="ignore", invalid="ignore"):
        linked = np.nan_to_num(S[np.ix_(left, L)] @ inverse @ S[np.ix_(L, right)])
    # Σ_LL of few messages may have eigenvalues below 0, by which the product becomes far too large.
    variances = S.diagonal()
    return limit_covariances(linked, variances[left], variances[right])
