"""Compiled functions that apply a block with missing entries to Σ, one pair of entries after the other.

gaps.py has the formulas: Δ, E, N, δ, η and n_ij. A packed array is the lower triangle of a symmetric matrix, row after
row. η (`eta`) is the block's share of the weight after the block, and c₀ = 1 − η (`past`) is the share of the past.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import triangle
from streampca.pca.blocked.jit import compiled_within, compiled_without_lock
from streampca.pca.blocked.recurrence import T, product as multiply

FEW = 0.1  # if a smaller share of a block's messages shows an entry or a pair, the block counts less for it
_TILE = 32  # rows of the products with C, which stay in the processor's cache


class Fits(NamedTuple):
    """Moments of the fits f = Cx and the residuals r of a block's rows, (d, K) each."""

    C: F64
    squares: F64  # its row i, times row j of C, is Σc f_i f_j
    residuals: F64  # its row j, times row i of C, is Σc f_i r_j


class Entries(NamedTuple):
    """The weights of the messages that show each entry, (d,) each, as shares of the weight after the block."""

    shown: F64  # n_jj: weight of the block's messages that show the entry
    known_before: F64  # c₀N_jj: weight for which the entry was known before the block; 0 if it begins in this block
    root: F64  # √q_j: rows hold the residual r_j/√q_j, where q_j is the share of the block's messages with the entry


class PairChanges(NamedTuple):
    """How the messages of a block change each pair of entries, before predictions are added."""

    change: F64  # Δ (d, d), its lower triangle: E∘(B − Σ)
    replaced: F64  # E, packed: the share of each pair's moments that the block replaces
    known: F64  # N after the block, packed


@compiled_without_lock
def compute_changes(
    product: F64, moved: F64, fits: Fits, entries: Entries, shown: F64, past: float, covariance: F64, scale: F64,
    known: F64,
) -> PairChanges:  # fmt: skip
    """Compute how a block in which entries are missing changes each pair of entries: Δ, E and the next N.

    B_ij (`moment`) is the block's mean of the product of two entries, about the mean before the block. Each entry is
    f + r, so the product has four parts. Each part is averaged over the messages that show it.

    `product` (d, d) has in its lower triangle the second moments of the rows, about a mean that differs by `moved` (d,)
    from the mean before the block. `shown` (d, d) is n_ij, the weight of the messages that show both entries.
    `covariance` is Σ before the block, packed and in the units of v; `known` is N before the block, packed. The block
    is in units of v times `scale` (d,).
    """
    eta = 1.0 - past
    d = len(moved)
    change = np.zeros((d, d))
    replaced = np.empty(len(known))
    next_known = np.empty(len(known))
    residual_weight = np.empty(d)
    entry_known = np.empty(d)
    for j in range(d):
        is_shown = entries.shown[j] > 0
        # Times Σc f r/√q of the rows, this is the mean of f r over the messages that show the entry.
        residual_weight[j] = entries.root[j] / entries.shown[j] if is_shown else 0.0
        # For pairs that no message shows: weight for which entry j was known, with the block if it shows the entry.
        entry_known[j] = entries.known_before[j] + (eta if is_shown else 0.0)
    for first in range(0, d, _TILE):
        end = min(first + _TILE, d)
        FF = multiply(fits.squares[first:end], fits.C[:end], T)  # Σc f_i f_j
        FR = multiply(fits.C[first:end], fits.residuals[:end], T)  # Σc f_i r_j/√q_j
        RF = multiply(fits.residuals[first:end], fits.C[:end], T)  # Σc r_i/√q_i f_j
        for i in range(first, end):
            i_is_shown = entries.shown[i] > 0
            i_begins = entries.known_before[i] <= 0
            row = i * (i + 1) // 2  # where row i begins in the packed triangle
            for j in range(i + 1):
                # Weighted sums over the messages of the block, of fits (f) and residuals (r) of the two entries.
                ff = FF[i - first, j]
                fr = FR[i - first, j]
                rf = RF[i - first, j]
                known_before = past * known[row + j]
                if shown[i, j] > 0:
                    # The rows' product without the parts of the fits is the residuals' product, divided by √q_i √q_j.
                    rr = (product[i, j] + moved[i] * moved[j] - ff - fr - rf) * (entries.root[i] * entries.root[j])
                    moment = ff / eta + fr * residual_weight[j] + rf * residual_weight[i] + rr / shown[i, j]
                    counted = min(eta, shown[i, j] / FEW)
                    next_known[row + j] = known_before + counted
                    replaced[row + j] = counted / next_known[row + j]
                else:
                    # No message shows both entries. Filled messages move Σ_ij if each entry is shown by some message,
                    # or if one of them begins in this block. Otherwise a sensor is dead: then nothing moves Σ_ij here,
                    # and `add_changes` moves it by a prediction from other sensors.
                    begins = i_begins or entries.known_before[j] <= 0
                    moves = (i_is_shown and entries.shown[j] > 0) or begins
                    if begins:  # the fits of the new entry are 0, so its residuals alone say something about the pair
                        moment = ff / eta + fr * residual_weight[j] + rf * residual_weight[i]
                    else:  # as if the messages were filled: a missing entry has its fit and no residual
                        moment = (ff + fr * entries.root[j] + rf * entries.root[i]) / eta
                    pair_weight = min(entry_known[i], entry_known[j])
                    replaced[row + j] = eta / max(eta, pair_weight) if moves and pair_weight > 0 else 0.0
                    # N of a known pair grows by the block's weight; N of a pair that was never shown stays 0.
                    next_known[row + j] = known_before + eta if known_before > 0 else 0.0
                change[i, j] = replaced[row + j] * (moment - covariance[row + j] * (scale[i] * scale[j]))
    return PairChanges(change, replaced, next_known)


