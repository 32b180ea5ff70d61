"""Compiled functions that apply a block with missing entries to Σ, one pair of entries after the other.

gaps.py has the formulas: Δ, E, N, δ, η and n_ij. A message shows an entry if the entry is not NaN. A packed array is
the lower triangle of a symmetric matrix, row after row. η (`eta`) is the block's share of the weight after the block,
and c₀ = 1 − η (`past`) is the share of the past. `covariance` and `known` are Σ and N before the block, packed. Σ is in
the units of the data, and a block is in these units times D (d,).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import triangle
from streampca.pca.blocked.jit import compiled_for_compiled_callers, compiled_without_lock
from streampca.pca.blocked.recurrence import TRANSPOSED, product as multiply

RARELY_SHOWN = 0.1  # if a smaller share of a block's messages shows an entry or a pair, the block counts less for it
_TILE = 32  # rows of the products with C, which stay in the processor's cache


class Fits(NamedTuple):
    """Moments of the fits f = Cx and the residuals r of a block's messages, with their weights c, (d, K) each.

    x (K,) are the coordinates of a message on the axes C.
    """

    C: F64
    fits_with_x: F64  # sum of c f xᵀ: its row i, times row j of C, is the sum of c f_i f_j
    residuals_with_x: F64  # sum of c (r/√q) xᵀ: its row j, times row i of C, is the sum of c f_i r_j/√q_j


class Entries(NamedTuple):
    """The weights of the messages that show each entry, (d,) each, as shares of the weight after the block."""

    shown: F64  # n_jj: weight of the block's messages that show the entry
    known_before: F64  # c₀N_jj: weight for which the entry was known before the block; 0 if it begins in this block
    root_q: F64  # √q_j: rows hold the residual r_j/√q_j, where q_j is the share of the block's messages with the entry
    mean_factor: F64  # √q_j/n_jj: turns the sum of c r_j/√q_j into the mean of r_j; 0 if no message shows the entry


class PairChanges(NamedTuple):
    """How the messages of a block change each pair of entries, before predictions are added."""

    change: F64  # Δ (d, d), its lower triangle: E∘(B − Σ)
    replaced_share: F64  # E, packed: the share of each pair's moments that the block replaces
    known: F64  # N after the block, packed


@compiled_without_lock
def compute_changes(
    product: F64, change_of_row_mean: F64, fits: Fits, entries: Entries, shown_together: F64, past: float,
    covariance: F64, D: F64, known: F64,
) -> PairChanges:  # fmt: skip
    """Compute how a block with missing entries changes the covariance Σ_ij of each pair of entries.

    Entry i of a centred message is f_i + r_i. The fit f_i is the value that C predicts: row i of C times the
    coordinates x of the message. The residual r_i is the rest, or 0 if the message does not show the entry.

    Each message was learned as y, y_i = f_i + r_i/√q_i: with r_i alone, an entry that some messages lack would vary too
    little. q_i is the share of the messages that show entry i, but at least RARELY_SHOWN. So the sums in `product` and
    `fits` have r_i/√q_i where the formulas have r_i.

    1. B_ij is the mean product of both entries in the block, about the mean before the block. It has four terms. In
       each, a sum over the messages, with their weights c, is divided by the weight of the messages that have both
       factors:

           (sum of c f_i f_j)/η         η: weight of the block, all of whose messages have fits
           (sum of c f_i r_j)/n_jj      n_jj: weight of the messages that show entry j
           (sum of c r_i f_j)/n_ii      n_ii: weight of the messages that show entry i
           (sum of c r_i r_j)/n_ij      n_ij: weight of the messages that show both; `shown_together`, lower triangle

    2. The block counts with the weight g: η, or n_ij / RARELY_SHOWN if that is less, because B_ij is uncertain if few
       messages show both entries. N′ = (1 − η) N + g is the weight for which the pair is known after the block, and N
       is `known`. The block replaces the share E = g/N′ of Σ_ij.
    3. The change is E (B_ij − Σ_ij).

    If no message shows both entries, B_ij and E are estimates, and N′ is (1 − η) N + η, or 0 if N is 0.

    `product` (d, d), lower triangle, is the sum of c yyᵀ about a mean that moves within the block, by
    `change_of_row_mean` (d,). y is in the units of the data times D (d,), and `covariance`, the packed Σ before the
    block, is in the units of the data.
    """
    eta = 1.0 - past
    d = len(change_of_row_mean)
    change = np.zeros((d, d))
    replaced_share = np.empty(len(known))
    next_known = np.empty(len(known))
    for first in range(0, d, _TILE):
        end = min(first + _TILE, d)
        FF = multiply(fits.fits_with_x[first:end], fits.C[:end], TRANSPOSED)  # sums of c f_i f_j
        FR = multiply(fits.C[first:end], fits.residuals_with_x[:end], TRANSPOSED)  # sums of c f_i r_j/√q_j
        RF = multiply(fits.residuals_with_x[first:end], fits.C[:end], TRANSPOSED)  # sums of c r_i f_j/√q_i
        for i in range(first, end):
            row = i * (i + 1) // 2
            for j in range(i + 1):
                ff = FF[i - first, j]
                fr = FR[i - first, j]
                rf = RF[i - first, j]
                known_before = past * known[row + j]  # (1 − η) N
                if shown_together[i, j] > 0:
                    # Sum of c y_i y_j, about the mean before the block because the product of the changes is added
                    row_product = product[i, j] + change_of_row_mean[i] * change_of_row_mean[j]
                    # Sum of c r_i r_j: without ff, fr and rf, the sum of c r_i r_j/√(q_i q_j) is left of y_i y_j.
                    rr = (row_product - ff - fr - rf) * (entries.root_q[i] * entries.root_q[j])
                    moment = (  # 1. B_ij
                        ff / eta
                        + fr * entries.mean_factor[j]  # √q_j/n_jj
                        + rf * entries.mean_factor[i]  # √q_i/n_ii
                        + rr / shown_together[i, j]
                    )
                    counted_weight = min(eta, shown_together[i, j] / RARELY_SHOWN)  # 2. g
                    next_known[row + j] = known_before + counted_weight
                    replaced_share[row + j] = counted_weight / next_known[row + j]
                else:
                    moment = _estimate_moment_if_never_together(entries, i, j, ff, fr, rf, eta)
                    replaced_share[row + j] = _compute_replaced_share_if_never_together(entries, i, j, eta)
                    next_known[row + j] = known_before + eta if known_before > 0 else 0.0
                covariance_before = covariance[row + j] * (D[i] * D[j])  # in the units of the rows
                change[i, j] = replaced_share[row + j] * (moment - covariance_before)  # 3.
    return PairChanges(change, replaced_share, next_known)


@compiled_for_compiled_callers
def _begins(entries: Entries, j: int) -> bool:
    """Return whether no message before this block has shown entry j."""
    return bool(entries.known_before[j] <= 0)


@compiled_for_compiled_callers
def _estimate_moment_if_never_together(
    entries: Entries, i: int, j: int, ff: float, fr: float, rf: float, eta: float
) -> float:
    """Estimate the mean product of entries i and j in a block, if no message of the block shows both.

        ff/η + fr √q_j/n_j + rf √q_i/n_i        if i or j begins in the block: no earlier message shows the entry
        (ff + fr √q_j + rf √q_i)/η              otherwise

        ff   sum of c f_i f_j over the messages of the block, with their weights c
        fr   sum of c f_i r_j/√q_j
        rf   sum of c r_i f_j/√q_i
        η    weight of the block
        n_i  weight of the messages of the block that show entry i
        q_i  share of the messages that show entry i, but at least RARELY_SHOWN

    An entry of a message is a predicted fit f, plus a residual r if the message shows the entry. No message has both
    residuals, so their product is left out. In the second formula, a missing entry counts as equal to its fit, with a
    residual of 0. After the first block, an entry that begins has fits of 0, which say nothing about it: the first
    formula averages each residual over the messages that have it. `entries` has √q as `root_q`, and √q/n as
    `mean_factor`.
    """
    moment: float
    if _begins(entries, i) or _begins(entries, j):
        moment = ff / eta + fr * entries.mean_factor[j] + rf * entries.mean_factor[i]
    else:
        moment = (ff + fr * entries.root_q[j] + rf * entries.root_q[i]) / eta
    return moment


@compiled_for_compiled_callers
def _compute_replaced_share_if_never_together(entries: Entries, i: int, j: int, eta: float) -> float:
    """Return the share of Σ_ij that the block replaces by an estimate, if no message of the block shows both entries.

    The share is η / max(η, min(w_i, w_j)) in two cases:

    - The block shows both entries, in different messages: the estimate is the covariance of the filled messages.
    - Entry i or j begins in the block, because no earlier message shows the entry: the pair has no covariance yet, so
      the estimate becomes its first covariance.

    Otherwise the share is 0: the pair keeps its covariance. η is the weight of the block. w_i is the weight since the
    first message that shows entry i: its weight before the block, plus η if the block shows the entry. If w_i or w_j is
    0, the entry was never shown, so there is nothing to estimate, and the share is 0.
    """
    i_is_shown = entries.shown[i] > 0
    j_is_shown = entries.shown[j] > 0
    each_is_shown = i_is_shown and j_is_shown
    pair_has_no_covariance = _begins(entries, i) or _begins(entries, j)
    if not (each_is_shown or pair_has_no_covariance):
        return 0.0
    i_known = entries.known_before[i] + (eta if i_is_shown else 0.0)
    j_known = entries.known_before[j] + (eta if j_is_shown else 0.0)
    pair_weight = min(i_known, j_known)
    return eta / max(eta, pair_weight) if pair_weight > 0 else 0.0


@compiled_without_lock
def compute_changes_of_complete_block(
    product: F64, change_of_row_mean: F64, past: float, covariance: F64, D: F64, known: F64
) -> PairChanges:
    """Compute how a block of complete messages changes the covariance Σ_ij of each pair (gaps.py, steps 1–3).

    1. B = (P + δδᵀ)/η, the mean product of two entries in the block, about the mean before the block. P is about a mean
       that moves within the block, and is smaller by δδᵀ.
    2. N′ = past · N + η, and E = η/N′, the share of Σ_ij that the block replaces
    3. Δ_ij = E (B_ij − D_i D_j Σ_ij), the change of Σ_ij in the units of the messages y

        P             `product` (d, d): sum of c yyᵀ over the messages y, with their shares c of the weight
        δ             `change_of_row_mean` (d,): how far the mean of the messages moves within the block
        past, η       shares of the past and of the block in the weight after the block
        Σ             `covariance` before the block, packed, in the units of the data
        D             (d,): 1/standard deviation of each entry, or 1 if the stream is not standardised. y_i is D_i times
                      entry i of the data, so D_i D_j Σ_ij is in the units of y_i y_j.
        N, N′         `known`, packed: share of the weight for which each pair is known, before and after the block
    """
    eta = 1.0 - past
    d = len(change_of_row_mean)
    row = 0  # where row i begins
    change = np.zeros((d, d))
    replaced_share = np.empty(len(known))
    next_known = np.empty(len(known))
    for i in range(d):
        for j in range(i + 1):
            moment = (product[i, j] + change_of_row_mean[i] * change_of_row_mean[j]) / eta  # 1. B_ij
            # 2. and 3.
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
    """Compute Σ after a block, packed, from the changes of covariances that its messages show, and from predicted ones.

        Σ′ = Σ + shown change − δδᵀ + prediction_factor · predicted change        δ: `mean_change` (d,)

        prediction_factor = 1 − E/η if entry i or j is predicted, otherwise 0
        E                   share of the covariance that the messages of the block replace (`replaced_share`)
        η                   share of the weight that the block has (`eta`)

    The block should replace the share η of Σ. But the shown change is E · (covariance in the block − Σ), where E is 0
    for an entry that the block lacks, and above η for an entry that began late. For such entries, the change with the
    share η is predicted (gap_prediction.py). The part 1 − E/η of this prediction adds what the shown change lacks, or
    takes back its excess.

    Shown changes are about the mean before the block; −δδᵀ makes Σ′ the covariance about the mean after it. `variance`
    (d,) is the diagonal of Σ′.

    D (d,) is 1/standard deviation of each entry before the block, and `next_D` after the block; both are 1 if the
    stream is not standardised. Changes, δ and `variance` are in the units of the data times D. `covariance_before` and
    the result are in the units of the data. Fills in `square` (d, d): Σ′ in the units of the data times `next_D`.
    """
    d = len(variance)
    after = np.empty(len(covariance_before))
    deviation = np.empty(d)
    for j in range(d):
        deviation[j] = np.sqrt(variance[j])
    row = 0  # where row i begins
    for i in range(d):
        for j in range(i + 1):
            value = covariance_before[row + j] * (D[i] * D[j])  # in the units of the changes
            value = value + shown_changes.change[i, j] - mean_change[i] * mean_change[j]
            if predicted_changes.is_predicted[i] or predicted_changes.is_predicted[j]:
                # The factor is 1 if the messages do not show the pair. It is negative if the entry began late: the
                # shown change is then too large, and the factor undoes a part of it.
                prediction_factor = 1.0 - shown_changes.replaced_share[row + j] / eta
                value += prediction_factor * _predict_pair(predicted_changes, i, j)
            largest = deviation[i] * deviation[j]  # so that no correlation exceeds 1
            value = min(max(value, -largest), largest)
            if i == j:  # `largest`, a square of a root, differs from the variance by rounding
                value = variance[i]
            after[row + j] = value / (D[i] * D[j])
            square[i, j] = after[row + j] * (next_D[i] * next_D[j])
        row += i + 1
    triangle.mirror(square)
    return after


@compiled_for_compiled_callers
def _predict_pair(changes: PredictedChanges, i: int, j: int) -> float:
    """Return the predicted change of the covariance of entries i and j, one of which must be predicted.

    A predicted entry p is C_p·x, with row p of C and the coordinates x of a message. So its covariance with another
    entry o changes by C_p · (change of cov(o, x)). The change of cov(o, x) is row o of `changes.covariances_with_x`.
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
