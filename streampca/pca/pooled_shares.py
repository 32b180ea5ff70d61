"""Computes the share that each of two merged states has in pooled moments, if entries were missing in their streams.

With the share s_j of the messages that show entry j, the entry counts by e_j = min(N_jj, (s_j/0.1)²), and a pair of
entries by min(N_ij, e_i, e_j). Shares of pairs are packed; if Σ is not kept, there are only shares of entries, (d,).
"""

import numpy as np

from streampca.pca.arrays import F64, find_smaller_of_each_pair
from streampca.pca.state import State

_FILLED_WEIGHT = 1e-15  # N of a pair that no message shows together: what filled messages say of it hardly counts
_RARELY_SHOWN_SHARE = 0.1  # if a smaller share of the messages shows an entry, the entry counts less in a merge


def compute_added_share(before: State, added: State, past: float, new: float) -> F64 | None:
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
