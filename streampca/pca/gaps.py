"""Mean and Σ after a block with gaps, or after one that shows entries which were not always known.

Σ is kept as it is read, and beside it N, the share of the weight for which two entries have been known together. The
messages of a block have the shares c of the weight, η = 1 − c₀ together; the past keeps the share c₀. About the mean
before the block, a message has the fits f = Cx, which its observed entries predict, and the residuals r = (y − f)_O of
these entries. n_ij is the share of the messages that show entries i and j.

1. Control variate. Each part of a product is averaged over the messages that show it:

       B_ij = Σc f_i f_j / η + Σc f_i r_j / n_jj + Σc r_i f_j / n_ii + Σc r_i r_j / n_ij
       μ_j = Σc f_j / η + Σc r_j / n_jj

2. Weights. g_ij = min(η, 10 n_ij), N′ = c₀N + g and E = g/N′. A pair that is known and not shown: N′ = c₀N + η, E = 0.
3. Step. Δ = E∘(B − Σ), δ = diag(E)∘μ.
4. Regression. L are the entries with E_jj ≤ 1.5 η, and K = C (C_LᵀC_L + diag(ridge))⁻¹ C_Lᵀ predicts all from them.
   The changes that it predicts are added: (1 − E/η)∘KΔ_LL Kᵀ to Δ outside L × L, and (1 − diag(E)/η)∘Kδ_L to δ outside
   L. So a dead sensor follows the sensors in L, and a late one is referred to the whole stream. Both changes are cut to
   a mean square of 30 along the columns of C, like messages of bounded influence.
5. Σ′ = Σ + Δ − δδᵀ and m′ = m + δ. Correlations are cut to ±1.
6. Pairs that no message shows, both of whose entries are shown, move as filled messages would move them, by the share
   η / max(η, min(c₀N_ii, c₀N_jj) + η). If one of the two entries begins in the block, step 1 sets the pair.

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

_ORDINARY = 1.5  # times η: entries of which a block replaces no larger share predict the other entries
_ALL = 1.0 - 1e-9  # share of the weight that counts as all of it


class BlockWithGaps(NamedTuple):
    """A block that was learned, in which, or before which, entries were missing."""

    before: State  # the state before the block, with the mean in the units in which the block was learned
    filled: missing.Filled | None  # None: all its messages are complete
    predictor: missing.Predictor  # of missing entries, by the state before the block
    learned: BlockResult
    weights: Weights

    @property
    def new(self) -> float:
        """η, the block's share of the weight."""
        return 1.0 - self.weights.past

    @property
    def rows_moved(self) -> F64:
        """How far the block has moved the mean of the rows that Algorithm 1 learns, (d,)."""
        return self.learned.mean - self.predictor.mean


class EntryStep(NamedTuple):
    """How a block changes the means of the entries, (d,) each."""

    entries: pairs.Entries
    share: F64  # diag(E): the share of the moments of each entry that the block replaces
    known: F64 | None  # diag(N′): share of the weight for which each entry is known after the block; None: all 1
    moved: F64  # δ: how far each mean moves


