"""Mean and Σ after a block with gaps, or after one that shows entries which were not always known.

Σ is kept as it is read, and beside it N, the share of the weight for which two entries have been known together. In a
block of share η = 1 − c₀ the messages have shares c, fits f = Cx and residuals r = (y − f)_O about the mean before it;
n_ij is the share of those that show entries i and j.

1. Control variate. Each part of a product is averaged over the messages that show it:

       B_ij = Σc f_i f_j / η + Σc f_i r_j / n_jj + Σc r_i f_j / n_ii + Σc r_i r_j / n_ij
       μ_j = Σc f_j / η + Σc r_j / n_jj

2. Weights. g_ij = min(η, 10 n_ij), N′ = c₀N + g and E = g/N′. A pair that is known and not shown: N′ = c₀N + η, E = 0.
3. Step. Δ = E∘(B − Σ), δ = diag(E)∘μ.
4. Regression. L are the entries with E_jj ≤ 1.5 η, and K = C (C_LᵀC_L + diag(ridge))⁻¹ C_Lᵀ predicts all from them.
   What they say of the others is added to Δ, (1 − E/η)∘KΔ_LL Kᵀ outside L × L, and (1 − diag(E)/η)∘Kδ_L to δ: so a dead
   sensor follows the others, and a late one is referred to the whole stream. Both are cut to a mean square of 30 along
   the columns of C, like messages of bounded influence.
5. Σ′ = Σ + Δ − δδᵀ and m′ = m + δ. Correlations are cut to ±1.
6. Pairs that no message shows, both of whose entries are shown, move as filled messages would move them, by the share
   η / max(η, min(c₀N_ii, c₀N_jj) + η). A pair of which one entry begins is set by step 1.

docs/mathematics.md, section 11. The loops over all pairs are in blocked/pairs.py.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import blas

from streampca.pca import missing
from streampca.pca.arrays import F64, Array, packed_diagonal, power_of_two
from streampca.pca.blocked import block, centring, pairs, triangle
from streampca.pca.blocked.centring import Weights
from streampca.pca.state import State

_ORDINARY = 1.5  # steps of a block: entries that take no larger ones are in L
_ALL = 1.0 - 1e-9  # share of the weight that counts as all of it


class BlockWithGaps(NamedTuple):
    """A block that was learned, or one after it, where entries are missing or have not always been known."""

    before: State  # the state before it, with the mean in the units in which it was learned
    filled: missing.Filled | None  # None: it is complete
    by: missing.Predictor  # of entries from others
    learned: block.BlockResult
    weights: Weights

    @property
    def new(self) -> float:
        """η, the block's share of the weight."""
        return 1.0 - self.weights.past

    @property
    def rows_moved(self) -> F64:
        """How far the mean of the rows has moved by the block, (d,)."""
        return self.learned.mean - self.by.mean


class EntryStep(NamedTuple):
    """What a block changes in the means of the entries, (d,) each."""

    entries: pairs.Entries
    share: F64  # diag(E)
    known: F64 | None  # diag(N′); None: 1
    moved: F64  # δ


def entry_step(of: BlockWithGaps) -> EntryStep:
    """Steps 1 to 3 for the entries."""
    before, new, d = of.before, of.new, len(of.before.mean)
    shown, root, fits = np.full(d, new), np.ones(d), np.zeros(d)
    if of.filled:
        shown, root = of.weights.c @ of.filled.shown, of.filled.root
        if of.weights.a.any():  # else there is no centring, and the mean is 0
            fits = of.by.C @ ((of.weights.c * of.learned.kept) @ of.filled.X)
    entries = pairs.Entries(shown, of.weights.past * before.known_entries, root)
    counts = np.minimum(new, shown / missing.FEW)
    known = entries.before + np.where((shown <= 0) & (entries.before > 0), new, counts)
    share = counts / np.where(known > 0, known, 1.0)
    residuals = (of.rows_moved - fits) * root / np.where(shown > 0, shown, np.inf)
    moved = share * (fits / new + residuals)
    return EntryStep(entries, share, _unless_all(known), moved)


def next_variances(of: BlockWithGaps, step: EntryStep, squares: F64, before: F64, scale: F64) -> F64:
    """The variances (d,) of the entries of v, where Σ is not kept; `squares` (d,) are those of the rows √c·y."""
    estimate = (squares + np.square(of.rows_moved)) / of.new
    change = step.share * (estimate - before * scale**2) - np.square(step.moved)
    return np.maximum(before + change / scale**2, 0.0)


def _unless_all(known: F64) -> F64 | None:
    """N, or None if it is 1."""
    return None if known.min(initial=1.0) > _ALL else known


