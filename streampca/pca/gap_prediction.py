"""Predicts the changes of entries from the changes of ordinary entries: step 4 of gaps.py.

L are the ordinary entries: the block replaces about its own share η of their moments. Of an entry that began late the
block replaces more, and of the entry of a dead sensor nothing. The coordinates x = (C_LᵀC_L + diag(ridge))⁻¹ C_Lᵀ y_L
are predicted from L, and all entries are predicted as Cx.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from streampca.pca.arrays import F64, power_of_two
from streampca.pca.blocked import pairs
from streampca.pca.gaps import BlockWithGaps, EntryStep
from streampca.pca.missing import Predictor

_ORDINARY_REPLACED = 1.5  # times η: an entry is ordinary if the block replaces no more than this share of its moments
_LARGEST_MEAN_SQUARE = 30.0  # of the coordinates of a prediction; over all messages of a stream it is about 1


def predict_changes(block: BlockWithGaps, step: EntryStep, change: F64, squares: F64) -> pairs.PredictedChanges:
    """Predict from the changes of ordinary entries how the other entries change, as far as they were known before.

    An entry is ordinary if the block replaces about its own share η of the moments. Of a dead sensor, which the block
    does not show, the block replaces nothing, and of an entry that began late, more than η. The predicted entries are
    Cx, where the coordinates x are fitted to the ordinary entries.

    The lower triangle of `change` (d, d) has the changes of Σ that the block shows. `squares` (d,) are the second
    moments of the rows of the block.
    """
    is_ordinary = (step.replaced_share > 0) & (step.replaced_share <= _ORDINARY_REPLACED * block.eta)
    can_predict = block.before.count > 0 and is_ordinary.any() and not is_ordinary.all()
    if not can_predict:  # the changes are 0, of one column that stands for C
        zeros = np.zeros(len(is_ordinary))
        column = zeros[:, None]
        return pairs.PredictedChanges(
            C=column, covariances_with_x=column, mean=zeros, is_predicted=np.zeros_like(is_ordinary)
        )
    is_known = step.entries.known_before > 0
    is_predicted = is_known & ~is_ordinary
    x = _predict_coordinates(
        block.predictor, is_known=is_known, is_ordinary=is_ordinary, change=change, mean_change=step.mean_change
    )
    covariances = x.covariances_with_x
    was_clipped = (block.learned.kept < 1).any()
    if was_clipped:
        is_dead = is_predicted & (step.replaced_share <= 0)
        covariances = _limit_dead_sensors(x.C, covariances, is_dead, squares)
    # If ordinary entries have hardly varied so far, a small change of them gives large coordinates x, and a prediction
    # that is far off. So ‖x‖², whose mean is the number of coordinates, is limited to 30 times this number.
    largest_square = _LARGEST_MEAN_SQUARE * x.C.shape[1]
    share_of_covariances = min(1.0, largest_square / max(float(x.second_moments.trace()), largest_square))
    share_of_mean = min(1.0, np.sqrt(largest_square / max(float(x.mean @ x.mean), largest_square)))
    return pairs.PredictedChanges(
        C=x.C,
        covariances_with_x=np.ascontiguousarray(covariances * share_of_covariances),
        mean=x.C @ x.mean * share_of_mean,
        is_predicted=is_predicted,
    )


class _CoordinateChanges(NamedTuple):
    """How the moments of the coordinates x change with a block."""

    C: F64  # (d, K): zeros for entries that were not known
    covariances_with_x: F64  # (d, K): change of the covariances of each known entry with x
    second_moments: F64  # (K, K): change of the second moments of x
    mean: F64  # (K,): change of the mean of x


def _predict_coordinates(
    predictor: Predictor, *, is_known: NDArray[np.bool_], is_ordinary: NDArray[np.bool_], change: F64, mean_change: F64
) -> _CoordinateChanges:
    """Compute how the moments of the coordinates x change with the moments of the ordinary entries L.

    The lower triangle of `change` (d, d) has the change Δ of the covariances, and `mean_change` (d,) is the change δ of
    the means. With M = (C_LᵀC_L + diag(ridge))⁻¹, the coordinates are x = M C_Lᵀ y_L, and their moments change by:

        cov(y_L, x): Δ_LL C_L M        cov(x, x): M C_Lᵀ Δ_LL C_L M        mean of x: M C_Lᵀ δ_L

    A predicted entry is c·x with its row c of C, so its covariances with x change by cᵀ times the change of cov(x, x).
    `is_known` and `is_ordinary` (d,) are masks of entries.
    """
    # So that products do not overflow, C is divided by `unit`, and the ridge by its square.
    unit = power_of_two(float(np.abs(predictor.C).max()))
    C = predictor.C * is_known[:, None] / unit
    ridge = predictor.ridge / unit / unit
    C_L = C * is_ordinary[:, None]
    scaled_M = np.linalg.inv(C_L.T @ C_L + np.diag(ridge))  # M · unit²
    Delta_C_L = is_ordinary[:, None] * blas.dsymm(1 / unit, change.T, C_L)  # Δ_LL C_L/unit²: reads a triangle of Δ
    ordinary_with_x = Delta_C_L @ scaled_M
    second_moments = scaled_M @ (C_L.T @ ordinary_with_x) / unit
    mean = scaled_M @ (C_L.T @ mean_change) / unit
    predicted_with_x = C @ second_moments * unit
    covariances = np.where(is_ordinary[:, None], ordinary_with_x, predicted_with_x) * is_known[:, None]
    return _CoordinateChanges(C=C * unit, covariances_with_x=covariances, second_moments=second_moments, mean=mean)


def _limit_dead_sensors(C: F64, covariances: F64, is_dead: NDArray[np.bool_], squares: F64) -> F64:
    """Scale the predicted covariances between entries and coordinates (d, K), if dead sensors would vary too much.

    A dead sensor is an entry that the block does not show. Its variance is predicted to grow by its row of C, times its
    covariances with the coordinates. All dead sensors together may grow by the second moments of their rows in the
    block, `squares` (d,), and no more. Otherwise a prediction could restore an outlier that was clipped.
    """
    largest_growth = squares[is_dead].sum()
    growth = np.vecdot(C, covariances)[is_dead].clip(0).sum()
    share = largest_growth / growth if growth > largest_growth else 1.0
    return np.asarray(covariances * share)
