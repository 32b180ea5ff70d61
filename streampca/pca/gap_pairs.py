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
    """If an entry is missing in this block or was not always known, add the block to Σ. gaps.py has the formulas.

    1. Compute the shown changes: how means and covariances change by the entries that the block's messages have.
    2. Predict the changes of entries that all messages of the block lack, or that began late in the stream. Drop the
       prediction for an entry if the variance of the entry would become too small.
    3. Add both kinds of changes to the means and variances, then to all of Σ.

    Returns the state after the block, and its Σ as a square. D (d,) is 1/standard deviation of each entry before the
    block, or 1 if the stream is not standardised. Units:

        packed Σ: `covariance_before` and `covariance`       of the data
        `product`, changes, and variances (d,)               of the data times D
        `next_square`, the next Σ (d, d)                     of the data times the next D, on both sides
    """
    D = prepared.D
    product = triangle.gram(learned.Y).astype(np.float64, copy=False)  # sum of c yyᵀ, for messages y of weight c
    # 1.
    step = compute_entry_step(prepared, learned)  # the shown changes of single entries
    shown_changes = _compute_shown_changes(prepared, learned, step, product, covariance_before)
    # 2. The weighted squares of the filled messages, (d,), limit the prediction for dead sensors.
    filled_squares = step.about_mean_before(product.diagonal())
    prediction = predict_changes(prepared, config.components, step, shown_changes.change, filled_squares)
    variance_before = covariance_before[find_packed_diagonal(config.dimensions)] * D**2
    eta = prepared.eta  # share of the block in the weight
    prediction = _drop_if_variance_too_small(prediction, step, shown_changes, variance_before, eta)
    # 3.
    mean_change, variance = _add_changes_of_entries(prediction, step, shown_changes, variance_before, eta)
    variance = np.maximum(variance, 0.0)  # rounding or the prediction may make it negative
    after = replace(
        after,
        mean=move_mean(prepared, mean_change, config),
        known=none_if_all_known(shown_changes.known),  # shares of the weight for which each pair has been known
        total_variance=float(variance.sum()),
    )
    next_D = D
    if prepared.scale is not None:
        variance_of_data = variance / D**2
        after, next_D = scaling.rescale(after, variance_of_data)
    next_square = np.empty((config.dimensions, config.dimensions), config.dtype)
    covariance = pairs.add_changes(
        covariance_before=covariance_before,
        shown_changes=shown_changes,
        predicted_changes=prediction,
        mean_change=mean_change,
        variance=variance,
        eta=eta,
        D=D,
        next_D=next_D,
        square=next_square,  # is filled in
    )
    return replace(after, covariance=covariance), next_square


def _drop_if_variance_too_small(
    prediction: pairs.PredictedChanges,
    step: EntryStep,
    shown_changes: pairs.PairChanges,
    variance_before: F64,
    eta: float,
) -> pairs.PredictedChanges:
    """Drop the prediction for an entry if the variance of the entry would become too small.

    `shown_changes` has the changes that are computed from the values in the block. `prediction` has the change of each
    entry that is expected from the changes of other entries. The messages that have the entry replace the share E of
    its variance, so the share 1 − E of `variance_before` (d,) must be left. If less would be left, the prediction is
    wrong: it could even make the variance 0. If no message has the entry, its variance may become as small as
    predicted. `eta` is the block's share of the weight.
    """
    E = step.replaced_share
    _, variance_if_predicted = _add_changes_of_entries(prediction, step, shown_changes, variance_before, eta)
    is_in_block = E > 0
    is_too_small = is_in_block & (variance_if_predicted < (1 - E) * variance_before)
    return prediction._replace(is_predicted=prediction.is_predicted & ~is_too_small)


def _add_changes_of_entries(
    prediction: pairs.PredictedChanges,
    step: EntryStep,
    shown_changes: pairs.PairChanges,
    variance_before: F64,
    eta: float,
) -> tuple[F64, F64]:
    """Compute from shown and predicted changes how far the means move, and the variances after the block, (d,) each.

    A shown change is how far the messages that have an entry move the mean and the variance of this entry. E
    (`step.replaced_share`) is the share of the entry's mean and variance that these messages replace. η (`eta`) is the
    block's share of the weight. If the entry is predicted, its change is

        shown change + (1 − E/η) · (change that is predicted from other entries)

    There are two cases:

    - No message of the block has the entry: E is 0, so the whole predicted change is added.
    - The entry began late, and has few earlier messages: E > η, so the block moves this entry farther than the entries
      from which it is predicted. 1 − E/η is negative, and takes the predictable part of the excess back.
    """
    prediction_factor = (1 - step.replaced_share / eta) * prediction.is_predicted
    # Entry i is predicted as C_i x, so its variance changes by C_i · (change of the covariance of entry i with x). The
    # prediction has this change of the covariance in `covariances_with_x`.
    predicted_variance_change = np.vecdot(prediction.C, prediction.covariances_with_x)
    mean_change = step.mean_change + prediction_factor * prediction.mean
    # A mean square about the old mean is the variance plus the square of the mean's whole move, shown and predicted.
    variance_about_old_mean = variance_before + shown_changes.change.diagonal()
    variance_about_new_mean = variance_about_old_mean - np.square(mean_change)
    return mean_change, variance_about_new_mean + prediction_factor * predicted_variance_change


