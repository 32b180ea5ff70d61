"""Compiled functions that apply a block with missing entries to Σ, one pair of entries after the other.

gaps.py has the formulas: Δ, E, N, δ, η and n_ij. A packed array is the lower triangle of a symmetric matrix, row after
row. η (`eta`) is the block's share of the weight after the block, and c₀ = 1 − η (`past`) is the share of the past.
`covariance` and `known` are Σ and N before the block, packed. Σ is in the units of the data, and a block is in these
units times D (d,).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import triangle
from streampca.pca.blocked.jit import compiled_within, compiled_without_lock
from streampca.pca.blocked.recurrence import TRANSPOSED, product as multiply

RARELY_SHOWN = 0.1  # if a smaller share of a block's messages shows an entry or a pair, the block counts less for it
_TILE = 32  # rows of the products with C, which stay in the processor's cache


class Fits(NamedTuple):
    """Moments of the fits f = Cx and the residuals r of a block's messages, with their weights c, (d, K) each."""

    C: F64
    fits_with_x: F64  # Σc f xᵀ: its row i, times row j of C, is Σc f_i f_j
    residuals_with_x: F64  # Σc (r/√q) xᵀ: its row j, times row i of C, is Σc f_i r_j/√q_j


class Entries(NamedTuple):
    """The weights of the messages that show each entry, (d,) each, as shares of the weight after the block."""

    shown: F64  # n_jj: weight of the block's messages that show the entry
    known_before: F64  # c₀N_jj: weight for which the entry was known before the block; 0 if it begins in this block
    root_q: F64  # √q_j: rows hold the residual r_j/√q_j, where q_j is the share of the block's messages with the entry
    mean_factor: F64  # √q_j/n_jj: turns Σc r_j/√q_j into the mean of r_j; 0 if no message shows the entry


class PairChanges(NamedTuple):
    """How the messages of a block change each pair of entries, before predictions are added."""

    change: F64  # Δ (d, d), its lower triangle: E∘(B − Σ)
    replaced_share: F64  # E, packed: the share of each pair's moments that the block replaces
    known: F64  # N after the block, packed


@compiled_without_lock
def compute_changes(
    product: F64, change_of_row_mean: F64, fits: Fits, entries: Entries, shown: F64, past: float, covariance: F64,
    D: F64, known: F64,
) -> PairChanges:  # fmt: skip
    """Compute how a block with missing entries changes each covariance (gaps.py, steps 1–3 and 6).

    A row y is a fit f plus a residual r/√q. `product` (d, d) is the lower triangle of Σc yyᵀ, and `shown` of the
    weights of pairs.
    """
    eta = 1.0 - past
    d = len(change_of_row_mean)
    change = np.zeros((d, d))
    replaced_share = np.empty(len(known))
    next_known = np.empty(len(known))
    for first in range(0, d, _TILE):
        end = min(first + _TILE, d)
        FF = multiply(fits.fits_with_x[first:end], fits.C[:end], TRANSPOSED)  # Σc f_i f_j
        FR = multiply(fits.C[first:end], fits.residuals_with_x[:end], TRANSPOSED)  # Σc f_i r_j/√q_j
        RF = multiply(fits.residuals_with_x[first:end], fits.C[:end], TRANSPOSED)
        for i in range(first, end):
            row = i * (i + 1) // 2
            for j in range(i + 1):
                ff = FF[i - first, j]
                fr = FR[i - first, j]
                rf = RF[i - first, j]
                known_before = past * known[row + j]
                if shown[i, j] > 0:
                    # Each of the four products of f + r is averaged over the messages that have it.
                    row_product = product[i, j] + change_of_row_mean[i] * change_of_row_mean[j]
                    rr = (row_product - ff - fr - rf) * (entries.root_q[i] * entries.root_q[j])
                    moment = ff / eta + fr * entries.mean_factor[j] + rf * entries.mean_factor[i] + rr / shown[i, j]
                    counted = min(eta, shown[i, j] / RARELY_SHOWN)
                    next_known[row + j] = known_before + counted
                    replaced_share[row + j] = counted / next_known[row + j]
                else:
                    moment = _average_pair_never_together(entries, i, j, ff, fr, rf, eta)
                    replaced_share[row + j] = _compute_replaced_share_if_never_together(entries, i, j, eta)
                    next_known[row + j] = known_before + eta if known_before > 0 else 0.0
                covariance_before = covariance[row + j] * (D[i] * D[j])
                change[i, j] = replaced_share[row + j] * (moment - covariance_before)
    return PairChanges(change, replaced_share, next_known)


@compiled_within
def _begins(entries: Entries, j: int) -> bool:
    """Return whether entry j was never known before this block."""
    return bool(entries.known_before[j] <= 0)


