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
    filled_mean_change: F64  # Σc f + Σc r/√q: how far the mean of the filled messages moves within the block
    replaced_share: F64  # diag(E): the share of the moments of each entry that the block replaces
    known: F64  # diag(N′): share of the weight for which each entry is known after the block
    mean_change: F64  # δ: how far each mean moves

    def about_mean_before(self, squares: F64) -> F64:
        """Shift a sum of weighted squares (d,) from the running mean to the mean before the block.

        It is the shift of a variance to another centre: a mean square about m₀ is the variance plus (m₁ − m₀)².

            Σc (v − m₀)² = Σc y² + (m₁ − m₀)²,    y = √(1−a) (v − m)

        - v: a filled message
        - c: its share of the weight after the block
        - a: its share of the weight when it moves the running mean m
        - m₀, m₁: m before and after the block; they differ by `filled_mean_change`

        Here all messages are those of the block, and the past, which counts as messages equal to m₀. Their mean is m₁,
        and their variance is Σc y².
        """
        return squares + np.square(self.filled_mean_change)


def compute_entry_step(prepared: PreparedBlock, learned: BlockResult) -> EntryStep:
    """Compute how a block changes the mean of each entry, and which share E of the entry's moments the block replaces.

    In an entry, each message has a predicted value, the fit f. If the message has the entry, it also has a residual r,
    the difference from the fit. All weights are shares of the weight after the block: c of a message, η of the block,
    and n of the block's messages that have the entry. q is n/η, but at least 0.1. Filled messages have r/√q in place of
    r, so that the entry varies as much as if all messages had it (missing.py).

    1. μ = Σc f/η + Σc r/n, the mean of the entry in the block, about the mean before the block: the mean fit of all
       messages, plus the mean residual of the messages that have the entry. The filled messages have the sum Σc r/√q,
       which is multiplied by √q (`root_q`).
    2. E = g/N′. g is the weight with which the block counts for the entry: η, or less if few messages have the entry.
       N′ is the weight for which the entry is known after the block (`_compute_entry_weights`).
    3. δ = Eμ, the change of the mean.
    """
    eta = prepared.eta
    filled = prepared.filled
    d = len(prepared.origin)
    # 1.
    observed_weight = np.full(d, eta)  # n: in a complete block, all messages have every entry
    root_q = np.ones(d)
    if filled:
        observed_weight = prepared.weights.c @ filled.shown
        root_q = filled.root_q
    sum_of_fits = _sum_fits(prepared, learned)  # Σc f
    filled_mean_change = learned.mean - prepared.mean_before  # Σc f + Σc r/√q
    sum_of_residuals = (filled_mean_change - sum_of_fits) * root_q  # Σc r
    # If no message has an entry, its mean residual is 0.
    divisor = np.where(observed_weight > 0, observed_weight, np.inf)
    block_mean = sum_of_fits / eta + sum_of_residuals / divisor  # μ
    # 2.
    known_weight_before = prepared.weights.past * prepared.before.known_shares  # for which the entry was known
    counted_weight, known_weight = _compute_entry_weights(observed_weight, known_weight_before, eta)  # g, N′
    replaced_share = counted_weight / np.where(known_weight > 0, known_weight, 1.0)  # E; 0 if never known
    return EntryStep(
        entries=pairs.Entries(
            shown=observed_weight,
            known_before=known_weight_before,
            root_q=root_q,
            mean_factor=root_q / divisor,
        ),
        filled_mean_change=filled_mean_change,
        replaced_share=replaced_share,
        known=known_weight,
        mean_change=replaced_share * block_mean,  # 3.
    )


def _compute_entry_weights(observed_weight: F64, known_weight_before: F64, eta: float) -> tuple[F64, F64]:
    """Return, for each entry, the weight g with which the block counts, and the known weight after the block, N′.

        g = min(η, n/RARELY_SHOWN)        N′ = `known_weight_before` + g

    η is the weight of the block, and n (`observed_weight`) of its messages that have the entry. If few messages of the
    block have the entry, their mean is uncertain, so the block counts less. The known weight is the weight since the
    first message that has the entry. So if the entry was known before, but no message of the block has it, the known
    weight grows all the same: N′ = `known_weight_before` + η.
    """
    counted_weight = np.minimum(eta, observed_weight / pairs.RARELY_SHOWN)
    stays_known = (observed_weight <= 0) & (known_weight_before > 0)
    return counted_weight, known_weight_before + np.where(stays_known, eta, counted_weight)


def _sum_fits(prepared: PreparedBlock, learned: BlockResult) -> F64:
    """Sum the fits f = Cx of the block's messages, times their weights c: Σc f, (d,).

    A message has a fit in every entry: the value that its observed entries predict. It has a residual only in an entry
    that it shows. So the sum of the fits is needed to compute the block's mean of an entry:

        mean of the fits of all messages + mean of the residuals of the messages that show the entry

    The sum is taken as 0 in two cases:

    - No message lacks an entry: both means are over all messages, so fits and residuals need not be separated.
    - Means are not learned: no mean may change.
    """
    filled = prepared.filled  # None if all messages are complete
    learns_means = prepared.weights.a.any()  # a: weight of each message in the running mean, 0 without learned means
    if not filled or not learns_means:
        return np.zeros(len(prepared.origin))
    # c is the share of a message in the weight after the block. Clipping shortens a message, and so its fit, to
    # `kept_share`. X (n, r) has the coordinates x of the messages as rows: Σc f = C Σc x.
    fit_weights = prepared.weights.c * learned.kept_share
    return filled.predictor.C @ (fit_weights @ filled.X)


def add_block_to_entries(state: State, prepared: PreparedBlock, learned: BlockResult, config: LearningConfig) -> State:
    """For a state that keeps no Σ: add a block with gaps to the means and variances of the entries.

    A state keeps the variances of messages v. The formula is for y = D(v − m), where m is the mean before the block and
    D (d,) is 1/standard deviation of each entry. So variances are multiplied by D², and the change is divided by D²:

        variance of y after the block = σ² + E(s − σ²) − δ²

        σ²    variance of y before the block; `state` still has σ²/D²
        s     mean square of y in the block, about the mean before the block
        E     share of σ² that the block replaces
        δ     change of the mean
    """
    step = compute_entry_step(prepared, learned)
    state = replace(state, mean=move_mean(prepared, step.mean_change, config), known=none_if_all_known(step.known))
    is_standardised = prepared.scale is not None
    if not is_standardised:  # only a standardised stream needs the variances of entries
        return state
    D_squared = prepared.D**2
    squares = sum_squares(learned.Y)  # Σc y² about the moving mean: the rows of `learned.Y` are √c y
    mean_square = step.about_mean_before(squares) / prepared.eta  # s; η is the sum of the weights c
    variances_before = state.entry_variances  # σ²/D²
    change = step.replaced_share * (mean_square - variances_before * D_squared) - np.square(step.mean_change)
    return replace(state, variances=np.maximum(variances_before + change / D_squared, 0.0))


def move_mean(prepared: PreparedBlock, change: F64, config: LearningConfig) -> F64:
    """Return the mean after a block with gaps, (d,), in the units of the data."""
    mean = prepared.in_units_of_data(prepared.mean_before + change)
    return np.clip(mean, -config.largest_value, config.largest_value)
