"""Mean and Σ after a block with gaps, or after a block that shows entries which were not always known.

Beside Σ a state keeps N, the share of the weight for which two entries have been known together. Each message of a
block has a share c of the weight, the block has η = 1 − c₀, and the past keeps c₀. About the mean before the block, a
message has the fits f = Cx, which are predicted from its observed entries O, and the residuals r = (y − f)_O. n_ij is
the weight of the messages that show both entries i and j.

1. Control variate. Each part of a product is averaged over the messages that show it:

       B_ij = Σc f_i f_j / η + Σc f_i r_j / n_jj + Σc r_i f_j / n_ii + Σc r_i r_j / n_ij
       μ_j = Σc f_j / η + Σc r_j / n_jj

2. Weights. g_ij = min(η, 10 n_ij), N′ = c₀N + g and E = g/N′. For a pair that is known and that no message of the block
   shows, N′ = c₀N + η and E = 0.
3. Step. Δ = E∘(B − Σ), δ = diag(E)∘μ.
4. Regression. L are the entries with E_jj ≤ 1.5 η. From L, K = C (C_LᵀC_L + diag(ridge))⁻¹ C_Lᵀ predicts all entries.
   The predicted changes are added: (1 − E/η)∘KΔ_LL Kᵀ to Δ outside of L × L, and (1 − diag(E)/η)∘Kδ_L to δ outside of
   L. So an entry of a dead sensor follows the entries in L, and an entry that begins late gets moments of the whole
   stream. Both changes are limited to a mean square of 30 along the columns of C, as the influence of a message is
   limited.
5. Σ′ = Σ + Δ − δδᵀ and m′ = m + δ. Correlations are cut to ±1.
6. If no message shows both entries of a pair, but some messages show each, Σ_ij moves as filled messages would move it,
   by the share η / max(η, min(c₀N_ii, c₀N_jj) + η). If one of the entries begins in the block, step 1 sets Σ_ij.

docs/mathematics.md, section 11. The loops over all pairs are in blocked/pairs.py.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import blas

from streampca.pca import missing
from streampca.pca.arrays import F64, Array, packed_diagonal, power_of_two
from streampca.pca.blocked import centring, pairs, triangle
from streampca.pca.blocked.block import BlockResult
from streampca.pca.blocked.centring import Weights
from streampca.pca.state import State

_ORDINARY = 1.5  # times η: an entry predicts the other entries if the block replaces no more than this of its moments
_ALL = 1.0 - 1e-9  # share of the weight that counts as all of it, despite rounding


class BlockWithGaps(NamedTuple):
    """A learned block of a stream in which entries were missing, in this block or before."""

    before: State  # the state before the block, with the mean in the units in which the block was learned
    filled: missing.Filled | None  # None: all messages of the block are complete
    predictor: missing.Predictor  # predicts missing entries from the state before the block
    learned: BlockResult
    weights: Weights

    @property
    def new(self) -> float:
        """η, the block's share of the weight."""
        return 1.0 - self.weights.past

    @property
    def rows_moved(self) -> F64:
        """The change of the mean of the rows that Algorithm 1 learns, (d,)."""
        return self.learned.mean - self.predictor.mean


class EntryStep(NamedTuple):
    """How a block changes the means of the entries, (d,) each."""

    entries: pairs.Entries
    share: F64  # diag(E): the share of the moments of each entry that the block replaces
    known: F64 | None  # diag(N′): share of the weight for which each entry is known after the block; None: all 1
    moved: F64  # δ: how far each mean moves


def compute_entry_step(block: BlockWithGaps) -> EntryStep:
    """Compute how far the block moves the mean of each entry, and the weight by which the entry is known after it.

    A mean moves by the share E_jj towards μ_j, the mean of the block. μ_j is the mean of the fits over all messages,
    plus the mean of the residuals over the messages that show the entry.
    """
    before = block.before
    d = len(before.mean)
    new = block.new  # η
    shown = np.full(d, new)  # n_jj: the weight of the block's messages that show each entry
    root = np.ones(d)  # √q: the learned rows are the fits and r/√q
    fits = np.zeros(d)  # Σc f
    if block.filled:
        shown = block.weights.c @ block.filled.shown
        root = block.filled.root
        if block.weights.a.any():  # otherwise messages are not centred, and the mean stays 0
            fits = block.predictor.C @ ((block.weights.c * block.learned.kept) @ block.filled.X)
    entries = pairs.Entries(shown=shown, before=block.weights.past * before.known_entries, root=root)
    # For an entry that less than a tenth of the block shows, the block counts less.
    counted = np.minimum(new, shown / missing.FEW)
    known_but_not_shown = (shown <= 0) & (entries.before > 0)  # E of such an entry is 0: its past stays
    known = entries.before + np.where(known_but_not_shown, new, counted)
    share = counted / np.where(known > 0, known, 1.0)
    # The mean of the rows has moved by Σc (f + r/√q). Less the fits, and times √q, this is Σc r.
    residuals = (block.rows_moved - fits) * root / np.where(shown > 0, shown, np.inf)
    moved = share * (fits / new + residuals)
    return EntryStep(entries=entries, share=share, known=_none_if_all_known(known), moved=moved)