@compiled_within
def _average_pair_never_together(
    entries: Entries, i: int, j: int, ff: float, fr: float, rf: float, eta: float
) -> float:
    """Compute B_ij (gaps.py, step 1 or 6) from the parts ff, fr and rf, if no message shows both entries.

    If an entry begins in the block, each part is averaged over the messages that have it, otherwise over all messages.
    """
    moment: float
    if _begins(entries, i) or _begins(entries, j):
        moment = ff / eta + fr * entries.mean_factor[j] + rf * entries.mean_factor[i]
    else:
        moment = (ff + fr * entries.root_q[j] + rf * entries.root_q[i]) / eta
    return moment


@compiled_within
def _compute_replaced_share_if_never_together(entries: Entries, i: int, j: int, eta: float) -> float:
    """Return the share of Σ_ij that the block replaces if no message shows both entries (gaps.py, step 6)."""
    i_is_shown = entries.shown[i] > 0
    j_is_shown = entries.shown[j] > 0
    each_is_shown = i_is_shown and j_is_shown
    one_begins = _begins(entries, i) or _begins(entries, j)
    if not (each_is_shown or one_begins):
        return 0.0
    i_known = entries.known_before[i] + (eta if i_is_shown else 0.0)
    j_known = entries.known_before[j] + (eta if j_is_shown else 0.0)
    pair_weight = min(i_known, j_known)
    return eta / max(eta, pair_weight) if pair_weight > 0 else 0.0


@compiled_without_lock
def compute_changes_of_complete_block(
    product: F64, change_of_row_mean: F64, past: float, covariance: F64, D: F64, known: F64
) -> PairChanges:
    """Compute how a block of complete messages changes the covariance of each pair (gaps.py, steps 1–3).

    `product` (d, d) is Σc yyᵀ with y = D(v − m).
    """
    eta = 1.0 - past
    d = len(change_of_row_mean)
    row = 0  # where row i begins
    change = np.zeros((d, d))
    replaced_share = np.empty(len(known))
    next_known = np.empty(len(known))
    for i in range(d):
        for j in range(i + 1):
            moment = (product[i, j] + change_of_row_mean[i] * change_of_row_mean[j]) / eta
            next_known[row + j] = past * known[row + j] + eta
            replaced_share[row + j] = eta / next_known[row + j]
            change[i, j] = replaced_share[row + j] * (moment - covariance[row + j] * (D[i] * D[j]))
        row += i + 1
    return PairChanges(change, replaced_share, next_known)


class PredictedChanges(NamedTuple):
    """Changes of covariances and means that are predicted from the changes of ordinary entries.

    A predicted entry i is row i of C, times the coordinates x. So its covariance with entry j changes by row i of C,
    times row j of `covariances_with_x`.
    """

    C: F64  # (d, K)
    covariances_with_x: F64  # (d, K): how the covariances of each entry with x change
    mean: F64  # (d,): change of the mean of each entry
    is_predicted: NDArray[np.bool_]  # (d,): False for ordinary entries, and for those that begin in the block


@compiled_without_lock
def add_changes(
    covariance_before: F64, shown_changes: PairChanges, predicted_changes: PredictedChanges, mean_change: F64,
    variance: F64, eta: float, D: F64, next_D: F64, square: Array,
) -> F64:  # fmt: skip
    """Compute Σ after a block, packed, from the shown and the predicted changes (gaps.py, steps 4 and 5).

    Fills in `square` (d, d), which is Σ times `next_D` on both sides.
    """
    d = len(variance)
    after = np.empty(len(covariance_before))
    deviation = np.empty(d)
    for j in range(d):
        deviation[j] = np.sqrt(variance[j])
    row = 0  # where row i begins
    for i in range(d):
        for j in range(i + 1):
            value = covariance_before[row + j] * (D[i] * D[j])
            value = value + shown_changes.change[i, j] - mean_change[i] * mean_change[j]
            if predicted_changes.is_predicted[i] or predicted_changes.is_predicted[j]:
                predicted_share = 1.0 - shown_changes.replaced_share[row + j] / eta  # negative for a late entry
                value += predicted_share * _predict_pair(predicted_changes, i, j)
            largest = deviation[i] * deviation[j]  # so that no correlation exceeds 1
            value = min(max(value, -largest), largest)
            if i == j:  # `largest` is rounded
                value = variance[i]
            after[row + j] = value / (D[i] * D[j])
            square[i, j] = after[row + j] * (next_D[i] * next_D[j])
        row += i + 1
    triangle.mirror(square)
    return after


@compiled_within
def _predict_pair(changes: PredictedChanges, i: int, j: int) -> float:
    """Return the predicted change of the covariance of entries i and j, of which one must be predicted.

    A predicted entry is its row of C times the coordinates x. So the covariance changes by this row, times the changes
    of the other entry's covariances with x.
    """
    predicted_entry = i
    other_entry = j
    if not changes.is_predicted[i]:
        predicted_entry = j
        other_entry = i
    change = 0.0
    for m in range(changes.C.shape[1]):
        change += changes.C[predicted_entry, m] * changes.covariances_with_x[other_entry, m]
    return change
