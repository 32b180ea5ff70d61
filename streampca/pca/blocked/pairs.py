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

    In each message an entry is its fit f = Cx, plus a residual r, which is 0 where the entry is missing. Let c be the
    weights of the messages, η their sum, and n_ij (`shown`) the weight of the messages that show both entries. From the
    block's mean B_ij (`moment`) of the product of the two entries, for which each case below has a formula:

        g_ij = min(η, 10 n_ij)         (`counted`)
        N′_ij = past · N_ij + g_ij     (weight for which both are known)
        E_ij = g_ij/N′_ij              (share of Σ_ij that is replaced)
        Δ_ij = E_ij (B_ij − Σ_ij)      (change of Σ_ij)

    The rows of the block are f + r/√q, where q is the share of the messages that show the entry. Σc of their products,
    about the mean before the block, is `product` + δδᵀ with δ = `change_of_row_mean` (d,); of `product` (d, d), only
    the lower triangle is used. Σ (`covariance`) and N (`known`), before the block, are packed. Σ is in the units of the
    data, and the block in these units times D (d,).
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
                    # Each part is averaged over the messages that show the part:
                    # B_ij = Σc f_i f_j/η + Σc f_i r_j/n_jj + Σc r_i f_j/n_ii + Σc r_i r_j/n_ij
                    row_product = product[i, j] + change_of_row_mean[i] * change_of_row_mean[j]
                    rr = (row_product - ff - fr - rf) * (entries.root_q[i] * entries.root_q[j])  # Σc r_i r_j
                    moment = ff / eta + fr * mean_factor[j] + rf * mean_factor[i] + rr / shown[i, j]
                    counted = min(eta, shown[i, j] / RARELY_SHOWN)
                    next_known[row + j] = known_before + counted
                    replaced_share[row + j] = counted / next_known[row + j]
                else:  # no message shows both entries, so r_i r_j is always 0
                    if _begins(entries, i) or _begins(entries, j):
                        # An entry that begins in this block has no fits yet, so the residuals are averaged as above:
                        # B_ij = Σc f_i f_j/η + Σc f_i r_j/n_jj + Σc r_i f_j/n_ii
                        moment = ff / eta + fr * mean_factor[j] + rf * mean_factor[i]
                    else:
                        # The mean of the filled messages: B_ij = Σc (f_i + r_i)(f_j + r_j)/η
                        moment = (ff + fr * entries.root_q[j] + rf * entries.root_q[i]) / eta
                    replaced_share[row + j] = _compute_share_replaced_by_fits(entries, i, j, eta)
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
def _compute_share_replaced_by_fits(entries: Entries, i: int, j: int, eta: float) -> float:
    """If no message of a block shows both entries of a pair, return the share of Σ_ij that the block replaces.

    If the block shows each entry, or if one of the entries begins in this block, the share is η/max(η, N). η (`eta`) is
    the block's share of the weight, and N is the weight for which the more recent of the two entries is known. If not,
    an entry is from a dead sensor, and the share is 0: `add_changes` adds a prediction from the other sensors to Σ_ij.
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

    B is about the mean before the block: ηB is `product` + δδᵀ with δ = `change_of_row_mean` (d,), where only the lower
    triangle of `product` (d, d) is used. Σ (`covariance`) and N (`known`), before the block, are packed. Σ is in the
    units of the data, and the block in these units times D (d,).
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

    δ (`mean_change`) is the change of the mean, and `variance` the diagonal of Σ after the block, (d,) each. The block
    has the share η (`eta`) of the weight, and replaces the share E of the moments of a pair.

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
                # 1 − E/η: 0 if the messages show the whole change (E is η), 1 if they show nothing of it (E is 0).
                predicted_share = 1.0 - shown_changes.replaced_share[row + j] / eta
                value += predicted_share * _predict_pair(predicted_changes, i, j)
            largest = deviation[i] * deviation[j]
            value = min(max(value, -largest), largest)
            if i == j:  # exactly the variance by which covariances are cut; the sum above has other rounding
                value = variance[i]
            after[row + j] = value / (D[i] * D[j])  # from the units of the block to those of the data
            square[i, j] = after[row + j] * (next_D[i] * next_D[j])  # to the units of the next block
        row += i + 1
    triangle.mirror(square)
    return after


@compiled_within
def _predict_pair(changes: PredictedChanges, i: int, j: int) -> float:
    """Return the predicted change of the covariance of two entries. At least one of the entries must be predicted.

    The predicted entry is c·x, where c is its row of C. So the change is c times the change of the covariances of the
    other entry with x.
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
