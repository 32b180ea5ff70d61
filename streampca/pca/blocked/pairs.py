"""Compiled functions that apply a block with missing entries to Σ, one pair of entries after the other.

gaps.py has the formulas: Δ, E, N, δ, η and n_ij. A packed array is the lower triangle of a symmetric matrix, row after
row. η (`eta`) is the block's share of the weight after the block, and c₀ = 1 − η (`past`) is the share of the past.
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
    """Compute how a block in which entries are missing changes the covariance Σ_ij of each pair of entries.

    In a message, entry i is f_i + r_i: a fit f = Cx, predicted from the entries that the message shows, and a residual
    r, which is 0 where the entry is missing. The messages have weights c with the sum η, and n_ij (`shown`) is the sum
    of c over the messages that show both i and j. The loop computes B_ij (`moment`), the mean of the product of entries
    i and j over the block, in one of three ways. If some message shows both entries:

        g_ij = min(η, 10 n_ij)         (`counted`: all of η if at least a tenth of the block shows both entries)
        N′_ij = past · N_ij + g_ij     (weight for which both are known)
        E_ij = g_ij/N′_ij              (share of Σ_ij that is replaced)
        Δ_ij = E_ij (B_ij − Σ_ij)      (change of Σ_ij)

    The residual products come from the rows that Algorithm 1 has learned. These are f + r/√q, where q_j is the share of
    the messages that show entry j. The sum of c times the products of a row's entries is `product` about the running
    mean, and `product` + δδᵀ about the mean before the block, with δ = `change_of_row_mean` (d,). Of `product` (d, d),
    only the lower triangle is used.

    Σ (`covariance`) and N (`known`), before the block, are packed. Σ is in the units of the data, and the block in
    these units times D (d,).
    """
    eta = 1.0 - past
    d = len(change_of_row_mean)
    change = np.zeros((d, d))
    replaced_share = np.empty(len(known))
    next_known = np.empty(len(known))
    mean_factor = np.empty(d)  # √q_j/n_jj, which turns Σc f_i r_j/√q_j into Σc f_i r_j/n_jj; 0 if no message shows j
    for j in range(d):
        mean_factor[j] = entries.root_q[j] / entries.shown[j] if entries.shown[j] > 0 else 0.0
    for first in range(0, d, _TILE):
        end = min(first + _TILE, d)
        FF = multiply(fits.fits_with_x[first:end], fits.C[:end], TRANSPOSED)  # Σc f_i f_j
        FR = multiply(fits.C[first:end], fits.residuals_with_x[:end], TRANSPOSED)  # Σc f_i r_j/√q_j
        RF = multiply(fits.residuals_with_x[first:end], fits.C[:end], TRANSPOSED)  # Σc r_i/√q_i f_j
        for i in range(first, end):
            row = i * (i + 1) // 2  # where row i begins in the packed triangle
            for j in range(i + 1):
                ff = FF[i - first, j]
                fr = FR[i - first, j]
                rf = RF[i - first, j]
                known_before = past * known[row + j]
                if shown[i, j] > 0:
                    # Every message has the fits, but only some have r_i, r_j or both. So each of the four products of
                    # (f_i + r_i)(f_j + r_j) is averaged over the messages that have it:
                    # B_ij = Σc f_i f_j/η + Σc f_i r_j/n_jj + Σc r_i f_j/n_ii + Σc r_i r_j/n_ij
                    row_product = product[i, j] + change_of_row_mean[i] * change_of_row_mean[j]  # of f + r/√q
                    rr = (row_product - ff - fr - rf) * (entries.root_q[i] * entries.root_q[j])  # Σc r_i r_j
                    moment = ff / eta + fr * mean_factor[j] + rf * mean_factor[i] + rr / shown[i, j]
                    counted = min(eta, shown[i, j] / RARELY_SHOWN)
                    next_known[row + j] = known_before + counted
                    replaced_share[row + j] = counted / next_known[row + j]
                else:  # no message shows both entries, so r_i r_j is 0 in every message
                    if _begins(entries, i) or _begins(entries, j):
                        # The pair is new, so its covariance is set as above, but without r_i r_j:
                        # B_ij = Σc f_i f_j/η + Σc f_i r_j/n_jj + Σc r_i f_j/n_ii
                        moment = ff / eta + fr * mean_factor[j] + rf * mean_factor[i]
                    else:
                        # The pair is known, so Σ_ij moves towards the mean over the filled messages f + r:
                        # B_ij = (Σc f_i f_j + Σc f_i r_j + Σc r_i f_j)/η
                        moment = (ff + fr * entries.root_q[j] + rf * entries.root_q[i]) / eta
                    replaced_share[row + j] = _compute_replaced_share_if_never_together(entries, i, j, eta)
                    # The block counts for a known pair, so that the pair stays known; a pair never shown stays unknown.
                    next_known[row + j] = known_before + eta if known_before > 0 else 0.0
                covariance_before = covariance[row + j] * (D[i] * D[j])
                change[i, j] = replaced_share[row + j] * (moment - covariance_before)
    return PairChanges(change, replaced_share, next_known)


@compiled_within
def _begins(entries: Entries, j: int) -> bool:
    """Return whether entry j was never known before this block."""
    return bool(entries.known_before[j] <= 0)


@compiled_within
def _compute_replaced_share_if_never_together(entries: Entries, i: int, j: int, eta: float) -> float:
    """If no message of a block shows both i and j, return the share of Σ_ij that the block replaces.

    1. Some messages show i and other messages show j, or one of the entries begins in this block: η/max(η, N), where η
       (`eta`) is the block's share of the weight. N is the weight for which both entries are known, which is that of
       the entry that is known for less.
    2. An entry that is already known is missing in the whole block, as from a dead sensor: 0. Instead, `add_changes`
       adds to Σ_ij a change that is predicted from the other sensors.
    """
    i_is_shown = entries.shown[i] > 0
    j_is_shown = entries.shown[j] > 0
    each_is_shown = i_is_shown and j_is_shown
    one_begins = _begins(entries, i) or _begins(entries, j)
    if not (each_is_shown or one_begins):
        return 0.0
    # The weight for which each entry is known, including the block if the block shows the entry.
    i_known = entries.known_before[i] + (eta if i_is_shown else 0.0)
    j_known = entries.known_before[j] + (eta if j_is_shown else 0.0)
    pair_weight = min(i_known, j_known)  # N
    return eta / max(eta, pair_weight) if pair_weight > 0 else 0.0


@compiled_without_lock
def compute_changes_of_complete_block(
    product: F64, change_of_row_mean: F64, past: float, covariance: F64, D: F64, known: F64
) -> PairChanges:
    """Compute how a block of complete messages changes the covariance Σ_ij of each pair of entries.

    With η the block's share of the weight, and B_ij (`moment`) the block's mean of the products of the two entries:

        N′_ij = past · N_ij + η      (weight for which both are known)
        E_ij = η/N′_ij               (share of Σ_ij that is replaced)
        Δ_ij = E_ij (B_ij − Σ_ij)    (change of Σ_ij)

    `product` (d, d), of which only the lower triangle is used, is the weighted sum of the products yyᵀ. Each row y was
    centred by the mean as it moved through the block. B is about the mean before the block: with the change of the mean
    δ = `change_of_row_mean` (d,), ηB is `product` + δδᵀ.

    Σ (`covariance`) and N (`known`), before the block, are packed. Σ is in the units of the data, and the block in
    these units times D (d,).
    """
    eta = 1.0 - past
    d = len(change_of_row_mean)
    row = 0  # where row i begins in the packed triangle
    change = np.zeros((d, d))
    replaced_share = np.empty(len(known))
    next_known = np.empty(len(known))
    for i in range(d):
        for j in range(i + 1):
            moment = (product[i, j] + change_of_row_mean[i] * change_of_row_mean[j]) / eta
            next_known[row + j] = past * known[row + j] + eta
            replaced_share[row + j] = eta / next_known[row + j]
            # Σ_ij times D_i D_j is in the units of the block.
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
    """Compute Σ after a block: Σ, plus the shown and the predicted changes, less δδᵀ, with correlations cut to ±1.

    The shown changes come from the messages of the block. They replace the share E of the old Σ_ij: η (`eta`), which is
    the block's share of the weight, less if few or no messages show the pair, or more if the pair has been known for a
    short time. If one of the entries is predicted, 1 − E/η times the predicted change is added. δ (`mean_change`) is
    the change of the mean, and `variance` the diagonal of Σ after the block, (d,) each.

    Units: Σ before the block and the result are packed, in the units of the data. The other arguments are in the units
    of the block, which are those of the data times D (d,). Fills in `square` (d, d), which is Σ after the block in the
    units of the next block, which are those of the data times `next_D` (d,).
    """
    d = len(variance)
    after = np.empty(len(covariance_before))
    deviation = np.empty(d)
    for j in range(d):
        deviation[j] = np.sqrt(variance[j])
    row = 0  # where row i begins in the packed triangle
    for i in range(d):
        for j in range(i + 1):
            value = covariance_before[row + j] * (D[i] * D[j])
            value = value + shown_changes.change[i, j] - mean_change[i] * mean_change[j]
            if predicted_changes.is_predicted[i] or predicted_changes.is_predicted[j]:
                # 1 if the messages show nothing of the change (E is 0), 0 if they show the whole change (E is η). It is
                # negative for an entry that began late (E exceeds η): what is predicted of the excess is taken back.
                predicted_share = 1.0 - shown_changes.replaced_share[row + j] / eta
                value += predicted_share * _predict_pair(predicted_changes, i, j)
            largest = deviation[i] * deviation[j]
            value = min(max(value, -largest), largest)
            if i == j:  # the sum above differs from `variance` by rounding, and a correlation could then exceed 1
                value = variance[i]
            after[row + j] = value / (D[i] * D[j])  # from the units of the block to those of the data
            square[i, j] = after[row + j] * (next_D[i] * next_D[j])  # to the units of the next block
        row += i + 1
    triangle.mirror(square)
    return after


@compiled_within
def _predict_pair(changes: PredictedChanges, i: int, j: int) -> float:
    """Return the predicted change of the covariance of two entries. At least one of the entries must be predicted.

    With the coordinates x of a message, a predicted entry is c·x, where c is the row of C of this entry. So its
    covariance with the other entry changes by c times the change of the other entry's covariances with x. If both are
    predicted, either order gives the same number, up to rounding.
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
