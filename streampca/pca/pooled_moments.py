"""Pools the moments of two states: weighted means, variances and covariances about the common mean.

Each entry and each pair counts with its share of a state's weight for which it has been known. With N_ij from
`State.known`, and s_j the share of the messages that show entry j, an entry counts by e_j = min(N_jj, (s_j/0.1)²), and
a pair of entries by min(N_ij, e_i, e_j). Shares of pairs are packed; if Σ is not kept, there are only shares of
entries, (d,).
"""

from dataclasses import replace

import numpy as np

from streampca.pca.arrays import F64, find_packed_diagonal, find_smaller_of_each_pair, take_entries
from streampca.pca.blocked import triangle
from streampca.pca.state import State, none_if_all_known

_FILLED_WEIGHT = 1e-15  # N of a pair that no message shows together: what filled messages say of it hardly counts
_RARELY_SHOWN_SHARE = 0.1  # if a smaller share of the messages shows an entry, the entry counts less in a merge


def pool_moments(before: State, added: State, past: float, new: float) -> tuple[State, F64]:
    """Return `before` with the pooled moments, but with its own columns and weight.

    The weights of the states are the shares `past` and `new` of their sum. With the shares p and n of an entry, and the
    step δ between the means, Σ = pΣ₁ + nΣ₂ + pn δδᵀ. Also returns √(pn) δ, (d,).
    """
    mean_step = added.mean - before.mean  # δ
    added_shares = _compute_added_shares(before, added, past, new)
    n: F64 | float = new
    p: F64 | float = past
    if added_shares is not None:
        n = take_entries(added_shares, len(mean_step))
        p = 1 - n
    weighted_step = np.sqrt(p * n) * mean_step
    total_variance = past * before.total_variance + new * added.total_variance + float(weighted_step @ weighted_step)
    variances = None
    if before.variances is not None and added.variances is not None:
        variances = p * before.variances + n * added.variances + np.square(weighted_step)
    covariance = None
    if before.covariance is not None and added.covariance is not None:
        if added_shares is None:
            covariance = past * before.covariance + new * added.covariance + triangle.pack_outer(weighted_step)
        else:
            covariance = _pool_pair_by_pair(before.covariance, added.covariance, mean_step, added_shares)
            total_variance = float(covariance[find_packed_diagonal(len(mean_step))].sum())
    pooled = replace(
        before,
        mean=before.mean + n * mean_step,
        total_variance=total_variance,
        covariance=covariance,
        variances=variances,
        missing=pool_shares(before.missing, past, added.missing, new, if_none=0.0),
        known=none_if_all_known(pool_shares(before.known, past, added.known, new, if_none=1.0)),
    )
    return pooled, weighted_step


def _pool_pair_by_pair(before: F64, added: F64, mean_step: F64, added_shares: F64) -> F64:
    """Pool two packed covariances if `added` has its own share in each pair of entries.

    `mean_step` is the mean of `added` less the mean of `before`.
    """
    entry_shares = take_entries(added_shares, len(mean_step))
    before_about_new_mean = before + triangle.pack_outer(entry_shares * mean_step)
    added_about_new_mean = added + triangle.pack_outer((1 - entry_shares) * mean_step)
    return (1 - added_shares) * before_about_new_mean + added_shares * added_about_new_mean


def _compute_added_shares(before: State, added: State, past: float, new: float) -> F64 | None:
    """Compute the share of the state `added` in the pooled covariance of each pair of entries.

    `past` and `new` are the weights of the states, as shares of their sum. None means `new` everywhere.
    """
    known_before = _compute_known_shares(before)
    known_added = _compute_known_shares(added)
    if known_before is None and known_added is None:
        return None
    added_weight = new * (1.0 if known_added is None else known_added)
    weight = added_weight + past * (1.0 if known_before is None else known_before)
    return np.asarray(added_weight / np.where(weight > 0, weight, 1.0))


def _compute_known_shares(state: State) -> F64 | None:
    """Compute the share of a state's weight that counts for each pair of entries, packed; None means 1.

    An entry is `known` from the first message that shows it, and messages that lack it later are filled. So it counts
    less if few messages show it; `missing` is the share that do not.
    """
    entry_shares = state.known_entries
    if state.missing is not None:
        shown_share = 1 - state.missing
        # Squared, so that a few messages hardly count.
        entry_shares = np.minimum(entry_shares, np.square(shown_share / _RARELY_SHOWN_SHARE))
    if state.known is None and entry_shares.min() >= 1:
        return None
    if state.covariance is None:
        return entry_shares
    share_of_rarer_entry = find_smaller_of_each_pair(entry_shares)
    if state.known is None:
        return share_of_rarer_entry
    # A pair that no message shows together has a covariance of filled messages, and hardly counts.
    has_covariance = state.covariance != 0
    share_if_filled = np.where(has_covariance, _FILLED_WEIGHT * share_of_rarer_entry, 0.0)
    was_shown_together = state.known > 0
    return np.where(was_shown_together, np.minimum(state.known, share_of_rarer_entry), share_if_filled)


def pool_shares(before: F64 | None, past: float, added: F64 | None, new: float, *, if_none: float) -> F64 | None:
    """Return past · before + new · added, (n,), where None stands for the number `if_none`."""
    if before is None and added is None:
        return None
    before_or_constant = if_none if before is None else before
    added_or_constant = if_none if added is None else added
    return np.asarray(past * before_or_constant + new * added_or_constant)
