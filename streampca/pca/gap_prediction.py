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
    """Predict the changes of late entries and dead sensors from those of ordinary entries.

    A late entry began late, the block lacks a dead sensor, and an ordinary entry is neither. Δ (d, d) is `change`, and
    `row_squares` (d,) are Σc y² of the block.
    """
    is_ordinary = (step.replaced_share > 0) & (step.replaced_share <= _ORDINARY_REPLACED * prepared.eta)
    can_predict = prepared.before.count > 0 and is_ordinary.any() and not is_ordinary.all()
    if not can_predict:
        return _predict_no_changes(len(is_ordinary))
    is_known = step.entries.known_before > 0
    is_predicted = is_known & ~is_ordinary
    predictor = prepared.filled.predictor if prepared.filled else make_predictor(prepared.before, components)
    x = _predict_coordinates(predictor, is_known, is_ordinary, change, step.mean_change)
    # Nearly constant entries may give far too large coordinates. Means grow with them, covariances with their squares.
    largest_square = _LARGEST_MEAN_SQUARE * x.C.shape[1]
    covariance_factor = _find_limiting_factor(float(x.second_moments.trace()), largest_square)
    mean_factor = np.sqrt(_find_limiting_factor(float(x.mean @ x.mean), largest_square))
    covariances_with_x = x.covariances_with_x
    was_clipped = (learned.kept < 1).any()
    if was_clipped:
        is_dead = is_predicted & (step.replaced_share <= 0)
        covariances_with_x = _limit_dead_sensors(x.C, covariances_with_x, is_dead, row_squares)
    return pairs.PredictedChanges(
        C=x.C,
        covariances_with_x=np.ascontiguousarray(covariances_with_x * covariance_factor),
        mean=x.C @ x.mean * mean_factor,
        is_predicted=is_predicted,
    )


def _predict_no_changes(d: int) -> pairs.PredictedChanges:
    """Return predicted changes that are 0 for all d entries."""
    zeros = np.zeros((d, 1))  # as if there were one coordinate x, which changes nothing
    return pairs.PredictedChanges(
        C=zeros, covariances_with_x=zeros, mean=np.zeros(d), is_predicted=np.zeros(d, np.bool_)
    )


def _find_limiting_factor(square: float, largest: float) -> float:
    """Return the factor that reduces a square to the `largest` square allowed."""
    is_too_large = square > largest  # not if it is NaN
    return largest / square if is_too_large else 1.0


class _CoordinateChanges(NamedTuple):
    """How the moments of the coordinates x change with a block."""

    C: F64  # (d, K): zeros for entries that were not known
    covariances_with_x: F64  # (d, K): change of the covariances of each known entry with x
    second_moments: F64  # (K, K): change of the second moments of x
    mean: F64  # (K,): change of the mean of x


def _predict_coordinates(
    predictor: Predictor, is_known: NDArray[np.bool_], is_ordinary: NDArray[np.bool_], change: F64, mean_change: F64
) -> _CoordinateChanges:
    """Compute how the moments of the coordinates x change with those of the ordinary entries y_L.

    With M = (C_LᵀC_L + diag(ridge))⁻¹, x is M C_Lᵀy_L. The covariances of all entries change by `change` (d, d), and
    their means by `mean_change` (d,).
    """
    # Entries are measured in this unit, so that products do not overflow.
    unit = power_of_two(float(np.abs(predictor.C).max()))
    C = predictor.C * is_known[:, None] / unit
    C_L = C * is_ordinary[:, None]
    ridge = predictor.ridge / unit / unit
    M = np.linalg.inv(C_L.T @ C_L + np.diag(ridge))
    Delta_C_L = blas.dsymm(1 / unit / unit, change.T, C_L)
    ordinary_with_x = is_ordinary[:, None] * Delta_C_L @ M  # Δ_LL C_L M, the change of cov(y_L, x)
    second_moments = M @ (C_L.T @ ordinary_with_x)  # change of cov(x, x)
    predicted_with_x = C @ second_moments  # change of cov(Cx, x)
    covariances_with_x = np.where(is_ordinary[:, None], ordinary_with_x, predicted_with_x) * is_known[:, None]
    return _CoordinateChanges(
        C=C * unit,
        covariances_with_x=covariances_with_x * unit,
        second_moments=second_moments,
        mean=M @ (C_L.T @ (mean_change / unit)),
    )


def _limit_dead_sensors(C: F64, covariances: F64, is_dead: NDArray[np.bool_], row_squares: F64) -> F64:
    """Scale down all predicted changes of covariances if the variances of dead sensors would grow too much.

    Otherwise a prediction could restore an outlier that was clipped.
    """
    largest_growth = row_squares[is_dead].sum()
    growth = np.vecdot(C, covariances)[is_dead].clip(0).sum()
    share = largest_growth / growth if growth > largest_growth else 1.0
    return np.asarray(covariances * share)
