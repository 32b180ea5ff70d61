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
from scipy.linalg import blas

from streampca.pca.arrays import F64, power_of_two
from streampca.pca.blocked import pairs
from streampca.pca.blocked.block import BlockResult
from streampca.pca.gaps import EntryStep
from streampca.pca.missing import Predictor, make_predictor
from streampca.pca.prepared_block import PreparedBlock

_ORDINARY_REPLACED = 1.5  # times η: an entry is ordinary if the block replaces no more than this share of its moments
_LARGEST_MEAN_SQUARE = 30.0  # of the coordinates of a prediction; over all messages of a stream it is about 1


def predict_changes(
    prepared: PreparedBlock, learned: BlockResult, components: int, step: EntryStep, change: F64, row_squares: F64
) -> pairs.PredictedChanges:
    """Predict how a block changes late entries and dead sensors, from its changes of the ordinary entries.

    A late entry began late in the stream, a dead sensor is missing in all messages of the block, and an ordinary entry
    is neither. `change` (d, d) is how the messages of the block change the covariances. `row_squares` (d,) are the sums
    of the weighted squares of the block's entries, also of filled ones.

    1. Compute how the moments of the messages' coordinates x on the axes C change, from the ordinary entries alone.
    2. Limit the changes of the moments of x.
    3. The moments of late entries and dead sensors are predicted to change as those of Cx.
    """
    # Of the moments of an ordinary entry, the block replaces about its own share η of the weight. Of a dead sensor, it
    # replaces nothing. A late entry has few earlier messages, so the block replaces more.
    is_ordinary = (step.replaced_share > 0) & (step.replaced_share <= _ORDINARY_REPLACED * prepared.eta)
    can_predict = prepared.before.count > 0 and is_ordinary.any() and not is_ordinary.all()
    if not can_predict:
        return _predict_no_changes(len(is_ordinary))
    was_known_before = step.entries.known_before > 0  # an earlier message has shown the entry
    is_predicted = was_known_before & ~is_ordinary  # late entries and dead sensors
    predictor = prepared.filled.predictor if prepared.filled else make_predictor(prepared.before, components)
    x_changes = _predict_coordinates(predictor, was_known_before, is_ordinary, change, step.mean_change)  # 1.
    mean_factor, covariance_factor = _find_limiting_factors(x_changes)  # 2.
    C = x_changes.C
    covariances_with_x = x_changes.covariances_with_x
    was_clipped = (learned.kept_share < 1).any()
    if was_clipped:  # the messages had outliers, which predictions from other entries must not restore
        is_dead = is_predicted & (step.replaced_share <= 0)
        covariances_with_x = _limit_dead_sensors(C, covariances_with_x, is_dead, row_squares)
    return pairs.PredictedChanges(
        C=C,
        covariances_with_x=np.ascontiguousarray(covariances_with_x * covariance_factor),
        mean=C @ x_changes.mean * mean_factor,  # 3.
        is_predicted=is_predicted,
    )


def _predict_no_changes(d: int) -> pairs.PredictedChanges:
    """Return changes in which none of the d entries is predicted: zeros, with one coordinate."""
    zeros = np.zeros((d, 1))
    return pairs.PredictedChanges(
        C=zeros, covariances_with_x=zeros, mean=np.zeros(d), is_predicted=np.zeros(d, np.bool_)
    )


class _CoordinateChanges(NamedTuple):
    """How the moments of the coordinates x change with a block."""

    C: F64  # (d, K): zeros for entries that were not known before the block
    covariances_with_x: F64  # (d, K): change of the covariances of each known entry with x
    second_moments: F64  # (K, K): change of the second moments of x
    mean: F64  # (K,): change of the mean of x


def _find_limiting_factors(x_changes: _CoordinateChanges) -> tuple[float, float]:
    """Return the factors by which predicted changes of the mean and of the covariances must be multiplied.

    x (K,) are the coordinates of a message on the columns of C. The mean square of a coordinate is about 1. If the
    ordinary entries, from which x is computed, are nearly constant, x may be far too large. So the changes of the mean
    and of the second moments of x are limited to those of coordinates with a mean square of 30.
    """
    largest_square = _LARGEST_MEAN_SQUARE * len(x_changes.mean)
    mean_square = float(x_changes.mean @ x_changes.mean)
    mean_factor = np.sqrt(_find_limiting_factor(mean_square, largest_square))  # of the mean, not of its square
    covariance_factor = _find_limiting_factor(float(x_changes.second_moments.trace()), largest_square)
    return mean_factor, covariance_factor


def _find_limiting_factor(square: float, largest: float) -> float:
    """Return the factor that reduces a square to the `largest` square allowed."""
    is_too_large = square > largest  # not if it is NaN
    return largest / square if is_too_large else 1.0


def _predict_coordinates(
    predictor: Predictor, is_known: NDArray[np.bool_], is_ordinary: NDArray[np.bool_], change: F64, mean_change: F64
) -> _CoordinateChanges:
    """Compute how the moments of the coordinates x of messages change with those of the ordinary entries y_L.

    The predictor finds x by ridge regression of y_L on C (d, K), with the rows C_L for ordinary entries. The other
    entries are predicted as Cx. Δ (d, d) is the `change` of the covariances, and δ (d,) that of the means:

        x = M C_Lᵀ y_L                          M = (C_LᵀC_L + diag(ridge))⁻¹
        cov(y_L, x) changes by Δ_LL C_L M       cov(x, x) by M C_Lᵀ Δ_LL C_L M
        cov(Cx, x) changes by C times that      the mean of x by M C_Lᵀ δ_L

    Entries that were not `is_known` before the block get zeros. Of Δ only the lower triangle is read.
    """
    # C, ridge, Δ and δ are divided by powers of this unit, so that products do not overflow. x has no unit.
    unit = power_of_two(float(np.abs(predictor.C).max()))
    C = predictor.C * is_known[:, None] / unit
    C_L = C * is_ordinary[:, None]
    ridge = predictor.ridge / unit / unit
    M = np.linalg.inv(C_L.T @ C_L + np.diag(ridge))
    Delta_C_L = blas.dsymm(1 / unit / unit, change.T, C_L)
    ordinary_with_x = is_ordinary[:, None] * Delta_C_L @ M  # change of cov(y_L, x)
    second_moments = M @ (C_L.T @ ordinary_with_x)  # change of cov(x, x)
    predicted_with_x = C @ second_moments  # change of cov(Cx, x)
    covariances_with_x = np.where(is_ordinary[:, None], ordinary_with_x, predicted_with_x) * is_known[:, None]
    return _CoordinateChanges(
        C=C * unit,
        covariances_with_x=covariances_with_x * unit,
        second_moments=second_moments,
        mean=M @ (C_L.T @ (mean_change / unit)),
    )


def _limit_dead_sensors(C: F64, covariances_with_x: F64, is_dead: NDArray[np.bool_], row_squares: F64) -> F64:
    """Scale down all predicted changes of covariances if the variances of dead sensors would grow too much.

    An outlier in the other entries is clipped. A prediction from them could give the dead sensors the variance that
    the outlier had before. So the variances of dead sensors may grow in total by no more than the weighted squares of
    their filled entries (`row_squares`, (d,)), which were clipped with the message.
    """
    predicted_growth = np.vecdot(C, covariances_with_x)  # of the variance of each entry
    total_growth = predicted_growth[is_dead].clip(0).sum()
    largest_growth = row_squares[is_dead].sum()
    factor = largest_growth / total_growth if total_growth > largest_growth else 1.0
    return np.asarray(covariances_with_x * factor)
