"""Pools the moments of two states: weighted means, variances and covariances about the common mean.

A state has learned each entry, and each pair of entries, from only a fraction of its weight. In a pool, the entry or
pair counts with this fraction. N_ij from `State.known` is the share of the weight for which both entries have been
known, and s_j is the share of the messages that have entry j. The fraction of an entry is f_j = min(N_jj, (s_j/0.1)²),
and that of a pair is min(N_ij, f_i, f_j). Fractions of pairs are packed; if Σ is not kept, there are only fractions of
entries, (d,).
"""

from dataclasses import replace

import numpy as np

from streampca.pca.arrays import F64, find_packed_diagonal, find_smaller_of_each_pair, take_entry_shares
from streampca.pca.blocked import triangle
from streampca.pca.state import State, none_if_all_known

_FILLED_SHARE = 1e-15  # of a pair that no message shows together: what filled messages say of it hardly counts
_RARELY_SHOWN_SHARE = 0.1  # if a smaller share of the messages shows an entry, the entry counts less in a merge


def pool_moments(before: State, added: State, past_share: float, new_share: float) -> tuple[State, F64]:
    """Pool the moments of two states. Returns `before` with the pooled moments, and the vector √(pn) δ, (d,).

    `before` has the mean m₁ and the covariance Σ₁, and `added` has m₂ and Σ₂. p and n are their shares of both weights
    together: `past_share` and `new_share`, with the sum 1.

        δ = m₂ − m₁        mean = m₁ + nδ        covariance = pΣ₁ + nΣ₂ + pn δδᵀ

    If entries began late or are rare, each entry and each pair of entries has its own p and n for these formulas
    (`_compute_added_shares`). `missing` and `known`, which tell when and how often entries occurred, are always pooled
    with `past_share` and `new_share`. The columns and the weight of `before` are left to the caller.
    """
    mean_difference = added.mean - before.mean  # δ
    added_shares = _compute_added_shares(before, added, past_share, new_share)  # None: `new_share` in all pairs
    n_of_entries: F64 | float = new_share
    p_of_entries: F64 | float = past_share
    if added_shares is not None:  # (d,)
        n_of_entries = take_entry_shares(added_shares, len(mean_difference))
        p_of_entries = 1 - n_of_entries
    weighted_difference = np.sqrt(p_of_entries * n_of_entries) * mean_difference  # √(pn) δ
    variances = None
    if before.variances is not None and added.variances is not None:
        weighted_variances = p_of_entries * before.variances + n_of_entries * added.variances
        variances = weighted_variances + np.square(weighted_difference)
    covariance = None
    if before.covariance is not None and added.covariance is not None:
        if added_shares is None:
            pn_outer = triangle.pack_outer(weighted_difference)  # pn δδᵀ
            covariance = past_share * before.covariance + new_share * added.covariance + pn_outer
        else:
            covariance = _pool_pair_by_pair(before.covariance, added.covariance, mean_difference, added_shares)
    if covariance is not None and added_shares is not None:  # each entry has its own shares
        total_variance = float(covariance[find_packed_diagonal(len(mean_difference))].sum())
    else:
        square = float(weighted_difference @ weighted_difference)
        total_variance = past_share * before.total_variance + new_share * added.total_variance + square
    pooled = replace(
        before,
        mean=before.mean + n_of_entries * mean_difference,
        total_variance=total_variance,
        covariance=covariance,
        variances=variances,
        # `missing` is None if no message lacks an entry. `known` is None if all entries were always known.
        missing=pool_shares(before.missing, past_share, added.missing, new_share, if_none=0.0),
        known=none_if_all_known(pool_shares(before.known, past_share, added.known, new_share, if_none=1.0)),
    )
    return pooled, weighted_difference