def compute_next_variances(
    block: BlockWithGaps, step: EntryStep, squares: F64, variances_before: F64, scale: F64
) -> F64:
    """Compute the variances (d,) of the entries of v after the block, if Σ is not kept.

    `squares` (d,) are the sums of squares of the rows √c·y, in the units of the block: v times `scale`, its D (d,).
    """
    block_moments = (squares + np.square(block.rows_moved)) / block.new  # about the mean before the block
    change = step.share * (block_moments - variances_before * scale**2) - np.square(step.moved)
    return np.maximum(variances_before + change / scale**2, 0.0)


def _none_if_all_known(known: F64) -> F64 | None:
    """Return N as a state keeps it: None if all of its shares are 1."""
    return None if known.min(initial=1.0) > _ALL else known


class PairStep(NamedTuple):
    """How a block changes Σ.

    Σ is changed later, by `apply`, because that needs the next D, which follows from the variances of this step.
    """

    moved: F64  # δ (d,): how far each mean moves
    known: F64 | None  # N′, packed: share of the weight for which each pair is known after the block; None: all 1
    variance: F64  # (d,): the diagonal of Σ′, in the units of the block
    change: F64  # Δ (d, d): its lower triangle
    share: F64  # E, packed: the share of each pair's moments that the block replaces
    predicted: pairs.PredictedChange
    covariance_before: F64  # Σ, packed, in the units of v
    new: float  # η, the block's share of the weight

    def apply(self, scale: F64, square: Array, next_scale: F64) -> F64:
        """Compute Σ′, packed; fill in `square` (d, d), which is Σ′ in the units of the next block.

        The block has D = `scale` (d,), the next block D = `next_scale` (d,).
        """
        return pairs.compute_next_covariance(
            before=self.covariance_before,
            change=self.change,
            share=self.share,
            predicted=self.predicted,
            moved=self.moved,
            variance=self.variance,
            new=self.new,
            scale=scale,
            square=square,
            next_scale=next_scale,
        )


def compute_pair_step(block: BlockWithGaps, covariance: F64, product: Array, scale: F64) -> PairStep:
    """Compute how the block changes Σ: by the pairs of entries that it shows, and by predictions for the other pairs.

    `covariance` is Σ before the block, packed and in the units of v; the block has D = `scale` (d,). `product` (d, d)
    is the lower triangle of YᵀY of its rows; in float64 it is overwritten.
    """
    d = len(block.before.mean)
    new = block.new
    rows_moved = block.rows_moved
    step = compute_entry_step(block)
    known = block.before.known
    if known is None:  # all pairs have always been known; before the first message, none is known
        known = np.full(len(covariance), float(block.before.count > 0))
    # The pairs that the block shows.
    change = np.asarray(product, np.float64)  # becomes Δ
    squares = change.diagonal() + np.square(rows_moved)
    past = block.weights.past
    if block.filled:
        shown = triangle.gram(np.sqrt(block.weights.c)[:, None] * block.filled.shown).astype(np.float64, copy=False)
        share, known_after = pairs.step_pairs(
            rows=change,
            moved=rows_moved,
            fits=_compute_fits(block, block.filled),
            entries=step.entries,
            shown=shown,
            past=past,
            few=missing.FEW,
            covariance=covariance,
            scale=scale,
            known=known,
        )
    else:
        share, known_after = pairs.step_complete_pairs(
            rows=change, moved=rows_moved, past=past, covariance=covariance, scale=scale, known=known
        )
    # The other pairs, by prediction.
    predicted, predicted_means = _predict_change(block, step, change, squares)
    # If the share of an entry is η, its whole change is known from the block. If it is 0, as for a dead sensor, the
    # whole change is the predicted one.
    predicted_share = (1 - step.share / new) * predicted.is_predicted
    moved = step.moved + predicted_share * predicted_means
    variance = covariance[packed_diagonal(d)] * scale**2 + change.diagonal() - np.square(moved)
    variance += predicted_share * np.vecdot(predicted.C, predicted.with_coordinates)
    return PairStep(
        moved=moved,
        known=_none_if_all_known(known_after),
        variance=np.maximum(variance, 0.0),
        change=change,
        share=share,
        predicted=predicted,
        covariance_before=covariance,
        new=new,
    )


