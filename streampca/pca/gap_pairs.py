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

    moved: F64  # δ (d,): how far each mean moves
    known: F64 | None  # N′, packed: share of the weight for which each pair is known after the block; None: all 1
    variance: F64  # (d,): the diagonal of Σ′, in the units of the block
    shown: pairs.PairChanges  # what the messages of the block show
    predicted: pairs.PredictedChange
    covariance_before: F64  # Σ, packed, in the units of v
    eta: float  # η, the block's share of the weight

    def apply(self, scale: F64, next_scale: F64, dtype: str) -> tuple[F64, Array]:
        """Compute Σ′, the covariances after the block, in two forms.

        The first is packed, in the units of the messages v. The second is a square (d, d) of type `dtype`, in the units
        of the next block. The units of a block are those of v times its D: `scale` (d,) is the D of this block, and
        `next_scale` (d,) is the D of the next block.
        """
        d = len(scale)
        square = np.empty((d, d), dtype)
        covariance = pairs.add_changes(
            before=self.covariance_before,
            shown=self.shown,
            predicted=self.predicted,
            moved=self.moved,
            variance=self.variance,
            eta=self.eta,
            scale=scale,
            next_scale=next_scale,
            square=square,
        )
        return covariance, square


def compute_pair_step(block: BlockWithGaps, covariance: F64 | None, scale: F64) -> PairStep:
    """Compute how the block changes Σ: by the pairs of entries that it shows, and by predictions for the other pairs.

    `covariance` is Σ before the block, packed and in the units of v; None before the first block. `scale` (d,) is the D
    of the block.
    """
    d = len(scale)
    if covariance is None:
        covariance = np.zeros(d * (d + 1) // 2)
    product = triangle.gram(block.learned.Y).astype(np.float64, copy=False)  # YᵀY, its lower triangle
    step = compute_entry_step(block)
    shown = _compute_shown_changes(block, step, product, covariance, scale)
    squares = product.diagonal() + np.square(block.rows_moved)
    predicted = predict_changes(block, step, shown.change, squares)
    # For most entries, the block replaces η of the moments, and the change it shows is the whole change. For the entry
    # of a dead sensor, it replaces nothing, and the whole change is predicted.
    predicted_share = (1 - step.replaced / block.eta) * predicted.is_predicted
    moved = step.moved + predicted_share * predicted.means
    variance = covariance[find_packed_diagonal(d)] * scale**2 + shown.change.diagonal() - np.square(moved)
    variance += predicted_share * np.vecdot(predicted.C, predicted.with_coordinates)
    return PairStep(
        moved=moved,
        known=none_if_all_known(shown.known),
        variance=np.maximum(variance, 0.0),
        shown=shown,
        predicted=predicted,
        covariance_before=covariance,
        eta=block.eta,
    )


def _compute_shown_changes(
    block: BlockWithGaps, step: EntryStep, product: F64, covariance: F64, scale: F64
) -> pairs.PairChanges:
    """Compute Δ, E and N′ from the pairs that the messages show; `product` (d, d) is the lower triangle of YᵀY."""
    known = block.before.known
    if known is None:  # 1 for all pairs or, before the first message, 0
        known = np.full(len(covariance), float(block.before.count > 0))
    past = block.weights.past
    if not block.filled:
        return pairs.compute_changes_of_complete_block(
            product=product, moved=block.rows_moved, past=past, covariance=covariance, scale=scale, known=known
        )
    weighted_shown = np.sqrt(block.weights.c)[:, None] * block.filled.shown
    return pairs.compute_changes(
        product=product,
        moved=block.rows_moved,
        fits=_compute_fits(block, block.filled),
        entries=step.entries,
        shown=triangle.gram(weighted_shown).astype(np.float64, copy=False),
        past=past,
        covariance=covariance,
        scale=scale,
        known=known,
    )


def _compute_fits(block: BlockWithGaps, filled: Filled) -> pairs.Fits:
    """Compute the second moments of the fits f = Cx and the residuals r of the block's rows."""
    C = filled.predictor.C
    weights = block.weights.c * np.square(block.learned.kept)
    weighted_x = filled.X * weights[:, None]
    xx = weighted_x.T @ filled.X  # Σc x xᵀ (K, K)
    x_rows = weighted_x.T @ (filled.V - filled.predictor.mean)  # Σc x (f + r)ᵀ (K, d)
    x_residuals = x_rows - xx @ C.T  # Σc x rᵀ (K, d)
    return pairs.Fits(C=C, squares=C @ xx, residuals=np.ascontiguousarray(x_residuals.T))
