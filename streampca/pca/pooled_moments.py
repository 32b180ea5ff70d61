"""Pools the moments of two states: weighted means, variances and covariances about the common mean.

Each entry and each pair of entries counts with a share of a state's weight. N_ij from `State.known` is the share of the
weight for which both entries have been known, and s_j is the share of the messages that show entry j. An entry counts
with the share e_j = min(N_jj, (s_j/0.1)²), and a pair of entries with min(N_ij, e_i, e_j). Shares of pairs are packed;
if Σ is not kept, there are only shares of entries, (d,).
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

    The columns and the weight of `before` stay as they are. `before` counts with the share p of the sum of both
    weights, and `added` with the share n:

        δ = m₂ − m₁        mean = m₁ + nδ        covariance = pΣ₁ + nΣ₂ + pn δδᵀ

    p is `past_share` and n is `new_share`, unless entries were missing. Then each entry has its own p and n.
    """
    mean_difference = added.mean - before.mean  # δ
    added_shares = _compute_added_shares(before, added, past_share, new_share)
    n: F64 | float = new_share
    p: F64 | float = past_share
    if added_shares is not None:
        n = take_entry_shares(added_shares, len(mean_difference))
        p = 1 - n
    weighted_difference = np.sqrt(p * n) * mean_difference
    square = float(weighted_difference @ weighted_difference)
    total_variance = past_share * before.total_variance + new_share * added.total_variance + square
    variances = None
    if before.variances is not None and added.variances is not None:
        variances = p * before.variances + n * added.variances + np.square(weighted_difference)
    covariance = None
    if before.covariance is not None and added.covariance is not None:
        if added_shares is None:
            pn_outer = triangle.pack_outer(weighted_difference)  # pn δδᵀ
            covariance = past_share * before.covariance + new_share * added.covariance + pn_outer
        else:
            covariance = _pool_pair_by_pair(before.covariance, added.covariance, mean_difference, added_shares)
            # Each entry has its own shares, so the total is the sum of the pooled variances.
            total_variance = float(covariance[find_packed_diagonal(len(mean_difference))].sum())
    pooled = replace(
        before,
        mean=before.mean + n * mean_difference,
        total_variance=total_variance,
        covariance=covariance,
        variances=variances,
        missing=pool_shares(before.missing, past_share, added.missing, new_share, if_none=0.0),
        known=none_if_all_known(pool_shares(before.known, past_share, added.known, new_share, if_none=1.0)),
    )
    return pooled, weighted_difference


def _pool_pair_by_pair(before: F64, added: F64, mean_difference: F64, added_shares: F64) -> F64:
    """Pool the packed covariances Σ₁ of `before` and Σ₂ of `added`, each about the mean of its state.

        (1 − n) (Σ₁ + aaᵀ) + n (Σ₂ + bbᵀ)

    `added` has its own share n in each pair of entries, the packed `added_shares`. a and b (d,) are the distances of
    both means from the pooled mean: a = eδ and b = (1 − e)δ, where δ is the mean of `added` less the mean of `before`,
    and e is the share of `added` in each single entry.
    """
    entry_shares = take_entry_shares(added_shares, len(mean_difference))  # e
    before_about_new_mean = before + triangle.pack_outer(entry_shares * mean_difference)
    added_about_new_mean = added + triangle.pack_outer((1 - entry_shares) * mean_difference)
    return (1 - added_shares) * before_about_new_mean + added_shares * added_about_new_mean


def _compute_added_shares(before: State, added: State, past_share: float, new_share: float) -> F64 | None:
    """Compute the share of the state `added` in the pooled covariance of each pair of entries, packed.

    `past_share` and `new_share` are the weights of the states, divided by their sum. A state with missing entries
    counts only with a share of its weight in some pairs. If both states are complete, the answer is None: `added` has
    the share `new_share` in all pairs.
    """
    counted_before = _compute_counted_shares(before)  # None: the state counts with its whole weight in all pairs
    counted_added = _compute_counted_shares(added)
    if counted_before is None and counted_added is None:
        return None
    weight_before = past_share * (1.0 if counted_before is None else counted_before)
    weight_added = new_share * (1.0 if counted_added is None else counted_added)
    weight = weight_added + weight_before
    return np.asarray(weight_added / np.where(weight > 0, weight, 1.0))


def _compute_counted_shares(state: State) -> F64 | None:
    """Compute how much a state counts in each pair of entries when states are pooled, as a share of its weight; packed.

    A pair counts with its known share, the share of the weight for which both entries have been known, but at most with
    the share of its rarer entry. If no message shows both entries, but their covariance was estimated, the pair counts
    with almost nothing. If the state does not keep Σ, returns the shares of single entries, (d,). None: all are 1.
    """
    entry_shares = _compute_counted_shares_of_entries(state)
    if state.known is None and entry_shares.min() >= 1:  # all pairs have always been known, and no entry is rare
        return None
    if state.covariance is None:
        return entry_shares
    share_of_rarer_entry = find_smaller_of_each_pair(entry_shares)
    if state.known is None:  # all pairs have always been known
        return share_of_rarer_entry
    # If no message shows both entries, their covariance was estimated from filled entries, or is still 0.
    has_covariance = state.covariance != 0
    share_if_filled = np.where(has_covariance, _FILLED_SHARE * share_of_rarer_entry, 0.0)
    was_shown_together = state.known > 0
    return np.where(was_shown_together, np.minimum(state.known, share_of_rarer_entry), share_if_filled)


def _compute_counted_shares_of_entries(state: State) -> F64:
    """Compute the share of a state's weight with which each entry counts, (d,).

    An entry counts with the share of the weight since the first message that shows it: its known share. An entry that
    few messages show counts less, because most of its values were filled in by prediction.
    """
    if state.missing is None:  # no message lacks an entry
        return state.known_shares
    shown_shares = 1 - state.missing  # of all messages
    shares_if_rare = np.square(shown_shares / _RARELY_SHOWN_SHARE)  # squared, so that a few messages hardly count
    return np.minimum(state.known_shares, shares_if_rare)


def pool_shares(
    before: F64 | None, past_share: float, added: F64 | None, new_share: float, *, if_none: float
) -> F64 | None:
    """Return past_share · before + new_share · added, (n,), where None stands for the number `if_none`."""
    if before is None and added is None:
        return None
    before_or_constant = if_none if before is None else before
    added_or_constant = if_none if added is None else added
    return np.asarray(past_share * before_or_constant + new_share * added_or_constant)
