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

    Σ is changed later, by `apply`, because that needs the next D, which follows from the variances of this step.
    """

    mean_change: F64  # δ (d,): how far each mean moves
    known: F64 | None  # N′, packed: share of the weight for which each pair is known after the block; None: all 1
    variance: F64  # (d,): the diagonal of Σ′, in the units of the block
    shown_changes: pairs.PairChanges  # what the messages of the block show
    predicted_changes: pairs.PredictedChanges
    covariance_before: F64  # Σ, packed, in the units of the data
    eta: float  # η, the block's share of the weight

    def apply(self, D: F64, next_D: F64, dtype: str) -> tuple[F64, Array]:
        """Compute Σ′, the covariances after the block: Σ, plus the shown and the predicted changes, less δδᵀ.

        The rows of a block are data times D (d,). D is one over the standard deviations before the block, or 1 if the
        stream is not standardised. `next_D` (d,) is the D of the next block. Returns Σ′ packed, in the units of the
        data, and as a square (d, d) of type `dtype`, in the units of the next block.
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
            square=square,  # is filled in
        )
        return covariance, square


def compute_pair_step(block: BlockWithGaps, covariance: F64 | None, D: F64) -> PairStep:
    """Compute how the block changes Σ: by the pairs of entries that it shows, and by predictions for the other pairs.

    The block has the share η of the weight, and replaces the share E_jj of the past variance of entry j: η if enough
    messages show the entry, 0 if no message does. Let Δ be the change of Σ that the messages show. Let P be the change
    of Σ that is predicted from the other entries, for entries whose change is predicted, and 0 for all other entries.
    With the change δ of the mean, the variances become

        Σ′_jj = Σ_jj + Δ_jj + (1 − E_jj/η) P_jj − δ_j²

    δ itself is the shown change of the mean, plus 1 − E_jj/η times the predicted change of the mean.

    `covariance` is Σ before the block, packed and in the units of the data; None before the first block. The block is
    in the units of the data times D (d,).
    """
    d = len(D)
    if covariance is None:
        covariance = np.zeros(d * (d + 1) // 2)
    product = triangle.gram(block.learned.Y).astype(np.float64, copy=False)  # YᵀY, its lower triangle
    step = compute_entry_step(block)
    shown_changes = _compute_shown_changes(block, step, product, covariance, D)
    row_squares = product.diagonal() + np.square(block.change_of_row_mean)  # Σc y², y about the mean before the block
    predicted_changes = predict_changes(block, step, shown_changes.change, row_squares)
    # The predicted share 1 − E/η is 0 for most entries: E is η, because the block shows their whole change. It is 1 for
    # the entry of a dead sensor: E is 0, so the whole change is predicted.
    is_predicted = predicted_changes.is_predicted  # False for entries whose change the messages show
    predicted_share = (1 - step.replaced_share / block.eta) * is_predicted
    mean_change = step.mean_change + predicted_share * predicted_changes.mean
    variance_before = covariance[find_packed_diagonal(d)] * D**2
    variance = variance_before + shown_changes.change.diagonal() - np.square(mean_change)
    # The diagonal of P. An entry is predicted as its row of C times the coordinates x of a message, so its variance
    # changes by this row times the change of its covariances with x.
    predicted_variance = np.vecdot(predicted_changes.C, predicted_changes.covariances_with_x)
    variance += predicted_share * predicted_variance
    return PairStep(
        mean_change=mean_change,
        known=none_if_all_known(shown_changes.known),
        variance=np.maximum(variance, 0.0),
        shown_changes=shown_changes,
        predicted_changes=predicted_changes,
        covariance_before=covariance,
        eta=block.eta,
    )


def _compute_shown_changes(
    block: BlockWithGaps, step: EntryStep, product: F64, covariance: F64, D: F64
) -> pairs.PairChanges:
    """Compute how the messages of the block change the covariance of each pair of entries.

    A message shows an entry if the entry is not NaN. If messages of the block have NaN, `block.filled` holds the block
    with values predicted by C in their place; otherwise it is None. `product` (d, d) is the lower triangle of YᵀY, in
    the units of the data times D (d,). `covariance` is Σ before the block, packed and in the units of the data.
    """
    known = block.before.known  # share of the weight for which each pair is known
    if known is None:  # 1 for all pairs or, before the first message, 0
        known = np.full(len(covariance), float(block.before.count > 0))
    past = block.weights.past  # the share of the messages before the block in the weight after the block
    if not block.filled:  # every message shows every pair
        return pairs.compute_changes_of_complete_block(
            product=product,
            change_of_row_mean=block.change_of_row_mean,
            past=past,
            covariance=covariance,
            D=D,
            known=known,
        )
    weighted_shown = np.sqrt(block.weights.c)[:, None] * block.filled.shown
    n_ij = triangle.gram(weighted_shown)  # for each pair, the weight Σc of the messages that show both entries
    return pairs.compute_changes(
        product=product,
        change_of_row_mean=block.change_of_row_mean,
        fits=_compute_fits(block, block.filled),  # moments of the part of each message that C predicts
        entries=step.entries,  # the weight of the messages that show each entry
        shown=n_ij.astype(np.float64, copy=False),
        past=past,
        covariance=covariance,
        D=D,
        known=known,
    )


def _compute_fits(block: BlockWithGaps, filled: Filled) -> pairs.Fits:
    """Compute the moments Σc f xᵀ of the fits f = Cx with x, and Σc (r/√q) xᵀ of the scaled residuals with x.

    c are the weights of the messages. The residual r of an entry is 0 where the entry is missing. Only the share q of
    the messages shows the entry, so r is divided by √q: then residuals vary as much as if all messages had the entry.
    With the mean m, the filled messages are m + f + r/√q.
    """
    C = filled.predictor.C
    # A message too far from the mean was clipped to the share `kept` of its distance. x and f + r/√q both have this
    # factor, so their products have the factor kept².
    weights = block.weights.c * np.square(block.learned.kept)
    weighted_x = filled.X * weights[:, None]
    rows = filled.V - filled.predictor.mean  # f + r/√q (n, d)
    xx = weighted_x.T @ filled.X  # Σc x xᵀ (K, K)
    x_rows = weighted_x.T @ rows  # Σc x (f + r/√q)ᵀ (K, d)
    x_residuals = x_rows - xx @ C.T  # Σc x (r/√q)ᵀ (K, d)
    return pairs.Fits(C=C, fits_with_x=C @ xx, residuals_with_x=np.ascontiguousarray(x_residuals.T))