def _compute_shown_changes(
    prepared: PreparedBlock, learned: BlockResult, step: EntryStep, product: F64, covariance_before: F64
) -> pairs.PairChanges:
    """Compute how the messages of the block change the covariance of each pair of entries.

    A message shows an entry if the entry is not missing. Changes of entries that no message shows are predicted later.

    `product` (d, d) is the sum of c yyᵀ over the messages y = D (v − m) with the weights c:

        v    the message, clipped and with missing entries filled
        m    the mean, (d,), which moves within the block by `step.filled_mean_change`, in the units of y
        D    1/standard deviation of each entry before the block, or 1 if the stream is not standardised

    `covariance_before` is Σ before the block in the units of the data, as a packed lower triangle.
    """
    known_before = _get_known_shares(prepared.before, pairs_of_entries=len(covariance_before))
    if not prepared.filled:  # no message of the block lacks an entry, but earlier ones did
        return pairs.compute_changes_of_complete_block(
            product=product,
            change_of_row_mean=step.filled_mean_change,
            past=prepared.weights.past,  # share of the weight that the messages before the block have
            covariance=covariance_before,
            D=prepared.D,
            known=known_before,
        )
    weighted_shown = np.sqrt(prepared.weights.c)[:, None] * prepared.filled.shown
    shown_together = triangle.gram(weighted_shown)  # weight of the block's messages that show both entries
    return pairs.compute_changes(
        product=product,
        change_of_row_mean=step.filled_mean_change,
        # The sums in `fits` give the parts of `product` that contain a fit. All messages have fits, so these parts are
        # averaged over more messages than the part of residuals alone.
        fits=_compute_fits(prepared.filled, prepared.weights.c, learned.kept_share),
        entries=step.entries,  # weights of the messages that show each entry
        shown_together=shown_together.astype(np.float64, copy=False),
        past=prepared.weights.past,  # share of the weight that the messages before the block have
        covariance=covariance_before,
        D=prepared.D,
        known=known_before,
    )


def _get_known_shares(state: State, pairs_of_entries: int) -> F64:
    """Return the share of the weight for which each pair of entries is known, packed."""
    if state.known is not None:
        return state.known
    # The state leaves out `known` if each message has shown all pairs: all shares are 1, or 0 before any message.
    return np.full(pairs_of_entries, float(state.count > 0))


def _compute_fits(filled: Filled, c: F64, kept_share: F64) -> pairs.Fits:
    """Sum products of the filled messages with their coordinates x (K,): Σc f xᵀ and Σc (r/√q) xᵀ, (d, K) each.

    Here Σ is a sum over the messages. When missing entries were filled (missing.py), residuals were divided by √q, so
    that an entry varies as much as if all messages had it.

        filled message v = m + f + r/√q        f = Cx

        c     weight of the message, one of (n,)
        m     the mean, (d,)
        f     the fit, (d,): what the observed entries of the message predict for all entries
        r     the residual, (d,): observed entry − m − f; 0 where the entry is missing
        q     (d,): share of the messages that have the entry, but at least 0.1, so that 1/√q is not too large

    If a message is clipped, only the share `kept_share` (n,) of v − m is left, and the same share of x, f and r.
    """
    C = filled.predictor.C  # (d, K)
    weighted_x = filled.X * (c * np.square(kept_share))[:, None]  # squared: clipping scales both factors of a product
    rows = filled.V - filled.predictor.mean  # f + r/√q
    xx = weighted_x.T @ filled.X  # Σc x xᵀ
    x_rows = weighted_x.T @ rows  # Σc x (f + r/√q)ᵀ
    x_residuals = x_rows - xx @ C.T  # Σc x (r/√q)ᵀ, because Σc x fᵀ = Σc x xᵀ Cᵀ
    return pairs.Fits(C=C, fits_with_x=C @ xx, residuals_with_x=np.ascontiguousarray(x_residuals.T))
