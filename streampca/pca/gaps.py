"""Computes mean and Σ after a block with missing entries, or with entries that were not always known.

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
   If less than the share 1 − E_jj of the variance of a late entry j would be left, the entry is not predicted.
5. Σ′ = Σ + Δ − δδᵀ and m′ = m + δ. Correlations are cut to ±1.
6. If no message shows both entries of a pair, but some messages show each, Σ_ij moves as filled messages would move it,
   by the share η / max(η, min(c₀N_ii, c₀N_jj) + η). If one of the entries begins in the block, step 1 sets Σ_ij.

This module has what is done for each entry, gap_pairs.py what is done for pairs, with the loops in blocked/pairs.py,
and gap_prediction.py step 4. docs/mathematics.md, section 11.
"""

from typing import NamedTuple

import numpy as np

from streampca.pca import missing
from streampca.pca.arrays import F64
from streampca.pca.blocked import pairs
from streampca.pca.blocked.block import BlockResult
from streampca.pca.blocked.centring import Weights
from streampca.pca.state import State

_ALL_KNOWN = 1.0 - 1e-9  # a share of the weight from here on counts as 1, despite rounding


class BlockWithGaps(NamedTuple):
    """A learned block of a stream in which entries were missing, in this block or before."""

    before: State  # the state before the block, with the mean in the units in which the block was learned
    filled: missing.Filled | None  # None: all messages of the block are complete
    predictor: missing.Predictor  # predicts missing entries from the state before the block
    learned: BlockResult
    weights: Weights

    @property
    def eta(self) -> float:
        """η, the block's share of the weight."""
        return 1.0 - self.weights.past

    @property
    def change_of_row_mean(self) -> F64:
        """The change of the mean of the rows that Algorithm 1 learns, (d,)."""
        return self.learned.mean - self.predictor.mean


class EntryStep(NamedTuple):
    """How a block changes the means of the entries, (d,) each."""

    entries: pairs.Entries
    replaced_share: F64  # diag(E): the share of the moments of each entry that the block replaces
    known: F64 | None  # diag(N′): share of the weight for which each entry is known after the block; None: all 1
    mean_change: F64  # δ: how far each mean moves


def compute_entry_step(block: BlockWithGaps) -> EntryStep:
    """Compute the change of the mean of each entry, and the weight for which it is known."""
    d = len(block.before.mean)
    if block.filled:
        shown = block.weights.c @ block.filled.shown
        root_q = block.filled.root_q
    else:  # all messages are complete
        shown = np.full(d, block.eta)
        root_q = np.ones(d)
    entries = pairs.Entries(shown=shown, known_before=block.weights.past * block.before.known_entries, root_q=root_q)
    known, replaced_share = _compute_known_and_replaced(entries, block.eta)
    return EntryStep(
        entries=entries,
        replaced_share=replaced_share,
        known=none_if_all_known(known),
        mean_change=replaced_share * _compute_block_mean(block, entries),
    )


def _compute_known_and_replaced(entries: pairs.Entries, eta: float) -> tuple[F64, F64]:
    """Compute for each entry the weight for which it is known, and the share of its moments that the block replaces."""
    counted = np.minimum(eta, entries.shown / pairs.RARELY_SHOWN)  # less if few messages show the entry
    stays_known = (entries.shown <= 0) & (entries.known_before > 0)
    known = entries.known_before + np.where(stays_known, eta, counted)
    replaced_share = counted / np.where(known > 0, known, 1.0)
    return known, replaced_share


def _compute_block_mean(block: BlockWithGaps, entries: pairs.Entries) -> F64:
    """Compute the block's mean of each entry, (d,), about the mean before the block.

    Fits f are averaged over all messages, and residuals r over those that show the entry.
    """
    sum_of_fits = _sum_fits(block)  # Σc f
    # `change_of_row_mean` is Σc f + Σc r/√q.
    sum_of_residuals = (block.change_of_row_mean - sum_of_fits) * entries.root_q  # Σc r
    mean_residuals = sum_of_residuals / np.where(entries.shown > 0, entries.shown, np.inf)
    return sum_of_fits / block.eta + mean_residuals


def _sum_fits(block: BlockWithGaps) -> F64:
    """Compute Σc f (d,), with the weights c and the fits f = Cx of the messages.

    It is 0 for a complete block. Without centring, no mean needs it.
    """
    is_centred = block.weights.a.any()  # a: weights in the running mean
    if not block.filled or not is_centred:
        return np.zeros(len(block.before.mean))
    weights = block.weights.c * block.learned.kept  # a clipped message keeps this share of its fit
    return block.predictor.C @ (weights @ block.filled.X)


def compute_next_variances(block: BlockWithGaps, step: EntryStep, squares: F64, variances_before: F64, D: F64) -> F64:
    """Compute the variances σ² of the entries of the data after a block, (d,), if Σ is not kept.

    `squares` (d,) are Σc y² of the rows y = D(v − m), with the weights c.
    """
    mean_square = (squares + np.square(block.change_of_row_mean)) / block.eta
    change = step.replaced_share * (mean_square - variances_before * D**2) - np.square(step.mean_change)
    return np.maximum(variances_before + change / D**2, 0.0)


def none_if_all_known(known: F64) -> F64 | None:
    """Return the shares `known`, or None if all of them are 1, which is how a state keeps them."""
    return None if known.min(initial=1.0) > _ALL_KNOWN else known