@compiled_without_lock
def compute_changes_of_complete_block(
    product: F64, moved: F64, past: float, covariance: F64, scale: F64, known: F64
) -> PairChanges:
    """Compute how a block of complete messages changes each pair of entries: Δ, E and the next N.

    The parameters are those of `compute_changes`. B is the mean of the products of two entries.
    """
    eta = 1.0 - past
    d = len(moved)
    row = 0  # where row i begins in the packed triangle
    change = np.zeros((d, d))
    replaced = np.empty(len(known))
    next_known = np.empty(len(known))
    for i in range(d):
        for j in range(i + 1):
            moment = (product[i, j] + moved[i] * moved[j]) / eta
            next_known[row + j] = past * known[row + j] + eta
            replaced[row + j] = eta / next_known[row + j]
            change[i, j] = replaced[row + j] * (moment - covariance[row + j] * (scale[i] * scale[j]))
        row += i + 1
    return PairChanges(change, replaced, next_known)


class PredictedChange(NamedTuple):
    """Changes of covariances and means that are predicted from the changes of ordinary entries.

    A predicted entry i is row i of C, times the coordinates x. So its covariance with entry j changes by row i of C,
    times row j of `with_coordinates`.
    """

    C: F64  # (d, K)
    with_coordinates: F64  # (d, K): how the covariances of each entry with x change
    means: F64  # (d,): change of the mean of each entry
    is_predicted: F64  # (d,): 1 for predicted entries, 0 for ordinary entries and those that begin in the block


@compiled_without_lock
def add_changes(
    before: F64, shown: PairChanges, predicted: PredictedChange, moved: F64, variance: F64, eta: float, scale: F64,
    next_scale: F64, square: Array,
) -> F64:  # fmt: skip
    """Compute Σ after a block: Σ + Δ − δδᵀ and the predicted changes, with correlations cut to ±1.

    Σ `before` the block and the result are packed, and in the units of v. In the units of the block, v times `scale`
    (d,), are: `shown` with Δ, `moved` (d,), which is δ, and `variance` (d,), the diagonal of Σ after the block. Fills
    in `square` (d, d), which is Σ after the block in the units of the next block, v times `next_scale` (d,).
    """
    d = len(variance)
    after = np.empty(len(before))
    deviation = np.empty(d)
    for j in range(d):
        deviation[j] = np.sqrt(variance[j])
    row = 0  # where row i begins in the packed triangle
    for i in range(d):
        for j in range(i + 1):
            value = before[row + j] * (scale[i] * scale[j]) + shown.change[i, j] - moved[i] * moved[j]
            if predicted.is_predicted[i] > 0 or predicted.is_predicted[j] > 0:
                # If the block replaces η of the pair's moments, Δ is the whole change. If it replaces nothing, the
                # whole change is predicted.
                value += (1.0 - shown.replaced[row + j] / eta) * _predict_pair(predicted, i, j)
            largest = deviation[i] * deviation[j]
            value = min(max(value, -largest), largest)
            if i == j:  # exactly the variance by which covariances are cut; the sum above has other rounding
                value = variance[i]
            after[row + j] = value / (scale[i] * scale[j])
            square[i, j] = after[row + j] * (next_scale[i] * next_scale[j])
        row += i + 1
    triangle.mirror(square)
    return after


@compiled_within
def _predict_pair(predicted: PredictedChange, i: int, j: int) -> float:
    """Return the predicted change of the covariance of two entries. At least one of the entries must be predicted."""
    predicted_entry = i
    other_entry = j
    if predicted.is_predicted[i] <= 0:
        predicted_entry = j
        other_entry = i
    change = 0.0
    for m in range(predicted.C.shape[1]):
        change += predicted.C[predicted_entry, m] * predicted.with_coordinates[other_entry, m]
    return change