def _compute_fits(block: BlockWithGaps, filled: missing.Filled) -> pairs.Fits:
    """Compute the second moments of the fits and residuals of the block's rows."""
    C = filled.predictor.C
    weighted = filled.X * (block.weights.c * np.square(block.learned.kept))[:, None]
    H = weighted.T @ filled.X  # Σc x xᵀ (K, K)
    rows = weighted.T @ (filled.V - filled.predictor.mean)  # Σc x (f + r)ᵀ (K, d)
    residuals = np.ascontiguousarray((rows - H @ C.T).T)
    return pairs.Fits(C=C, squares=C @ H, residuals=residuals)


def _predict_change(
    block: BlockWithGaps, step: EntryStep, change: F64, squares: F64
) -> tuple[pairs.PredictedChange, F64]:
    """Predict, from the changes of ordinary entries, the changes of the covariances and means (d,) of known entries.

    L are the ordinary entries: the block replaces about its own share η of their moments. It replaces more of an entry
    that began late, and nothing of a dead sensor. Coordinates x = (C_LᵀC_L + diag(ridge))⁻¹ C_Lᵀ y_L are predicted from
    L, and all entries as Cx. `change` (d, d) is the lower triangle of Δ. `squares` (d,) are the second moments of the
    rows. If messages were clipped, the predicted variances of dead sensors sum to no more than these: otherwise a
    prediction could restore an outlier.
    """
    ordinary = (step.share > 0) & (step.share <= _ORDINARY * block.new)
    if not block.before.count or ordinary.all() or not ordinary.any():  # nothing to predict, or nothing to predict from
        nothing = np.zeros(len(ordinary))
        no_change = pairs.PredictedChange(C=nothing[:, None], with_coordinates=nothing[:, None], is_predicted=nothing)
        return no_change, nothing
    known = step.entries.before > 0
    unit = power_of_two(float(np.abs(block.predictor.C).max()))  # products of several entries of C must not overflow
    C = block.predictor.C * known[:, None] / unit
    ridge = block.predictor.ridge / unit / unit
    C_L = C * ordinary[:, None]
    inverse = np.linalg.inv(C_L.T @ C_L + np.diag(ridge))
    # Changes of the covariances of each entry with x, (d, K): for entries in L by Δ, for the other entries by Cx.
    of_ordinary = ordinary[:, None] * blas.dsymm(1 / unit, change.T, C_L) @ inverse
    change_of_x = inverse @ (C_L.T @ of_ordinary) / unit  # change of the second moments of x, (K, K)
    mean_of_x = inverse @ (C_L.T @ step.moved) / unit  # change of the mean of x, (K,)
    with_coordinates = np.where(ordinary[:, None], of_ordinary, C @ change_of_x * unit) * known[:, None]
    C = C * unit
    is_predicted = known & ~ordinary
    if (block.learned.kept < 1).any():
        is_dead = is_predicted & (step.share <= 0)
        largest = squares[is_dead].sum()
        added = np.vecdot(C, with_coordinates)[is_dead].clip(0).sum()
        if added > largest:
            with_coordinates *= largest / added
    # If L has hardly varied so far, a small change of L gives large coordinates, and the prediction would be far off.
    limit = centring.ORDINARY * C.shape[1]  # times the mean square of x, which is K on average
    with_coordinates *= min(1.0, limit / max(float(change_of_x.trace()), limit))
    means = C @ mean_of_x * min(1.0, np.sqrt(limit / max(float(mean_of_x @ mean_of_x), limit)))
    predicted = pairs.PredictedChange(
        C=C, with_coordinates=np.ascontiguousarray(with_coordinates), is_predicted=is_predicted.astype(np.float64)
    )
    return predicted, means