def entry_step(block: BlockWithGaps) -> EntryStep:
    """How far the block moves the mean of each entry, and by which weight the entry is known after it.

    A mean moves by the share E_jj towards μ_j, the mean of the block: of the fits over all messages, and of the
    residuals over those that show the entry.
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
        if block.weights.a.any():  # else there is no centring, and the mean stays 0
            fits = block.predictor.C @ ((block.weights.c * block.learned.kept) @ block.filled.X)
    entries = pairs.Entries(shown=shown, before=block.weights.past * before.known_entries, root=root)
    # A block counts less for an entry that less than a tenth of it shows.
    counted = np.minimum(new, shown / missing.FEW)
    known_but_not_shown = (shown <= 0) & (entries.before > 0)  # the past of such an entry stays as it is: E is 0
    known = entries.before + np.where(known_but_not_shown, new, counted)
    share = counted / np.where(known > 0, known, 1.0)
    # The rows' mean has moved by Σc (f + r/√q): without the fits, times √q, that is Σc r.
    residuals = (block.rows_moved - fits) * root / np.where(shown > 0, shown, np.inf)
    moved = share * (fits / new + residuals)
    return EntryStep(entries=entries, share=share, known=_none_if_all_known(known), moved=moved)


def next_variances(block: BlockWithGaps, step: EntryStep, squares: F64, variances_before: F64, scale: F64) -> F64:
    """The variances (d,) of the entries of v after the block, where Σ is not kept.

    `squares` (d,) are the sums of squares of the rows √c·y, in the units of the block: v times `scale`, its D (d,).
    """
    of_block = (squares + np.square(block.rows_moved)) / block.new  # about the mean before it
    change = step.share * (of_block - variances_before * scale**2) - np.square(step.moved)
    return np.maximum(variances_before + change / scale**2, 0.0)


def _none_if_all_known(known: F64) -> F64 | None:
    """N as a state keeps it: None if all of its shares are 1."""
    return None if known.min(initial=1.0) > _ALL else known


class PairStep(NamedTuple):
    """How a block changes Σ. It is `applied` later, since the next D follows from the variances in it."""

    moved: F64  # δ (d,): how far each mean moves
    known: F64 | None  # N′, packed: share of the weight for which each pair is known after the block; None: all 1
    variance: F64  # (d,): the diagonal of Σ′, in the units of the block
    change: F64  # Δ (d, d): its lower triangle
    share: F64  # E, packed: the share of each pair's moments that the block replaces
    predicted: pairs.PredictedChange
    covariance_before: F64  # Σ, packed, in the units of v
    new: float  # η, the block's share of the weight

    def applied(self, scale: F64, square: Array, next_scale: F64) -> F64:
        """Σ′, packed; also fills in `square` (d, d), Σ′ in the units of the next block.

        The block has D = `scale` (d,), the next one `next_scale`.
        """
        return pairs.next_covariance(
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


def pair_step(block: BlockWithGaps, covariance: F64, product: Array, scale: F64) -> PairStep:
    """How the block changes Σ: what it shows of each pair of entries, and what that predicts of the other pairs.

    `covariance` is Σ before the block, packed and in the units of v; the block has D = `scale` (d,). `product` (d, d)
    is the lower triangle of YᵀY of its rows; in float64 it is overwritten.
    """
    d = len(block.before.mean)
    new, rows_moved = block.new, block.rows_moved
    step = entry_step(block)
    known = block.before.known
    if known is None:  # all pairs are known, or before the first message none
        known = np.full(len(covariance), float(block.before.count > 0))
    change = np.asarray(product, np.float64)
    squares = change.diagonal() + np.square(rows_moved)
    past = block.weights.past
    if block.filled:
        shown = triangle.of_rows(np.sqrt(block.weights.c)[:, None] * block.filled.shown).astype(np.float64, copy=False)
        share, known_after = pairs.step(
            rows=change,
            moved=rows_moved,
            fits=_fits(block, block.filled),
            entries=step.entries,
            shown=shown,
            past=past,
            few=missing.FEW,
            covariance=covariance,
            scale=scale,
            known=known,
        )
    else:
        share, known_after = pairs.step_of_complete(
            rows=change, moved=rows_moved, past=past, covariance=covariance, scale=scale, known=known
        )
    predicted, predicted_means = _predicted_change(block, step, change, squares)
    # Of an entry with the share η, the block tells all itself; a dead sensor, with the share 0, follows the prediction.
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


def _fits(block: BlockWithGaps, filled: missing.Filled) -> pairs.Fits:
    """The second moments of the fits and residuals of the block's rows."""
    C = filled.predictor.C
    weighted = filled.X * (block.weights.c * np.square(block.learned.kept))[:, None]
    H = weighted.T @ filled.X  # Σc x xᵀ (K, K)
    rows = weighted.T @ (filled.V - filled.predictor.mean)  # Σc x (f + r)ᵀ (K, d)
    residuals = np.ascontiguousarray((rows - H @ C.T).T)
    return pairs.Fits(C=C, squares=C @ H, residuals=residuals)


def _predicted_change(
    block: BlockWithGaps, step: EntryStep, change: F64, squares: F64
) -> tuple[pairs.PredictedChange, F64]:
    """What the changes of ordinary entries predict of the other known entries: of their covariances and means (d,).

    L are the ordinary entries, those of which the block replaces about its own share η: not more, as of a late sensor,
    and not nothing, as of a dead one. The axes predict coordinates x = (C_LᵀC_L + diag(ridge))⁻¹ C_Lᵀ y_L from them,
    and Cx all entries. `change` (d, d) is the lower triangle of Δ. `squares` (d,) are the second moments of the rows:
    if messages were clipped, the predicted variances add up to no more, so that an outlier does not come back by this
    way.
    """
    ordinary = (step.share > 0) & (step.share <= _ORDINARY * block.new)
    if not block.before.count or ordinary.all() or not ordinary.any():  # nothing is predicted, or by nothing
        nothing = np.zeros(len(ordinary))
        return pairs.PredictedChange(nothing[:, None], nothing[:, None], nothing), nothing
    known = step.entries.before > 0
    unit = power_of_two(float(np.abs(block.predictor.C).max()))  # products of three or four entries of C would overflow
    C = block.predictor.C * known[:, None] / unit
    ridge = block.predictor.ridge / unit / unit
    C_L = C * ordinary[:, None]
    inverse = np.linalg.inv(C_L.T @ C_L + np.diag(ridge))
    # Changes of the covariances of each entry with x, (d, K): of one in L by Δ, of another one as of Cx.
    of_ordinary = ordinary[:, None] * blas.dsymm(1 / unit, change.T, C_L) @ inverse
    change_of_x = inverse @ (C_L.T @ of_ordinary) / unit  # of the second moments of x, (K, K)
    mean_of_x = inverse @ (C_L.T @ step.moved) / unit  # by which that of x moves, (K,)
    with_coordinates = np.where(ordinary[:, None], of_ordinary, C @ change_of_x * unit) * known[:, None]
    C = C * unit
    is_predicted = known & ~ordinary
    if (block.learned.kept < 1).any():
        is_dead = is_predicted & (step.share <= 0)
        largest = squares[is_dead].sum()
        added = np.vecdot(C, with_coordinates)[is_dead].clip(0).sum()
        if added > largest:
            with_coordinates *= largest / added
    # If L has hardly varied so far, its coordinates may be so large that the predicted entries would be sent far away.
    limit = centring.ORDINARY * C.shape[1]  # of the mean square of x, which is K on average
    with_coordinates *= min(1.0, limit / max(float(change_of_x.trace()), limit))
    means = C @ mean_of_x * min(1.0, np.sqrt(limit / max(float(mean_of_x @ mean_of_x), limit)))
    predicted = pairs.PredictedChange(
        C=C, with_coordinates=np.ascontiguousarray(with_coordinates), is_predicted=is_predicted.astype(np.float64)
    )
    return predicted, means
