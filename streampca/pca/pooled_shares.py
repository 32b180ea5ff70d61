"""Computes the share that each of two merged states has in pooled moments, if entries were missing in their streams."""

import numpy as np

from streampca.pca.arrays import F64
from streampca.pca.state import State

_FILLED_WEIGHT = 1e-15  # N of a pair that no message shows together: what filled messages say of it hardly counts
_RARE = 0.1  # if a smaller share of the messages shows an entry, the entry counts less in a merge


def compute_added_share(before: State, state: State, past: float, new: float) -> F64 | None:
    """Compute the share of an added state in the pooled covariance of each pair, packed; without Σ, of each entry (d,).

    `past` and `new` are the shares of the two states in the weight. Returns None if the share is `new` everywhere.
    """
    known_before = _compute_known_shares(before)
    known_added = _compute_known_shares(state)
    if known_before is None and known_added is None:
        return None
    # None stands for 1 everywhere.
    added_weight = new * (1.0 if known_added is None else known_added)
    weight = added_weight + past * (1.0 if known_before is None else known_before)
    return np.asarray(added_weight / np.where(weight > 0, weight, 1.0))


def _compute_known_shares(state: State) -> F64 | None:
    """Compute the share of a state's weight with which each pair counts in a merge, packed; without Σ, each entry (d,).

    Returns None if all of the weight counts everywhere. A pair counts by N, the share of the weight for which both
    entries have been known, with two exceptions:

    - If less than a tenth of the messages show an entry, it counts at most by the square of ten times this share. N
      does not say so, because an entry is known from its first message on, however few messages follow.
    - If no message shows both entries of a pair, its covariance comes from filled messages alone. It counts so little
      that any state with messages that show both outweighs it.
    """
    entry_shares = state.known_entries
    if state.missing is not None:
        shown_share = 1 - state.missing
        entry_shares = np.minimum(entry_shares, np.square(shown_share / _RARE))
    if state.known is None and entry_shares.min() >= 1:
        return None
    if state.covariance is None:
        return entry_shares
    share_of_rarer_entry = np.minimum.outer(entry_shares, entry_shares)[np.tril_indices(len(entry_shares))]
    if state.known is None:
        return share_of_rarer_entry
    # Where Σ_ij is 0, nothing is known of the pair, not even from filled messages.
    share_if_filled = np.where(state.covariance != 0, _FILLED_WEIGHT * share_of_rarer_entry, 0.0)
    return np.where(state.known > 0, np.minimum(state.known, share_of_rarer_entry), share_if_filled)


def pool_shares(before: F64 | None, past: float, added: F64 | None, new: float, *, if_none: float) -> F64 | None:
    """Average the shares (n,) of two states, which have the shares `past` and `new` of the weight.

    None stands for the same share `if_none` everywhere. If both are None, the result is None.
    """
    if before is None and added is None:
        return None
    before_or_same = if_none if before is None else before
    added_or_same = if_none if added is None else added
    return np.asarray(past * before_or_same + new * added_or_same)
