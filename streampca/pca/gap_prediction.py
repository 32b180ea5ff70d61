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
from streampca.pca.blocked import centring, pairs
from streampca.pca.gaps import BlockWithGaps, EntryStep
from streampca.pca.missing import Predictor

_ORDINARY = 1.5  # times η: an entry is ordinary if the block replaces no more than this share of its moments


def predict_changes(block: BlockWithGaps, step: EntryStep, change: F64, squares: F64) -> pairs.PredictedChange:
    """Predict the changes of known entries from the changes of the ordinary entries.

    `change` (d, d) has Δ in its lower triangle. `squares` (d,) are the second moments of the rows.
    """
    is_ordinary = (step.replaced > 0) & (step.replaced <= _ORDINARY * block.eta)
    can_predict = block.before.count > 0 and is_ordinary.any() and not is_ordinary.all()
    if not can_predict:  # the changes are 0, of one column that stands for C
        zeros = np.zeros(len(is_ordinary))
        column = zeros[:, None]
        return pairs.PredictedChange(C=column, with_coordinates=column, means=zeros, is_predicted=zeros)
    is_known = step.entries.known_before > 0
    is_predicted = is_known & ~is_ordinary
    x = _compute_coordinates(block.predictor, is_known, is_ordinary, change, step.moved)
    covariances = x.covariances
    was_clipped = (block.learned.kept < 1).any()
    if was_clipped:
        is_dead = is_predicted & (step.replaced <= 0)
        covariances = _limit_dead_sensors(x.C, covariances, is_dead, squares)
    # If L has hardly varied so far, a small change of L gives large coordinates, and the prediction would be far off.
    # So ‖x‖², which is K on average, is limited to 30 times as much.
    largest_square = centring.ORDINARY * x.C.shape[1]
    share_of_covariances = min(1.0, largest_square / max(float(x.second_moments.trace()), largest_square))
    share_of_means = min(1.0, np.sqrt(largest_square / max(float(x.mean @ x.mean), largest_square)))
    return pairs.PredictedChange(
        C=x.C,
        with_coordinates=np.ascontiguousarray(covariances * share_of_covariances),
        means=x.C @ x.mean * share_of_means,
        is_predicted=is_predicted.astype(np.float64),
    )


class _Coordinates(NamedTuple):
    """How the moments of the coordinates x change with a block."""

    C: F64  # (d, K): zeros for entries that were not known
    covariances: F64  # (d, K): change of the covariances of each known entry with x
    second_moments: F64  # (K, K): change of the second moments of x
    mean: F64  # (K,): change of the mean of x


def _compute_coordinates(
    predictor: Predictor, is_known: NDArray[np.bool_], is_ordinary: NDArray[np.bool_], change: F64, moved: F64
) -> _Coordinates:
    """Compute how the moments of x change, if the covariances of ordinary entries change by Δ and their means by δ.

    `is_known` and `is_ordinary` (d,) are masks of entries. `change` (d, d) has Δ in its lower triangle; `moved` (d,) is
    δ.
    """
    # C is divided by a unit so that products do not overflow. In this unit x = inverse C_Lᵀ y_L / unit.
    unit = power_of_two(float(np.abs(predictor.C).max()))
    C = predictor.C * is_known[:, None] / unit
    ridge = predictor.ridge / unit / unit
    C_L = C * is_ordinary[:, None]
    inverse = np.linalg.inv(C_L.T @ C_L + np.diag(ridge))
    # The change of the covariances of y_L with x. `dsymm` reads one triangle of the symmetric Δ.
    ordinary_with_x = is_ordinary[:, None] * blas.dsymm(1 / unit, change.T, C_L) @ inverse
    second_moments = inverse @ (C_L.T @ ordinary_with_x) / unit
    mean = inverse @ (C_L.T @ moved) / unit
    predicted_with_x = C @ second_moments * unit  # the same of the predicted entries, which are Cx
    covariances = np.where(is_ordinary[:, None], ordinary_with_x, predicted_with_x) * is_known[:, None]
    return _Coordinates(C=C * unit, covariances=covariances, second_moments=second_moments, mean=mean)


def _limit_dead_sensors(C: F64, covariances: F64, is_dead: NDArray[np.bool_], squares: F64) -> F64:
    """Scale predicted covariances of entries with x (d, K), so that the variances of dead sensors grow within limits.

    The limit is the variance that the rows of the block have in these entries: `squares` (d,) are the second moments of
    the rows. Otherwise a prediction could restore an outlier that was clipped.
    """
    largest_growth = squares[is_dead].sum()
    growth = np.vecdot(C, covariances)[is_dead].clip(0).sum()
    share = largest_growth / growth if growth > largest_growth else 1.0
    return np.asarray(covariances * share)
