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

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streampca.pca.arrays import F64
from streampca.pca.blocked import pairs
from streampca.pca.blocked.block import BlockResult
from streampca.pca.learning_config import LearningConfig
from streampca.pca.prepared_block import PreparedBlock
from streampca.pca.scaling import sum_squares
from streampca.pca.state import State, none_if_all_known


class EntryStep(NamedTuple):
    """How a block changes the moments of the entries, (d,) each."""

    entries: pairs.Entries
    row_mean_change: F64  # Σc f + Σc r/√q: how far the mean of the rows moves that Algorithm 1 learns
    replaced_share: F64  # diag(E): the share of the moments of each entry that the block replaces
    known: F64  # diag(N′): share of the weight for which each entry is known after the block
    mean_change: F64  # δ: how far each mean moves


def compute_entry_step(prepared: PreparedBlock, learned: BlockResult) -> EntryStep:
    """Compute the change of the mean of each entry, and the weight for which it is known: steps 1–3."""
    eta = prepared.eta
    weights = prepared.weights
    filled = prepared.filled
    d = len(prepared.origin)
    shown = np.full(d, eta)  # weight of the block's messages that show each entry
    root_q = np.ones(d)
    sum_of_fits = np.zeros(d)  # Σc f
    if filled:
        shown = weights.c @ filled.shown
        root_q = filled.root_q
        is_centred = weights.a.any()
        if is_centred:  # otherwise all means stay 0
            fit_weights = weights.c * learned.kept_share  # a clipped message keeps this share of its fit
            sum_of_fits = filled.predictor.C @ (fit_weights @ filled.X)
    # Fits are averaged over all messages, residuals over those that show the entry.
    row_mean_change = learned.mean - prepared.mean_before
    sum_of_residuals = (row_mean_change - sum_of_fits) * root_q  # Σc r
    divisor = np.where(shown > 0, shown, np.inf)  # an entry that no message shows has the mean residual 0
    mean_residual = sum_of_residuals / divisor
    block_mean = sum_of_fits / eta + mean_residual  # μ, about the mean before the block
    counted = np.minimum(eta, shown / pairs.RARELY_SHOWN)  # diag(g): less if few messages show the entry
    known_before = weights.past * prepared.before.known_entries
    stays_known = (shown <= 0) & (known_before > 0)
    known = known_before + np.where(stays_known, eta, counted)
    replaced_share = counted / np.where(known > 0, known, 1.0)
    return EntryStep(
        entries=pairs.Entries(
            shown=shown,
            known_before=known_before,
            root_q=root_q,
            mean_factor=root_q / divisor,
        ),
        row_mean_change=row_mean_change,
        replaced_share=replaced_share,
        known=known,
        mean_change=replaced_share * block_mean,
    )


def add_block_to_entries(after: State, prepared: PreparedBlock, learned: BlockResult, config: LearningConfig) -> State:
    """If Σ is not kept, return the state with the means and variances of the entries after a block with gaps."""
    step = compute_entry_step(prepared, learned)
    after = replace(after, mean=move_mean(prepared, step.mean_change, config), known=none_if_all_known(step.known))
    if prepared.scale is None:  # variances of entries are only for standard deviations
        return after
    D = prepared.D
    squares = sum_squares(learned.Y)  # Σc y² of the rows y = D(v − m)
    mean_square = (squares + np.square(step.row_mean_change)) / prepared.eta
    variances_before = after.entry_variances  # in the units of the data
    change = step.replaced_share * (mean_square - variances_before * D**2) - np.square(step.mean_change)
    return replace(after, variances=np.maximum(variances_before + change / D**2, 0.0))


def move_mean(prepared: PreparedBlock, change: F64, config: LearningConfig) -> F64:
    """Return the mean after a block with gaps, (d,), in the units of the data."""
    mean = prepared.in_units_of_data(prepared.mean_before + change)
    return np.clip(mean, -config.largest_value, config.largest_value)
