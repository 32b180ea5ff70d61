"""Compiled functions that apply a block with missing entries to Σ, one pair of entries after the other.

`gaps.py` has the formulas, and what is done for each entry. Packed is the lower triangle, row after row. After a
block, the block has the share η (`new`) of the stream's weight, and the past before it the share c₀ = 1 − η (`past`).
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import triangle
from streampca.pca.blocked.jit import compiled_without_lock
from streampca.pca.blocked.recurrence import T, product

_TILE = 32  # rows of the products with C, which stay in the processor's cache


class Fits(NamedTuple):
    """Moments of the fits f = Cx and the residuals r of a block's rows, (d, K) each."""

    C: F64
    squares: F64  # row i times row j of C is Σc f_i f_j
    residuals: F64  # row j times row i of C is Σc f_i r_j


class Entries(NamedTuple):
    """The weights of the messages that show each entry, (d,) each, as shares of the weight after the block."""

    shown: F64  # n_jj: weight of the block's messages that show the entry
    before: F64  # c₀N_jj: weight for which the entry was known before the block; 0 if this is the first block with it
    root: F64  # √q_j: rows hold the residual r_j/√q_j, where q_j is the share of the block's messages with the entry


@compiled_without_lock
def step_pairs(
    rows: F64, moved: F64, fits: Fits, entries: Entries, shown: F64, past: float, few: float, covariance: F64,
    scale: F64, known: F64,
) -> tuple[F64, F64]:  # fmt: skip
    """Compute for each pair E, the share of Σ that the block replaces, and the next N; write Δ = E∘(B − Σ) to `rows`.

    B_ij is the block's mean of the product of two entries, about the mean before the block. A product of two entries
    f + r has four parts, and each part is averaged over the messages that show it. E and the next N are packed.

    `rows` is the lower triangle (d, d) of the rows' second moments about their own mean, which differs from the mean
    before the block by `moved` (d,). `shown` (d, d) is the weight of the block's messages that show both entries; if it
    is less than the share `few` of the block, the block counts less. `covariance` is Σ before the block, packed, in the
    units of v; B is in units of v times `scale` (d,). `known` is N before the block, packed: the share of the weight
    for which both entries were known.
    """
    new = 1.0 - past
    d = len(moved)
    share = np.empty(len(known))
    known_after = np.empty(len(known))
    residual_weight = np.empty(d)
    entry_known = np.empty(d)
    for j in range(d):
        is_shown = entries.shown[j] > 0
        # From Σc f r/√q, of the rows' residuals, to the mean over the messages that show the entry.
        residual_weight[j] = entries.root[j] / entries.shown[j] if is_shown else 0.0
        entry_known[j] = entries.before[j] + (new if is_shown else 0.0)  # its weight with this block
    for first in range(0, d, _TILE):
        end = min(first + _TILE, d)
        FF = product(fits.squares[first:end], fits.C[:end], T)
        FR = product(fits.C[first:end], fits.residuals[:end], T)
        RF = product(fits.residuals[first:end], fits.C[:end], T)
        for i in range(first, end):
            i_is_shown = entries.shown[i] > 0
            i_begins = entries.before[i] <= 0
            row = i * (i + 1) // 2  # where row i begins in the packed triangle
            for j in range(i + 1):
                ff = FF[i - first, j]
                fr = FR[i - first, j]
                rf = RF[i - first, j]
                pair_before = past * known[row + j]
                begins = i_begins or entries.before[j] <= 0
                if shown[i, j] > 0:
                    # The rows' product without the parts of the fits is the residuals' product, divided by √q_i √q_j.
                    rr = (rows[i, j] + moved[i] * moved[j] - ff - fr - rf) * (entries.root[i] * entries.root[j])
                    moment = ff / new + fr * residual_weight[j] + rf * residual_weight[i] + rr / shown[i, j]
                    counted = min(new, shown[i, j] / few)
                    known_after[row + j] = pair_before + counted
                    share[row + j] = counted / known_after[row + j]
                else:
                    # No message shows both entries. Filled messages move Σ_ij if each entry is shown by some message,
                    # or if one begins in this block. If a sensor is dead, they leave it: `compute_next_covariance`
                    # moves it by a prediction from other sensors. N of a known pair grows by the block's weight; N of
                    # a pair that was never shown stays 0.
                    if begins:  # the fits of the new entry are 0, so its residuals alone say something about the pair
                        moment = ff / new + fr * residual_weight[j] + rf * residual_weight[i]
                    else:  # as if the messages were filled: a missing entry has its fit and no residual
                        moment = (ff + fr * entries.root[j] + rf * entries.root[i]) / new
                    known_after[row + j] = pair_before + new if pair_before > 0 else 0.0
                    pair_weight = min(entry_known[i], entry_known[j])
                    moves = (i_is_shown and entries.shown[j] > 0) or begins
                    share[row + j] = new / max(new, pair_weight) if moves and pair_weight > 0 else 0.0
                rows[i, j] = share[row + j] * (moment - covariance[row + j] * (scale[i] * scale[j]))
    return share, known_after