def _pool_pair_by_pair(before: F64, added: F64, mean_difference: F64, added_shares: F64) -> F64:
    """Pool the covariances Σ₁ of `before` and Σ₂ of `added`, each about the mean of its state.

    Both are packed: the lower triangle of the matrix (d, d) as a vector. In each pair of entries, the share n of the
    pooled weight comes from `added` (`added_shares`, packed, too). e (d,), the diagonal of n, has the shares of single
    entries. δ (d,) is the mean of `added` less the mean of `before`. So the pooled mean is eδ from the mean of
    `before`, and (1 − e)δ from the mean of `added`:

        (1 − n) (Σ₁ + aaᵀ) + n (Σ₂ + bbᵀ)        a = eδ        b = (1 − e)δ
    """
    entry_shares = take_entry_shares(added_shares, len(mean_difference))  # e
    before_about_new_mean = before + triangle.pack_outer(entry_shares * mean_difference)  # Σ₁ + aaᵀ
    added_about_new_mean = added + triangle.pack_outer((1 - entry_shares) * mean_difference)  # Σ₂ + bbᵀ
    return (1 - added_shares) * before_about_new_mean + added_shares * added_about_new_mean


def _compute_added_shares(before: State, added: State, past_weight: float, new_weight: float) -> F64 | None:
    """Compute the share of the state `added` in the pooled covariance of each pair of entries.

    Shares of pairs are packed: the lower triangle of a matrix (d, d) as a vector. If the states do not keep their
    covariance, but only axes, returns one share for each entry, (d,).

    `past_weight` and `new_weight` are the weights of the states, with the sum 1. In a pair of entries, only a fraction
    of a state's weight counts if one of the two began late or is rare. Returns None if all weight counts in all pairs:
    then the share is `new_weight` in all pairs.
    """
    fraction_before = _compute_pair_fractions(before)  # None: the whole weight counts in all pairs
    fraction_added = _compute_pair_fractions(added)
    if fraction_before is None and fraction_added is None:
        return None
    counted_before = past_weight * (1.0 if fraction_before is None else fraction_before)
    counted_added = new_weight * (1.0 if fraction_added is None else fraction_added)
    counted = counted_added + counted_before
    return np.asarray(counted_added / np.where(counted > 0, counted, 1.0))


def _compute_pair_fractions(state: State) -> F64 | None:
    """Return the fraction of a state's weight that counts for each pair of entries when states are averaged, packed.

    1. Only the weight for which both entries have been known counts (`state.known`; None: the whole weight).
    2. If few messages have an entry, most of its values were filled in by prediction. So a pair has at most the
       fraction of its rarer entry (`_compute_entry_fractions`).
    3. If no message has both entries, but their covariance was estimated, the fraction is almost 0.

    Returns None if all fractions are 1. If the state does not keep Σ, returns the fractions of single entries, (d,).
    """
    entry_fractions = _compute_entry_fractions(state)
    if state.known is None and entry_fractions.min() >= 1:
        return None
    if state.covariance is None:
        return entry_fractions
    fraction_of_rarer_entry = find_smaller_of_each_pair(entry_fractions)
    if state.known is None:  # all pairs have always been known
        return fraction_of_rarer_entry
    # If no message has both entries, their covariance comes from messages with filled entries, or is still 0.
    has_covariance = state.covariance != 0
    fraction_if_filled = np.where(has_covariance, _FILLED_SHARE * fraction_of_rarer_entry, 0.0)
    was_shown_together = state.known > 0
    return np.where(was_shown_together, np.minimum(state.known, fraction_of_rarer_entry), fraction_if_filled)


def _compute_entry_fractions(state: State) -> F64:
    """Return the fraction of a state's weight that counts for each entry when states are averaged, (d,).

    This is the share of the weight since the first message that has the entry (`State.known_shares`). If few messages
    have the entry, most of its values were filled in by prediction, and the fraction is smaller.
    """
    if state.missing is None:  # no message lacks an entry
        return state.known_shares
    observed_share = 1 - state.missing  # share of all messages that have the entry
    # At least 1 if a tenth of the messages or more have the entry. Squared, so that a rare entry hardly counts.
    largest_fraction = np.square(observed_share / _RARELY_SHOWN_SHARE)
    return np.minimum(state.known_shares, largest_fraction)


def pool_shares(
    before: F64 | None, past_share: float, added: F64 | None, new_share: float, *, if_none: float
) -> F64 | None:
    """Return past_share · before + new_share · added, (n,), where None stands for the number `if_none`."""
    if before is None and added is None:
        return None
    before_or_constant = if_none if before is None else before
    added_or_constant = if_none if added is None else added
    return np.asarray(past_share * before_or_constant + new_share * added_or_constant)
