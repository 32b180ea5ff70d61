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
    row_mean_change: F64  # Σc f + Σc r/√q: how far the mean of the rows f + r/√q moves, which Algorithm 1 learns
    replaced_share: F64  # diag(E): the share of the moments of each entry that the block replaces
    known: F64  # diag(N′): share of the weight for which each entry is known after the block
    mean_change: F64  # δ: how far each mean moves


def compute_entry_step(prepared: PreparedBlock, learned: BlockResult) -> EntryStep:
    """Compute how a block changes the mean of each entry, and which share E of its moments the block replaces.

    A message is predicted to have the fit f in an entry. If the message shows the entry, it has the residual r. All
    weights are shares of the weight after the block (steps 1–3 of gaps.py):

        c, η      weight of a message, and of the whole block
        n         weight of the block's messages that show the entry
        c₀N       weight for which the entry was known before the block
        μ         Σc f/η + Σc r/n, the mean of the entry in the block, about the mean before the block
        g         min(η, n/RARELY_SHOWN), the weight with which the block counts
        N′        c₀N + g, the weight for which the entry is known after the block; if it was known and n is 0, c₀N + η
        E         g/N′
        δ         Eμ, the change of the mean
    """
    eta = prepared.eta
    filled = prepared.filled
    d = len(prepared.origin)
    shown_weight = np.full(d, eta)  # n
    root_q = np.ones(d)
    if filled:
        shown_weight = prepared.weights.c @ filled.shown
        root_q = filled.root_q
    sum_of_fits = _sum_fits(prepared, learned)  # Σc f
    row_mean_change = learned.mean - prepared.mean_before  # Σc f + Σc r/√q
    sum_of_residuals = (row_mean_change - sum_of_fits) * root_q  # Σc r
    divisor = np.where(shown_weight > 0, shown_weight, np.inf)  # if no message shows an entry, its mean residual is 0
    block_mean = sum_of_fits / eta + sum_of_residuals / divisor  # μ, about the mean before the block
    counted_weight = np.minimum(eta, shown_weight / pairs.RARELY_SHOWN)  # g
    known_weight_before = prepared.weights.past * prepared.before.known_shares  # c₀N
    stays_known = (shown_weight <= 0) & (known_weight_before > 0)  # known before, but not shown by the block
    known_weight = known_weight_before + np.where(stays_known, eta, counted_weight)  # N′
    replaced_share = counted_weight / np.where(known_weight > 0, known_weight, 1.0)  # E
    return EntryStep(
        entries=pairs.Entries(
            shown=shown_weight,
            known_before=known_weight_before,
            root_q=root_q,
            mean_factor=root_q / divisor,
        ),
        row_mean_change=row_mean_change,
        replaced_share=replaced_share,
        known=known_weight,
        mean_change=replaced_share * block_mean,
    )


def _sum_fits(prepared: PreparedBlock, learned: BlockResult) -> F64:
    """Sum the fits f = Cx of the block's messages, times their weights c: Σc f, (d,).

    A message has a fit in every entry, which is predicted from the entries that the message shows. If all messages are
    complete, nothing is predicted, and the sum is 0. The sum is also 0 if means are not learned.
    """
    filled = prepared.filled  # None if all messages are complete
    learns_means = prepared.weights.a.any()  # a: weights of the messages in the running mean
    if not filled or not learns_means:
        return np.zeros(len(prepared.origin))
    fit_weights = prepared.weights.c * learned.kept_share  # a clipped message keeps this share of its fit
    return filled.predictor.C @ (fit_weights @ filled.X)


def add_block_to_entries(state: State, prepared: PreparedBlock, learned: BlockResult, config: LearningConfig) -> State:
    """For a state that keeps no Σ: add a block with gaps to the means and variances of the entries.

    `state` still has the variances from before the block. The variance of an entry of y = D(v − m) is σ² before the
    block, and σ² + E(s − σ²) − δ² after it. s is the mean square of the entry in the block about the mean before the
    block, E the share of σ² that the block replaces, and δ the change of the mean.
    """
    step = compute_entry_step(prepared, learned)
    state = replace(state, mean=move_mean(prepared, step.mean_change, config), known=none_if_all_known(step.known))
    is_standardised = prepared.scale is not None
    if not is_standardised:  # only a standardised stream needs the variances of entries
        return state
    D_squared = prepared.D**2
    squares = sum_squares(learned.Y)  # Σc y², about the mean of the filled messages, which moves within the block
    squares_about_mean_before = squares + np.square(step.row_mean_change)  # how far this mean moves
    mean_square = squares_about_mean_before / prepared.eta  # s
    variances_before = state.entry_variances  # of v: σ²/D²
    change = step.replaced_share * (mean_square - variances_before * D_squared) - np.square(step.mean_change)
    return replace(state, variances=np.maximum(variances_before + change / D_squared, 0.0))


def move_mean(prepared: PreparedBlock, change: F64, config: LearningConfig) -> F64:
    """Return the mean after a block with gaps, (d,), in the units of the data."""
    mean = prepared.in_units_of_data(prepared.mean_before + change)
    return np.clip(mean, -config.largest_value, config.largest_value)