@compiled_without_lock
def step_complete_pairs(rows: F64, moved: F64, past: float, covariance: F64, scale: F64, known: F64) -> tuple[F64, F64]:
    """Compute what `step_pairs` does for a block of complete messages, where B is the plain mean of the products."""
    new = 1.0 - past
    row = 0  # where row i begins in the packed triangle
    share = np.empty(len(known))
    known_after = np.empty(len(known))
    for i in range(len(moved)):
        for j in range(i + 1):
            moment = (rows[i, j] + moved[i] * moved[j]) / new
            known_after[row + j] = past * known[row + j] + new
            share[row + j] = new / known_after[row + j]
            rows[i, j] = share[row + j] * (moment - covariance[row + j] * (scale[i] * scale[j]))
        row += i + 1
    return share, known_after


class PredictedChange(NamedTuple):
    """Changes of covariances that are predicted from the changes of ordinary entries.

    A predicted entry i is row i of C times coordinates x. So its covariance with entry j changes by row i of C times
    row j of `with_coordinates`.
    """

    C: F64  # (d, K)
    with_coordinates: F64  # (d, K): change of the covariances of each entry with x
    is_predicted: F64  # (d,): 1 for predicted entries, 0 for ordinary entries and those that begin in the block


@compiled_without_lock
def compute_next_covariance(
    before: F64, change: F64, share: F64, predicted: PredictedChange, moved: F64, variance: F64, new: float,
    scale: F64, square: Array, next_scale: F64,
) -> F64:  # fmt: skip
    """Compute Σ after the block, packed: Σ + Δ − δδᵀ and the predicted changes, with correlations cut to ±1.

    Σ `before` and after the block are packed and in the units of v. Δ is the lower triangle of `change` (d, d), in
    units of v times `scale` (d,). `share` is E, packed: the share of each pair that the block replaces, where `new` is
    the block's share of the weight. `moved` (d,) is δ, the change of the means, and `variance` (d,) the diagonal of Σ
    after the block, both in the units of Δ. Fills in `square` (d, d): Σ after the block, in units of v times
    `next_scale` (d,).
    """
    d = len(change)
    K = predicted.C.shape[1]
    after = np.empty(len(before))
    root = np.empty(d)
    for j in range(d):
        root[j] = np.sqrt(variance[j])
    row = 0  # where row i begins in the packed triangle
    for i in range(d):
        for j in range(i + 1):
            value = before[row + j] * (scale[i] * scale[j]) + change[i, j] - moved[i] * moved[j]
            if predicted.is_predicted[i] > 0 or predicted.is_predicted[j] > 0:
                one, other = (i, j) if predicted.is_predicted[i] > 0 else (j, i)
                added = 0.0
                for m in range(K):
                    added += predicted.C[one, m] * predicted.with_coordinates[other, m]
                # If the share of a pair is η, Δ holds its whole change already. If it is 0, Δ holds nothing of it.
                value += (1.0 - share[row + j] / new) * added
            largest = root[i] * root[j]
            value = min(max(value, -largest), largest)
            if i == j:  # rounding would make it differ from `variance`, by which the other elements are cut
                value = variance[i]
            after[row + j] = value / (scale[i] * scale[j])
            square[i, j] = after[row + j] * (next_scale[i] * next_scale[j])
        row += i + 1
    triangle.mirror(square)
    return after
