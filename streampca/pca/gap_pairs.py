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
    """Add a block to Σ, if an entry is missing in this block or was missing before. gaps.py has the formulas.

    1. Compute how the messages of the block change means and covariances: the shown changes.
    2. Predict the changes of entries that the block lacks, or that began late.
    3. Add both kinds of changes to the means and variances, then to all of Σ.

    Σ is in the units of the data, as a packed triangle. Everything else is in these units times D (d,): 1/standard
    deviation of each entry, or 1 if the stream is not standardised. Also returns the next Σ as a square (d, d), times
    the next D on both sides.
    """
    D = prepared.D
    product = triangle.gram(learned.Y).astype(np.float64, copy=False)  # Σc yyᵀ, for messages y of weight c
    step = compute_entry_step(prepared, learned)
    shown_changes = _compute_shown_changes(prepared, learned, step, product, covariance_before)
    row_squares = product.diagonal() + np.square(step.row_mean_change)  # Σc y² about the mean before the block
    prediction = predict_changes(prepared, learned, config.components, step, shown_changes.change, row_squares)
    variance_before = covariance_before[find_packed_diagonal(config.dimensions)] * D**2
    prediction = _drop_overpredicted(prediction, step, shown_changes, variance_before, prepared.eta)
    mean_change, variance = _add_changes_of_entries(prediction, step, shown_changes, variance_before, prepared.eta)
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


def _drop_overpredicted(
    prediction: pairs.PredictedChanges,
    step: EntryStep,
    shown_changes: pairs.PairChanges,
    variance_before: F64,
    eta: float,
) -> pairs.PredictedChanges:
    """Drop the predictions of entries whose variances they would make too small.

    The block replaces a share E of an entry's variance by what its messages show, so it leaves at least 1 − E of the
    earlier variance. A prediction that leaves less explains more of the entry than the block shows, as when all entries
    begin to vary together. With the prediction, the variance could become 0.
    """
    E = step.replaced_share
    _, variance = _add_changes_of_entries(prediction, step, shown_changes, variance_before, eta)
    is_shown = E > 0
    is_overpredicted = is_shown & (variance < (1 - E) * variance_before)
    return prediction._replace(is_predicted=prediction.is_predicted & ~is_overpredicted)


def _add_changes_of_entries(
    prediction: pairs.PredictedChanges,
    step: EntryStep,
    shown_changes: pairs.PairChanges,
    variance_before: F64,
    eta: float,
) -> tuple[F64, F64]:
    """Compute from shown and predicted changes how far the means move, and the variances after the block, (d,) each.

    A shown change is by the messages that have the entry. A predicted change is added to it with this share:

        1 − E/η        E: share of the entry's moments that the block replaces, η: share of the block in the weight

    So the share is 1 for an entry that the block lacks, and negative for one that began late, with E > η.
    """
    predicted_share = (1 - step.replaced_share / eta) * prediction.is_predicted
    predicted_variance = np.vecdot(prediction.C, prediction.covariances_with_x)
    mean_change = step.mean_change + predicted_share * prediction.mean
    shown_variance = variance_before + shown_changes.change.diagonal()
    variance = shown_variance - np.square(mean_change) + predicted_share * predicted_variance
    return mean_change, variance


def _compute_shown_changes(
    prepared: PreparedBlock, learned: BlockResult, step: EntryStep, product: F64, covariance_before: F64
) -> pairs.PairChanges:
    """Compute how the messages of the block change the covariance of each pair of entries.

    `product` (d, d) is Σc yyᵀ: y are the filled and clipped messages that Algorithm 1 learns, about their moving mean,
    and c their weights. `covariance_before` is Σ before the block, packed. The moving mean has changed by
    `step.row_mean_change` (d,).
    """
    before = prepared.before
    known_before = before.known  # packed: share of the weight for which each pair was known before the block
    if known_before is None:  # all pairs were known in all messages, if there were any
        known_before = np.full(len(covariance_before), float(before.count > 0))
    if not prepared.filled:  # no message of the block lacks an entry, but earlier ones did
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
        fits=_compute_fits(prepared.filled, prepared.weights.c, learned.kept_share),
        entries=step.entries,
        shown_together=shown_together.astype(np.float64, copy=False),
        past=prepared.weights.past,
        covariance=covariance_before,
        D=prepared.D,
        known=known_before,
    )


def _compute_fits(filled: Filled, c: F64, kept_share: F64) -> pairs.Fits:
    """Compute the sums of products of fits f and residuals r with the coordinates x: Σc f xᵀ and Σc (r/√q) xᵀ.

    A filled message is m + f + r/√q. f = Cx is predicted from its observed entries, and r is 0 where an entry is
    missing. q is the share of messages that show the entry. c (n,) are the messages' weights, and `kept_share` (n,) the
    shares of v − m that clipping has left.
    """
    C = filled.predictor.C
    weighted_x = filled.X * (c * np.square(kept_share))[:, None]  # clipping scales both factors of each product
    rows = filled.V - filled.predictor.mean  # f + r/√q
    xx = weighted_x.T @ filled.X  # Σc x xᵀ
    x_rows = weighted_x.T @ rows  # Σc x (f + r/√q)ᵀ
    x_residuals = x_rows - xx @ C.T  # Σc x (r/√q)ᵀ, because Σc x fᵀ = Σc x xᵀ Cᵀ
    return pairs.Fits(C=C, fits_with_x=C @ xx, residuals_with_x=np.ascontiguousarray(x_residuals.T))
