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
    product: F64, change_of_row_mean: F64, fits: Fits, entries: Entries, shown_together: F64, past: float,
    covariance: F64, D: F64, known: F64,
) -> PairChanges:  # fmt: skip
    """Compute how a block with missing entries changes each covariance Σ_ij (gaps.py, steps 1–3 and 6).

    A message has the share c of the weight, the block η, and the past 1 − η. The message's row is y = f + r/√q: f is
    predicted for every entry, and r is the residual of an entry that the message shows. q is the share of the messages
    that show the entry.

        product (d, d)          lower triangle of Σc yyᵀ about the mean of the rows, which moves within the block
        change_of_row_mean      (d,): how far the mean of the rows moves
        entries.mean_factor     (d,): √q_i/n_ii, which turns Σc f_j r_i/√q_i into Σc f_j r_i/n_ii
        shown_together (d, d)   n_ij: weight of the messages of the block that show both entries, lower triangle
        covariance              Σ before the block in the units of the data, packed; y is in these units times D (d,)
        known                   N before the block, packed: share of the weight for which each pair was known

        B_ij = Σc f_i f_j / η + Σc f_i r_j / n_jj + Σc r_i f_j / n_ii + Σc r_i r_j / n_ij
        g = min(η, n_ij / RARELY_SHOWN)        N′ = (1 − η) N + g        E = g/N′        Δ = E (B − Σ)

    B is the mean product in the block about the mean before the block, g the weight with which the block counts, N′ the
    next N, E the share of Σ_ij that the block replaces, and Δ the change of Σ_ij. If no message shows both entries,
    B_ij and E are estimates, and N′ is (1 − η) N + η, or 0 if N is 0.
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
        RF = multiply(fits.residuals_with_x[first:end], fits.C[:end], TRANSPOSED)  # Σc f_j r_i/√q_i
        for i in range(first, end):
            row = i * (i + 1) // 2
            for j in range(i + 1):
                ff = FF[i - first, j]
                fr = FR[i - first, j]
                rf = RF[i - first, j]
                known_before = past * known[row + j]
                if shown_together[i, j] > 0:
                    # Σc y_i y_j about the mean before the block is ff + fr + rf + Σc r_i r_j/√(q_i q_j).
                    row_product = product[i, j] + change_of_row_mean[i] * change_of_row_mean[j]
                    # Σc r_i r_j
                    rr = (row_product - ff - fr - rf) * (entries.root_q[i] * entries.root_q[j])
                    moment = (
                        ff / eta + fr * entries.mean_factor[j] + rf * entries.mean_factor[i] + rr / shown_together[i, j]
                    )
                    counted = min(eta, shown_together[i, j] / RARELY_SHOWN)  # g
                    next_known[row + j] = known_before + counted
                    replaced_share[row + j] = counted / next_known[row + j]
                else:
                    moment = _estimate_moment_if_never_together(entries, i, j, ff, fr, rf, eta)
                    replaced_share[row + j] = _compute_replaced_share_if_never_together(entries, i, j, eta)
                    next_known[row + j] = known_before + eta if known_before > 0 else 0.0
                covariance_before = covariance[row + j] * (D[i] * D[j])
                change[i, j] = replaced_share[row + j] * (moment - covariance_before)
    return PairChanges(change, replaced_share, next_known)


@compiled_within
def _begins(entries: Entries, j: int) -> bool:
    """Return whether no message before this block has shown entry j."""
    return bool(entries.known_before[j] <= 0)


@compiled_within
def _estimate_moment_if_never_together(
    entries: Entries, i: int, j: int, ff: float, fr: float, rf: float, eta: float
) -> float:
    """Estimate the mean product of entries i and j in a block, if no message of the block shows both.

    Each message has the weight c, and the block η. An entry is a predicted fit f, plus a residual r if the message
    shows the entry. No message has both residuals, so the product of both counts as 0. The other products are given as
    sums, in which each residual is divided by √q, the root of the share of messages that show the entry (`root_q`):

        ff = Σc f_i f_j        fr = Σc f_i r_j/√q_j        rf = Σc f_j r_i/√q_i

    If i or j begins in the block, √q fr and √q rf are divided by the weight n of the messages that show the residual
    (`mean_factor` is √q/n). If neither begins, they are divided by η, as if a missing residual were 0.
    """
    moment: float
    if _begins(entries, i) or _begins(entries, j):
        moment = ff / eta + fr * entries.mean_factor[j] + rf * entries.mean_factor[i]
    else:
        moment = (ff + fr * entries.root_q[j] + rf * entries.root_q[i]) / eta
    return moment


@compiled_within
def _compute_replaced_share_if_never_together(entries: Entries, i: int, j: int, eta: float) -> float:
    """Return the share of Σ_ij that the block replaces by an estimate, if no message of the block shows both entries.

        share = η / min(w_i, w_j), at most 1

    w is the weight for which an entry was known before the block, plus η if the block shows the entry. The share is 0
    if w_i or w_j is 0. If the block shows at most one of the entries, the block says nothing about their covariance, so
    the share is 0, unless an entry begins in the block: the entry needs a first covariance.
    """
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
    """Compute how a block of complete messages changes the covariance Σ_ij of each pair (gaps.py, steps 1–3).

        past, η       shares of the past and of the block in the weight after the block
        Σc yyᵀ        `product` (d, d) of messages y with shares c, about their mean, which moves within the block
        δ             `change_of_row_mean` (d,): how far the mean of the messages moves within the block
        Σ             `covariance` before the block in the units of the data, packed; y is in these units times D (d,)
        N             `known` before the block, packed: share of the weight for which each pair was known

    1. B = (Σc yyᵀ + δδᵀ)/η, the mean product in the block about the mean before the block
    2. N′ = past · N + η, and E = η/N′, the share of Σ_ij that the block replaces
    3. Δ = E (B − Σ), the change of Σ_ij in the units of y
    """
    eta = 1.0 - past
    d = len(change_of_row_mean)
    row = 0  # where row i begins
    change = np.zeros((d, d))
    replaced_share = np.empty(len(known))
    next_known = np.empty(len(known))
    for i in range(d):
        for j in range(i + 1):
            moment = (product[i, j] + change_of_row_mean[i] * change_of_row_mean[j]) / eta  # B_ij
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

        Σ′ = Σ + shown change − δδᵀ + predicted_share · predicted change        (gaps.py, steps 4 and 5)

    Changes are predicted for entries that the block lacks, or that began late. δ (d,) is `mean_change`, η (`eta`) the
    block's share of the weight, and `variance` (d,) the diagonal of Σ′. Changes, δ and variances are in the units of
    the data times D (d,). Fills in `square` (d, d): Σ′ times `next_D` on both sides.
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
                # A covariance that the messages do not show changes as predicted. One that they replace by more than η,
                # as of an entry that began late, has followed the block too far. Then the share is negative.
                predicted_share = 1.0 - shown_changes.replaced_share[row + j] / eta
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

    An entry i that is predicted is C_i·x, with row i of C and the coordinates x of a message. So cov(i, j) changes by
    C_i · (change of cov(j, x)).
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
