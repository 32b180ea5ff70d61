"""Computes how a block with gaps changes Σ, the covariances of all pairs of entries; gaps.py has the formulas."""

from dataclasses import replace

import numpy as np

from streampca.pca import scaling
from streampca.pca.arrays import F64, Array, find_packed_diagonal
from streampca.pca.blocked import pairs, triangle
from streampca.pca.blocked.block import BlockResult
from streampca.pca.gap_prediction import predict_changes
from streampca.pca.gaps import EntryStep, compute_entry_step, move_mean
from streampca.pca.learning_config import LearningConfig
from streampca.pca.missing import Filled
from streampca.pca.prepared_block import PreparedBlock
from streampca.pca.state import State, none_if_all_known


def add_block_with_gaps(
    after: State, covariance_before: F64, prepared: PreparedBlock, learned: BlockResult, config: LearningConfig
) -> tuple[State, Array]:
    """Add a block to Σ, if an entry is missing in this block or was missing before.

    Σ is in the units of the data, as a packed triangle. Also returns the next Σ as a square (d, d), standardised for
    the next block.
    """
    D = prepared.D  # 1/standard deviations
    product = triangle.gram(learned.Y).astype(np.float64, copy=False)  # Σc yyᵀ
    step = compute_entry_step(prepared, learned)
    shown_changes = _compute_shown_changes(prepared, learned, step, product, covariance_before)
    variance_before = covariance_before[find_packed_diagonal(config.dimensions)] * D**2
    shown_variance = variance_before + shown_changes.change.diagonal()
    row_squares = product.diagonal() + np.square(step.row_mean_change)  # Σc y² about the mean before the block
    prediction = predict_changes(prepared, learned, config.components, step, shown_changes.change, row_squares)
    mean_change, variance = _add_prediction(step, shown_variance, prediction, prepared.eta)
    # A late entry keeps at least the share 1 − E of its variance. If less would be left, the prediction explains more
    # than the block shows, as when all entries begin to vary together. Then the variance could become 0.
    is_overpredicted = (step.replaced_share > 0) & (variance < (1 - step.replaced_share) * variance_before)
    prediction = prediction._replace(is_predicted=prediction.is_predicted & ~is_overpredicted)
    mean_change, variance = _add_prediction(step, shown_variance, prediction, prepared.eta)
    variance = np.maximum(variance, 0.0)
    after = replace(
        after,
        mean=move_mean(prepared, mean_change, config),
        known=none_if_all_known(shown_changes.known),
        total_variance=float(variance.sum()),
    )
    next_D = D
    if prepared.scale is not None:
        after, next_D = scaling.rescale(after, variance / D**2)  # the variances of the data
    standardised_square = np.empty((config.dimensions, config.dimensions), config.dtype)
    covariance = pairs.add_changes(
        covariance_before=covariance_before,
        shown_changes=shown_changes,
        predicted_changes=prediction,
        mean_change=mean_change,
        variance=variance,
        eta=prepared.eta,
        D=D,
        next_D=next_D,
        square=standardised_square,
    )
    return replace(after, covariance=covariance), standardised_square


def _add_prediction(
    step: EntryStep, shown_variance: F64, prediction: pairs.PredictedChanges, eta: float
) -> tuple[F64, F64]:
    """Add the predicted changes to those that the block shows.

    Returns the changes of the means, and the variances after the block, (d,) each.
    """
    # The share is 1 if no message shows the entry.
    predicted_share = (1 - step.replaced_share / eta) * prediction.is_predicted
    predicted_variance = np.vecdot(prediction.C, prediction.covariances_with_x)
    mean_change = step.mean_change + predicted_share * prediction.mean
    variance = shown_variance - np.square(mean_change) + predicted_share * predicted_variance
    return mean_change, variance


def _compute_shown_changes(
    prepared: PreparedBlock, learned: BlockResult, step: EntryStep, product: F64, covariance_before: F64
) -> pairs.PairChanges:
    """Compute how the messages of the block change the covariance of each pair of entries.

    `product` is Σc yyᵀ of the block, and `covariance_before` is Σ before the block, packed.
    """
    before = prepared.before
    known_before = before.known  # packed: share of the weight for which each pair was known before the block
    if known_before is None:  # all pairs were known in all messages, if there were any
        known_before = np.full(len(covariance_before), float(before.count > 0))
    if not prepared.filled:  # no message of the block lacks an entry
        return pairs.compute_changes_of_complete_block(
            product=product,
            change_of_row_mean=step.row_mean_change,
            past=prepared.weights.past,
            covariance=covariance_before,
            D=prepared.D,
            known=known_before,
        )
    weighted_shown = np.sqrt(prepared.weights.c)[:, None] * prepared.filled.shown
    shown_together = triangle.gram(weighted_shown)  # weight of the block's messages that show both entries
    return pairs.compute_changes(
        product=product,
        change_of_row_mean=step.row_mean_change,
        fits=_compute_fits(prepared.filled, prepared.weights.c, learned.kept),
        entries=step.entries,
        shown=shown_together.astype(np.float64, copy=False),
        past=prepared.weights.past,
        covariance=covariance_before,
        D=prepared.D,
        known=known_before,
    )


def _compute_fits(filled: Filled, c: F64, kept: F64) -> pairs.Fits:
    """Compute the moments of the fits f = Cx and of the scaled residuals r/√q with x.

    `c` and `kept` (n,) are the weights of the messages, and the shares of their distances that clipping has left.
    """
    C = filled.predictor.C
    weighted_x = filled.X * (c * np.square(kept))[:, None]  # clipping scales x and the rows
    rows = filled.V - filled.predictor.mean  # f + r/√q
    xx = weighted_x.T @ filled.X  # Σc x xᵀ
    x_rows = weighted_x.T @ rows  # Σc x (f + r/√q)ᵀ
    x_residuals = x_rows - xx @ C.T  # Σc x (r/√q)ᵀ
    return pairs.Fits(C=C, fits_with_x=C @ xx, residuals_with_x=np.ascontiguousarray(x_residuals.T))
