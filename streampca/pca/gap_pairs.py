"""Computes how a block with gaps changes Σ, the covariances of all pairs of entries; gaps.py has the formulas."""

from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64, Array, find_packed_diagonal
from streampca.pca.blocked import pairs, triangle
from streampca.pca.gap_prediction import predict_changes
from streampca.pca.gaps import BlockWithGaps, EntryStep, compute_entry_step, none_if_all_known
from streampca.pca.missing import Filled


class PairStep(NamedTuple):
    """How a block changes Σ.

    `compute_covariance` changes Σ later: it needs the next D, which follows from the variances of this step.
    """

    mean_change: F64  # δ (d,): how far each mean moves
    known: F64 | None  # N′, packed: share of the weight for which each pair is known after the block; None: all 1
    variance: F64  # (d,): the diagonal of Σ′, in the units of the block
    shown_changes: pairs.PairChanges  # what the messages of the block show
    predicted_changes: pairs.PredictedChanges
    covariance_before: F64  # Σ, packed, in the units of the data
    eta: float  # η, the block's share of the weight

    def compute_covariance(self, D: F64, next_D: F64, dtype: str) -> tuple[F64, Array]:
        """Compute Σ after the block, packed, and as a square (d, d), standardised for the next block.

        D (d,) are 1/standard deviations.
        """
        d = len(D)
        square = np.empty((d, d), dtype)
        covariance = pairs.add_changes(
            covariance_before=self.covariance_before,
            shown_changes=self.shown_changes,
            predicted_changes=self.predicted_changes,
            mean_change=self.mean_change,
            variance=self.variance,
            eta=self.eta,
            D=D,
            next_D=next_D,
            square=square,
        )
        return covariance, square


def compute_pair_step(block: BlockWithGaps, covariance: F64 | None, D: F64) -> PairStep:
    """Compute how the block changes Σ: by the pairs that it shows, and by predictions.

    D (d,) are 1/standard deviations.
    """
    d = len(D)
    if covariance is None:
        covariance = np.zeros(d * (d + 1) // 2)
    product = triangle.gram(block.learned.Y).astype(np.float64, copy=False)
    step = compute_entry_step(block)
    shown_changes = _compute_shown_changes(block, step, product, covariance, D)
    row_squares = product.diagonal() + np.square(block.change_of_row_mean)  # Σc y² about the mean before the block
    predicted_changes = predict_changes(block, step, shown_changes.change, row_squares)
    variance_before = covariance[find_packed_diagonal(d)] * D**2
    shown_variance = variance_before + shown_changes.change.diagonal()
    mean_change, variance = _add_predictions(step, shown_variance, predicted_changes, block.eta)
    # A late entry keeps at least the share 1 − E of its variance. If less would be left, the prediction explains more
    # than the block shows, as when all entries begin to vary together. Then the variance could become 0.
    is_late = predicted_changes.is_predicted & (step.replaced_share > 0)
    is_overpredicted = is_late & (variance < (1 - step.replaced_share) * variance_before)
    if is_overpredicted.any():
        is_predicted = predicted_changes.is_predicted & ~is_overpredicted
        predicted_changes = predicted_changes._replace(is_predicted=is_predicted)
        mean_change, variance = _add_predictions(step, shown_variance, predicted_changes, block.eta)
    return PairStep(
        mean_change=mean_change,
        known=none_if_all_known(shown_changes.known),
        variance=np.maximum(variance, 0.0),
        shown_changes=shown_changes,
        predicted_changes=predicted_changes,
        covariance_before=covariance,
        eta=block.eta,
    )


def _add_predictions(
    step: EntryStep, shown_variance: F64, predicted_changes: pairs.PredictedChanges, eta: float
) -> tuple[F64, F64]:
    """Add the predicted changes to the changes of the means; return them, and the variances after the block, (d,)."""
    # The share is 1 if no message shows the entry.
    predicted_share = (1 - step.replaced_share / eta) * predicted_changes.is_predicted
    mean_change = step.mean_change + predicted_share * predicted_changes.mean
    variance = shown_variance - np.square(mean_change)
    predicted_variance = np.vecdot(predicted_changes.C, predicted_changes.covariances_with_x)
    variance += predicted_share * predicted_variance
    return mean_change, variance


def _compute_shown_changes(
    block: BlockWithGaps, step: EntryStep, product: F64, covariance: F64, D: F64
) -> pairs.PairChanges:
    """Compute how the messages of the block change the covariance of each pair of entries.

    `product` is Σc yyᵀ of the block, `covariance` is Σ before the block, packed, and D are 1/standard deviations.
    """
    known_before = block.before.known  # packed: share of the weight for which each pair was known before the block
    if known_before is None:  # all pairs were known in all messages, if there were any
        known_before = np.full(len(covariance), float(block.before.count > 0))
    past = block.weights.past
    if not block.filled:  # no message of the block lacks an entry
        return pairs.compute_changes_of_complete_block(
            product=product,
            change_of_row_mean=block.change_of_row_mean,
            past=past,
            covariance=covariance,
            D=D,
            known=known_before,
        )
    weighted_shown = np.sqrt(block.weights.c)[:, None] * block.filled.shown
    shown_together = triangle.gram(weighted_shown)  # weight of the block's messages that show both entries
    return pairs.compute_changes(
        product=product,
        change_of_row_mean=block.change_of_row_mean,
        fits=_compute_fits(block, block.filled),  # a fit f = Cx predicts a message from its shown entries
        entries=step.entries,
        shown=shown_together.astype(np.float64, copy=False),
        past=past,
        covariance=covariance,
        D=D,
        known=known_before,
    )


def _compute_fits(block: BlockWithGaps, filled: Filled) -> pairs.Fits:
    """Compute the moments of the fits f = Cx and the scaled residuals r/√q with x."""
    C = filled.predictor.C
    weights = block.weights.c * np.square(block.learned.kept)  # clipping scales x and the rows
    weighted_x = filled.X * weights[:, None]
    rows = filled.V - filled.predictor.mean  # f + r/√q
    xx = weighted_x.T @ filled.X  # Σc x xᵀ
    x_rows = weighted_x.T @ rows  # Σc x (f + r/√q)ᵀ
    x_residuals = x_rows - xx @ C.T  # Σc x (r/√q)ᵀ
    return pairs.Fits(C=C, fits_with_x=C @ xx, residuals_with_x=np.ascontiguousarray(x_residuals.T))