class PairStep(NamedTuple):
    """What a block changes in Σ, before it is put in place, since D may follow the variances."""

    moved: F64  # δ (d,)
    known: F64 | None  # N′, packed
    variance: F64  # (d,): the diagonal of Σ′, in the units of the block
    change: F64  # Δ (d, d): its lower triangle
    share: F64  # E, packed
    said: pairs.Said
    before: F64  # Σ, packed, in the units of v
    new: float  # η

    def applied(self, scale: F64, square: Array, after: F64) -> F64:
        """Σ′, packed; `scale` (d,) is D of the block, `after` the next, in whose units Σ′ is filled in `square`."""
        return pairs.next_covariance(
            self.before, self.change, self.share, self.said, self.moved, self.variance, self.new, scale, square, after
        )


def pair_step(of: BlockWithGaps, covariance: F64, product: Array, scale: F64) -> PairStep:
    """Steps 1 to 4 for all pairs.

    `covariance` is Σ before the block, packed and in the units of v, D of the block is `scale` (d,), and `product`
    (d, d) the lower triangle of YᵀY of its rows.
    """
    d, new, moved = len(of.before.mean), of.new, of.rows_moved
    step = entry_step(of)
    shown = np.full((d, d), new)
    if of.filled:
        shown = triangle.of_rows(np.sqrt(of.weights.c)[:, None] * of.filled.shown)
    known = of.before.known
    if known is None:
        known = np.full(len(covariance), float(of.before.count > 0))
    change = pairs.estimate(product, moved, _fits(of), step.entries, shown, new)
    share, after = pairs.move(change, covariance, scale, known, step.entries, shown, of.weights.past, missing.FEW)
    squares = np.asarray(product.diagonal() + np.square(moved), np.float64)
    said, of_mean = _said(of, step, change, squares)
    added = (1 - step.share / new) * said.follows
    delta = step.moved + added * of_mean
    variance = covariance[packed_diagonal(d)] * scale**2 + change.diagonal() - np.square(delta)
    variance += added * np.vecdot(said.C, said.change)
    return PairStep(delta, _unless_all(after), np.maximum(variance, 0.0), change, share, said, covariance, new)


def _fits(of: BlockWithGaps) -> pairs.Fits:
    """The moments of the fits and residuals of the block's rows."""
    C, filled = of.by.C, of.filled
    if filled is None:
        return pairs.Fits(C, np.zeros_like(C), np.zeros_like(C))
    weighted = filled.X * (of.weights.c * np.square(of.learned.kept))[:, None]
    H = weighted.T @ filled.X
    rows = weighted.T @ (filled.V - filled.by.mean)
    return pairs.Fits(C, C @ H, np.ascontiguousarray((rows - H @ C.T).T))


def _said(of: BlockWithGaps, step: EntryStep, change: F64, squares: F64) -> tuple[pairs.Said, F64]:
    """Step 4: what the entries L say of the others, and of their means (d,).

    `squares` (d,) are the second moments of the rows: a message of bounded influence adds no more to other entries.
    """
    ordinary = (step.share > 0) & (step.share <= _ORDINARY * of.new)
    if not of.before.count or ordinary.all() or not ordinary.any():
        none = np.zeros((len(ordinary), 1))
        return pairs.Said(none, none, np.zeros(len(ordinary))), np.zeros(len(ordinary))
    known = step.entries.before > 0
    unit = power_of_two(float(np.abs(of.by.C).max()))  # products of three or four entries of C would overflow
    C, ridge = of.by.C * known[:, None] / unit, of.by.ridge / unit / unit
    C_L = C * ordinary[:, None]
    inverse = np.linalg.inv(C_L.T @ C_L + np.diag(ridge))
    of_L = ordinary[:, None] * blas.dsymm(1 / unit, change.T, C_L) @ inverse
    change_of_x = inverse @ (C_L.T @ of_L) / unit  # of the second moment of the coordinates
    mean_of_x = inverse @ (C_L.T @ step.moved) / unit
    follows = known & ~ordinary
    said = np.where(ordinary[:, None], of_L, C @ change_of_x * unit) * known[:, None]
    C_in_units = C * unit
    most, added = squares[~ordinary].sum(), np.vecdot(C_in_units, said)[follows].clip(0).sum()
    if added > most and (of.learned.kept < 1).any():
        said *= most / added
    # If L has hardly varied so far, its messages are far away by C, and would send off the entries that follow.
    limit = centring.ORDINARY * C.shape[1]
    said *= min(1.0, limit / max(float(change_of_x.trace()), limit))
    of_mean = C_in_units @ mean_of_x * min(1.0, np.sqrt(limit / max(float(mean_of_x @ mean_of_x), limit)))
    return pairs.Said(C_in_units, np.ascontiguousarray(said), follows.astype(np.float64)), of_mean
