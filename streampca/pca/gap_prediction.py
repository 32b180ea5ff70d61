"""Predicts the changes of entries from the changes of ordinary entries: step 4 of gaps.py.

The block replaces about its own share η of the moments of the ordinary entries L: 0 < E ≤ 1.5 η. They give the
coordinates

    x = (C_LᵀC_L + diag(ridge))⁻¹ C_Lᵀ y_L

Two kinds of entries that were known before are predicted as Cx. If no message of the block shows an entry, as from a
dead sensor, E is 0. A late entry has E > 1.5 η: it was known for less than about two thirds of the weight. An entry
that is new in the block is not predicted.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, power_of_two
from streampca.pca.blocked import pairs, triangle
from streampca.pca.gaps import EntryStep
from streampca.pca.missing import Predictor, make_predictor
from streampca.pca.prepared_block import PreparedBlock

_ORDINARY_REPLACED = 1.5  # times η: an entry is ordinary if the block replaces no more than this share of its moments
_LARGEST_MEAN_SQUARE = 30.0  # of the coordinates of a prediction; over all messages of a stream it is about 1


def predict_changes(
    prepared: PreparedBlock,
    components: int,
    step: EntryStep,
    covariance_change: F64,
    filled_squares: F64,
) -> pairs.PredictedChanges:
    """Predict how a block changes late entries and dead sensors, from its changes of the ordinary entries.

    Without predictions, a block would change dead sensors not at all, and late entries too much. x (K,) are the
    coordinates of a message on the axes C (d, K).

    1. From the ordinary entries alone, compute how the block changes the mean of x and the covariances with x.
    2. Limit these changes.
    3. A late entry or dead sensor is predicted as Cx. So its moments change as those of Cx.

    `step.replaced_share` (d,) is the share of an entry's mean and variance that the block replaces. With the block's
    share η of the weight, it tells the kinds of entries:

        ordinary entry    above 0, and at most 1.5 η
        dead sensor       0, because no message of the block has the entry
        late entry        more than 1.5 η, because the entry began late and few earlier messages have it

    The messages of the block change the covariances of the entries by `covariance_change` (d, d), and their means by
    `step.mean_change`. `filled_squares` (d,) are the weighted sums of squares of each entry in the filled messages.
    """
    is_ordinary = (step.replaced_share > 0) & (step.replaced_share <= _ORDINARY_REPLACED * prepared.eta)
    can_predict = prepared.before.count > 0 and is_ordinary.any() and not is_ordinary.all()
    if not can_predict:
        return _predict_no_changes(len(is_ordinary))
    was_known_before = step.entries.known_before > 0  # a message before the block has the entry
    is_predicted = was_known_before & ~is_ordinary  # late entries and dead sensors
    # If no message of the block lacks an entry, nothing was filled, so there is no predictor yet.
    predictor = prepared.filled.predictor if prepared.filled else make_predictor(prepared.before, components)
    coordinate_changes = _predict_coordinates(  # 1.
        predictor,
        is_known=was_known_before,
        is_ordinary=is_ordinary,
        covariance_change=covariance_change,
        mean_change=step.mean_change,
    )
    mean_factor, covariance_factor = _find_limiting_factors(coordinate_changes)  # 2.
    C = coordinate_changes.C
    change_with_x = coordinate_changes.covariances_with_x
    is_dead = is_predicted & (step.replaced_share <= 0)
    change_with_x = _limit_dead_sensors(C, change_with_x, is_dead, filled_squares)
    return pairs.PredictedChanges(
        C=C,
        covariances_with_x=np.ascontiguousarray(change_with_x * covariance_factor),
        mean=C @ coordinate_changes.mean * mean_factor,  # 3.
        is_predicted=is_predicted,
    )


def _predict_no_changes(d: int) -> pairs.PredictedChanges:
    """Return the changes of d entries as zeros, for a block from which no entry can be predicted from other entries."""
    zeros = np.zeros((d, 1))  # the number of coordinates does not matter, so there is one
    return pairs.PredictedChanges(
        C=zeros, covariances_with_x=zeros, mean=np.zeros(d), is_predicted=np.zeros(d, np.bool_)
    )


class _CoordinateChanges(NamedTuple):
    """How the moments of the coordinates x change with a block."""

    C: F64  # (d, K): zeros for entries that were not known before the block
    covariances_with_x: F64  # (d, K): change of the covariances of each known entry with x
    second_moments: F64  # (K, K): change of the second moments of x
    mean: F64  # (K,): change of the mean of x


def _find_limiting_factors(changes: _CoordinateChanges) -> tuple[float, float]:
    """Return two factors, at most 1, which limit predicted changes: one for means, one for covariances.

    Changes are predicted from the coordinates x (K,) of messages on the axes C. Over a whole stream, the mean square of
    a coordinate is about 1. But here x is computed from the ordinary entries alone. If these hardly vary, a small
    deviation gives a huge x. So changes are limited to those of coordinates with a mean square of 30.
    """
    largest_square = _LARGEST_MEAN_SQUARE * len(changes.mean)  # of all K coordinates together
    square_of_mean = float(changes.mean @ changes.mean)
    mean_factor = np.sqrt(_find_reducing_factor(square_of_mean, largest_square))  # the root multiplies the mean
    covariance_factor = _find_reducing_factor(float(changes.second_moments.trace()), largest_square)
    return mean_factor, covariance_factor


def _find_reducing_factor(square: float, largest: float) -> float:
    """Return min(1, largest/square), by which a square must be multiplied so that it is at most `largest`."""
    is_too_large = square > largest  # also False if `square` is NaN
    return largest / square if is_too_large else 1.0


def _predict_coordinates(
    predictor: Predictor,
    is_known: NDArray[np.bool_],
    is_ordinary: NDArray[np.bool_],
    covariance_change: F64,
    mean_change: F64,
) -> _CoordinateChanges:
    """Compute from the changes of the ordinary entries how the messages' coordinates x (K,) change with a block.

    Ordinary entries L were known before the block for most of the weight, and the block has them. All other entries
    began late or in the block, or the whole block lacks them. x is found from the ordinary entries y_L of a message by
    ridge regression on C_L, their rows of C (d, K):

        x = M C_Lᵀ y_L        M = (C_LᵀC_L + diag(ridge))⁻¹

    So moments of x change linearly with those of y_L. Δ (d, d) is the change of the covariances (only the lower
    triangle is read), and δ (d,) the change of the means:

        1. cov(y_L, x) changes by Δ_LL C_L M
        2. cov(x, x) changes by M C_Lᵀ Δ_LL C_L M
        3. An entry outside of L is predicted as row C_i times x, so cov(y_i, x) changes by C_i · (change of cov(x, x)).
        4. The mean of x changes by M C_Lᵀ δ_L.

    Entries that were not known before the block (`is_known` is False) get zeros.
    """
    # So that no product overflows, entries are measured in this unit until the end. x has no unit.
    unit = power_of_two(float(np.abs(predictor.C).max()))
    C = predictor.C * is_known[:, None] / unit
    delta = mean_change / unit
    ridge = predictor.ridge / unit / unit
    to_unit_of_squares = 1 / unit / unit  # Δ is multiplied by this in the product with C_L, which saves a copy
    C_L = C * is_ordinary[:, None]
    M = np.linalg.inv(C_L.T @ C_L + np.diag(ridge))
    Delta_C_L = triangle.multiply_symmetric(to_unit_of_squares, covariance_change, C_L)  # Δ_LL C_L in rows L
    ordinary_with_x = is_ordinary[:, None] * Delta_C_L @ M  # 1. change of cov(y_L, x)
    second_moments = M @ (C_L.T @ ordinary_with_x)  # 2. change of cov(x, x)
    predicted_with_x = C @ second_moments  # 3. change of cov(Cx, x)
    covariances_with_x = np.where(is_ordinary[:, None], ordinary_with_x, predicted_with_x) * is_known[:, None]
    return _CoordinateChanges(
        C=C * unit,
        covariances_with_x=covariances_with_x * unit,
        second_moments=second_moments,
        mean=M @ (C_L.T @ delta),  # 4.
    )


def _limit_dead_sensors(C: F64, change_with_x: F64, is_dead: NDArray[np.bool_], filled_squares: F64) -> F64:
    """Scale down all predicted changes of covariances if the variances of dead sensors would grow too much.

    x (K,) are the coordinates of a message on the axes C (d, K). Row i of `change_with_x` (d, K) is the predicted
    change of the covariance of entry i with x. Returns `change_with_x`, scaled down.

    All messages of the block lack the entry of a dead sensor, so its variance grows only by prediction. If a message is
    extreme, the prediction could exceed what one message may add (centring.py). So the variances of all dead sensors
    together may grow by at most the weighted squares of the values that were filled in for them (`filled_squares`,
    (d,)). If the message is clipped, so are these values.
    """
    # Entry i is predicted as C_i x, so its variance changes by C_i · (change of the covariance of entry i with x).
    predicted_growth = np.vecdot(C, change_with_x)
    total_growth = predicted_growth[is_dead].clip(0).sum()
    largest_growth = filled_squares[is_dead].sum()
    factor = largest_growth / total_growth if total_growth > largest_growth else 1.0
    return np.asarray(change_with_x * factor)
