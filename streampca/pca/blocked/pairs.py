"""Compiled: what a block with gaps changes in Σ, pair of entries by pair, each row of the lower triangle in turn.

`gaps.py` has the formulas, and says what is done for the entries. Packed is the lower triangle, row after row. Of the
weight of the stream, a block has the share η (`new`), and the past before it the share c₀ = 1 − η (`past`).
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
    """By how many messages each entry is shown, (d,) each."""

    shown: F64  # n_jj: weight of the block's messages that show the entry
    before: F64  # c₀N_jj: weight for which the entry was known before the block; 0: it begins
    root: F64  # √q_j: rows hold the residual r_j/√q_j, where q_j is the share of the block's messages with the entry


@compiled_without_lock
def step(
    rows: F64, moved: F64, fits: Fits, entries: Entries, shown: F64, past: float, few: float, covariance: F64,
    scale: F64, known: F64,
) -> tuple[F64, F64]:  # fmt: skip
    """By which share E the block replaces Σ of each pair, and N after it; Δ = E∘(B − Σ) overwrites `rows`.

    B_ij is the block's mean of the product of two entries about the mean before it. A product of f + r has four parts,
    and each is averaged over the messages that show it. `rows` is the lower triangle (d, d) of the rows' second moments
    about their mean, which is `moved` (d,) away from the one before the block. `shown` (d, d) is the weight of the
    block's messages that show both entries; if this is a smaller share than `few`, the block counts less. `covariance`
    and `known` are packed, as are E and the next N: Σ before the block, in units in which one of B is `scale` (d,), and
    N, the share of the weight for which both entries were known.
    """
    new, d = 1.0 - past, len(moved)
    share, known_after = np.empty(len(known)), np.empty(len(known))
    residual_weight, entry_known = np.empty(d), np.empty(d)
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
            i_is_shown, i_begins = entries.shown[i] > 0, entries.before[i] <= 0
            row = i * (i + 1) // 2  # where row i begins in the packed triangle
            for j in range(i + 1):
                ff, fr, rf = FF[i - first, j], FR[i - first, j], RF[i - first, j]
                pair_before = past * known[row + j]
                begins = i_begins or entries.before[j] <= 0
                if shown[i, j] > 0:
                    # What the fits leave of the rows' product is that of the residuals, divided by √q_i √q_j.
                    rr = (rows[i, j] + moved[i] * moved[j] - ff - fr - rf) * (entries.root[i] * entries.root[j])
                    moment = ff / new + fr * residual_weight[j] + rf * residual_weight[i] + rr / shown[i, j]
                    counted = min(new, shown[i, j] / few)
                    known_after[row + j] = pair_before + counted
                    share[row + j] = counted / known_after[row + j]
                else:
                    # No message shows the pair. Filled messages move it if both entries are shown apart, or if one
                    # begins. With a dead sensor it stays as it is: the prediction from other sensors moves it
                    # (`next_covariance`). The block counts for the weight of a known pair, but N of one that was never
                    # shown stays 0.
                    if begins:  # its fits are 0: only its residuals tell of the pair
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
def step_of_complete(rows: F64, moved: F64, past: float, covariance: F64, scale: F64, known: F64) -> tuple[F64, F64]:
    """What `step` does, for a block of complete messages: B is their plain mean."""
    new, row = 1.0 - past, 0  # where a row begins in the packed triangle
    share, known_after = np.empty(len(known)), np.empty(len(known))
    for i in range(len(moved)):
        for j in range(i + 1):
            moment = (rows[i, j] + moved[i] * moved[j]) / new
            known_after[row + j] = past * known[row + j] + new
            share[row + j] = new / known_after[row + j]
            rows[i, j] = share[row + j] * (moment - covariance[row + j] * (scale[i] * scale[j]))
        row += i + 1
    return share, known_after


class PredictedChange(NamedTuple):
    """What the changes of ordinary entries predict of the covariances of other ones.

    Entry i is predicted as row i of C times coordinates x. So the change of its covariance with entry j is row i of C
    times row j of `with_coordinates`.
    """

    C: F64  # (d, K)
    with_coordinates: F64  # (d, K): change of the covariances of each entry with x
    is_predicted: F64  # (d,): 1 for predicted entries, 0 for ordinary ones and those that begin


@compiled_without_lock
def next_covariance(
    before: F64, change: F64, share: F64, predicted: PredictedChange, moved: F64, variance: F64, new: float,
    scale: F64, square: Array, next_scale: F64,
) -> F64:  # fmt: skip
    """Σ after the block, packed: Σ + Δ − δδᵀ and the predicted changes, with correlations cut to ±1.

    Σ `before` is packed, in units in which one of Δ is `scale` (d,), as is Σ after it. Δ is the lower triangle of
    `change` (d, d), and `share` E, packed: the share of each pair that the block replaces, of which it has `new` to
    give. `moved` (d,) is δ, the change of the means; `variance` (d,) the diagonal of Σ after the block, in the units of
    Δ. Fills in `square` (d, d), the same Σ in units in which one is `next_scale` (d,).
    """
    d, K = len(change), predicted.C.shape[1]
    after, root = np.empty(len(before)), np.empty(d)
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
                # A pair with the share η has its whole change in Δ, and one with the share 0 nothing.
                value += (1.0 - share[row + j] / new) * added
            largest = root[i] * root[j]
            value = min(max(value, -largest), largest)
            if i == j:  # rounding would make it differ from `variance`, by which the other entries are cut
                value = variance[i]
            after[row + j] = value / (scale[i] * scale[j])
            square[i, j] = after[row + j] * (next_scale[i] * next_scale[j])
        row += i + 1
    triangle.mirror(square)
    return after
