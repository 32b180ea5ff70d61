"""Learns one block: computes the `State` after a block from the `State` before it (docs/mathematics.md, section 4).

1. The messages are prepared: standardised, and with missing entries filled, so that all blocks are learned alike.
2. Algorithm 1 moves C through the block, message by message, which gives their losses (blocked/block.py).
3. If Σ is kept, the block is added to it. Otherwise Σ is approximated by [C | F], by the mean variance outside of its
   columns, and by the rows of the block.
4. Rayleigh–Ritz makes the next [C | F] (blocked/ritz.py).
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streampca.pca import gap_pairs, gaps, scaling
from streampca.pca.arrays import F64, Array, as_kernel_input, find_incomplete_rows, find_packed_diagonal
from streampca.pca.blocked import block, centring, ritz, triangle
from streampca.pca.learning_config import LearningConfig
from streampca.pca.missing import Filled, fill_missing_entries, make_predictor, prepare_new_entries
from streampca.pca.state import NO_LOSSES, Losses, State, add_variance

# If Σ is not kept, the rows of past and block are usually approximated from a sketch. They are decomposed exactly …
EXACT_UP_TO_MESSAGES = 1024  # … if the stream has no more messages than this
EXACT_UP_TO_ROWS = 448  # … if there are no more rows than this: a sketch would say too little about them
EXACT_BELOW_PAST_SHARE = 0.5  # … if the past has a smaller share of the weight than this at the end of the block


class PreparedBlock(NamedTuple):
    """The messages of a block as Algorithm 1 learns them.

    If the stream is standardised, they are D(v − m). The mean m and D, one over the standard deviation of each entry,
    are from before the block.
    """

    V: Array  # (n, d), with missing entries filled
    before: State  # the state before the block; its mean is in the units of V, so 0 if the stream is standardised
    weights: centring.Weights
    origin: F64  # (d,): m, in the units of the data
    scale: F64 | None  # (d,): D; None: the stream is not standardised
    filled: Filled | None  # None: no message of the block lacks an entry
    missing_shares: F64 | None  # (d,): share of messages that lack each entry, after the block; None: all are complete

    @property
    def D(self) -> F64:  # noqa: N802
        """One over the standard deviations of the entries before the block, (d,); ones if not standardised."""
        return np.ones(len(self.origin)) if self.scale is None else self.scale

    def in_units_of_data(self, mean: F64) -> F64:
        """Convert a mean in the units of V (d,) to the units of the data."""
        return mean if self.scale is None else self.origin + mean / self.scale


def learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (n, d), in which entries may be missing; return the next state and the losses."""
    past_row_count = 0 if config.keeps_covariance else state.rank
    # `block.learn` writes the rows of the block below the rows of the past.
    rows = np.empty((past_row_count + len(V), config.dimensions), config.dtype)
    block_rows = rows[past_row_count:]
    prepared = _prepare(state, V, retention, config, standardised_out=block_rows)
    weights = prepared.weights
    learned = block.learn(
        prepared.V,
        C=state.C[:, : config.components],
        mean=prepared.before.mean,
        total_variance=state.total_variance,
        weights=weights,
        smallest_variance=config.smallest_value**2,
        Y=block_rows,
    )
    losses = _compute_losses(learned, weights) if state.count else NO_LOSSES
    after = replace(
        state,
        mean=prepared.in_units_of_data(learned.mean),
        weight=weights.total,
        total_variance=learned.total_variance,
        count=state.count + len(V),
        concentration=weights.concentration,
        clipped=state.clipped + int((learned.kept < 1).sum()),
        missing=prepared.missing_shares,
        pinv_error=learned.pinv_error,
    )
    gap_block = _find_gaps(prepared, learned, config)
    if config.keeps_covariance:
        return _update_covariance(after, prepared, learned, gap_block, config), losses
    past_rows, variance_outside = state.split_covariance()
    rows[:past_row_count] = np.sqrt(weights.past) * past_rows
    variance_outside *= weights.past
    return _update_factor(after, prepared, learned, gap_block, rows, variance_outside, config), losses


def _prepare(state: State, V: Array, retention: F64, config: LearningConfig, standardised_out: Array) -> PreparedBlock:
    """Prepare the messages V (n, d) that follow `state`: weigh, standardise and fill them."""
    d = config.dimensions
    has_gaps = config.impute and bool(find_incomplete_rows(V).any())
    weights = _compute_weights(state, V, retention, config, has_gaps=has_gaps)
    may_have_new_entries = has_gaps or state.known is not None
    if may_have_new_entries:
        state, V = prepare_new_entries(state, V, config.center)
    missing_shares = _update_missing_shares(state.missing, np.isnan(V) if has_gaps else None, weights)
    origin = state.mean
    scale = scaling.choose_scale(state, V) if config.standardize else None
    if scale is not None:
        V = scaling.standardise(as_kernel_input(V), origin, scale, standardised_out)
        state = replace(state, mean=np.zeros(d))
    filled = None
    if has_gaps:
        filled = fill_missing_entries(state, V, weights, config.components, config.center)
        V = filled.V
    return PreparedBlock(
        V=V,
        before=state,
        weights=weights,
        origin=origin,
        scale=scale,
        filled=filled,
        missing_shares=missing_shares,
    )


def _compute_weights(
    state: State, V: Array, retention: F64, config: LearningConfig, *, has_gaps: bool
) -> centring.Weights:
    """Compute the weights of the messages V (n, d).

    The limit for clipping grows with the weight for which the entries in V were known.
    """
    shown_entries = ~np.isnan(V).all(axis=0) if has_gaps else np.full(config.dimensions, True)
    known_share = state.find_least_known(np.asarray(shown_entries))
    return centring.compute_weights(state, retention, config.center, known_share=known_share)


def _update_missing_shares(before: F64 | None, missing: Array | None, weights: centring.Weights) -> F64 | None:
    """Return the share of messages that lack each entry after a block, (d,).

    None stands for no missing entries.
    """
    share_from_past = None if before is None else weights.past * before
    if missing is None:
        return share_from_past
    share_from_block = weights.c @ missing
    return share_from_block if share_from_past is None else share_from_past + share_from_block


def _compute_losses(learned: block.BlockResult, weights: centring.Weights) -> Losses:
    """Compute the losses of the messages of a block, each before the message was learned."""
    explained = np.nan_to_num(learned.explained, nan=0.0)  # NaN if (CᵀC)⁻¹ has overflowed
    # Explained is a part of y = √(1 − a)(v − m). For the first message, a is 1.
    explained /= np.maximum(1 - weights.a, np.finfo(np.float64).tiny)
    residual = np.clip(learned.norm - explained, 0.0, learned.norm)
    return Losses(residual=residual, norm=learned.norm)


def _find_gaps(
    prepared: PreparedBlock, learned: block.BlockResult, config: LearningConfig
) -> gaps.BlockWithGaps | None:
    """Return the block with its gaps, or None if no entry is missing in this block or was missing before."""
    before = prepared.before
    filled = prepared.filled
    always_known = before.known is None
    if not filled and always_known:
        return None
    predictor = filled.predictor if filled else make_predictor(before, config.components)
    return gaps.BlockWithGaps(
        before=before, filled=filled, predictor=predictor, learned=learned, weights=prepared.weights
    )


def _move_mean(prepared: PreparedBlock, gap_block: gaps.BlockWithGaps, mean_change: F64, config: LearningConfig) -> F64:
    """Return the mean after a block with gaps, which moves by `mean_change` (d,)."""
    # In the first block, `predictor.mean` is the mean that EM has found.
    mean = prepared.in_units_of_data(gap_block.predictor.mean + mean_change)
    return np.clip(mean, -config.largest_value, config.largest_value)


def _update_covariance(
    after: State,
    prepared: PreparedBlock,
    learned: block.BlockResult,
    gap_block: gaps.BlockWithGaps | None,
    config: LearningConfig,
) -> State:
    """Return the state with the next Σ and [C | F].

    `after` still has Σ and [C | F] from before the block.
    """
    if gap_block:
        next_state, covariance = _add_block_with_gaps(after, prepared, gap_block, config)
    else:
        next_state, covariance = _add_complete_block(after, prepared, learned)
    # Half as many random sums of rows are enough.
    half_sketch = learned.sketch[:, ::2] + learned.sketch[:, 1::2]
    F = next_state.C[:, config.components :]
    start = np.hstack([learned.C, F, half_sketch])
    if prepared.scale is not None and next_state.scale is not None:
        to_next_units = next_state.scale / prepared.scale
        start = start * to_next_units[:, None].astype(config.dtype)
    if next_state.rank:
        CF = ritz.update_on_covariance(covariance, start, config.limits)
    else:
        CF = ritz.decompose_covariance(covariance, config.limits)
    return replace(next_state, C=CF.astype(config.dtype, copy=False))


def _add_complete_block(after: State, prepared: PreparedBlock, learned: block.BlockResult) -> tuple[State, Array]:
    """Add a complete block to Σ, if every pair of entries was always known.

    Also returns the next Σ as a square (d, d), standardised for the next block.
    """
    d = len(after.mean)
    past = prepared.weights.past
    D = prepared.D  # 1/standard deviations
    product = triangle.gram(learned.Y)  # Σ c yyᵀ
    covariance_before = np.zeros(d * (d + 1) // 2) if after.covariance is None else after.covariance
    next_D = D
    if prepared.scale is not None:
        variance_before = covariance_before[find_packed_diagonal(d)]
        variances = past * variance_before + product.diagonal() / D**2  # in the units of the data
        after, next_D = scaling.rescale(after, variances)
    covariance, standardised_square = triangle.add_block(
        covariance_before, past, product, to_units_of_triangle=1.0 / D, to_next_units=next_D
    )
    return replace(after, covariance=covariance), standardised_square


def _add_block_with_gaps(
    after: State, prepared: PreparedBlock, gap_block: gaps.BlockWithGaps, config: LearningConfig
) -> tuple[State, Array]:
    """Add a block to Σ, if an entry is missing in this block or was missing before.

    The state holds Σ in the units of the data, as a packed triangle. Also returns the next Σ as a square (d, d),
    standardised for the next block.
    """
    D = prepared.D  # 1/standard deviations
    step = gap_pairs.compute_pair_step(gap_block, after.covariance, D)
    mean = _move_mean(prepared, gap_block, step.mean_change, config)
    after = replace(after, mean=mean, known=step.known, total_variance=float(step.variance.sum()))
    next_D = D
    if prepared.scale is not None:
        variances = step.variance / D**2  # from standardised units to those of the data
        after, next_D = scaling.rescale(after, variances)
    covariance, standardised_square = step.compute_covariance(D, next_D, config.dtype)
    return replace(after, covariance=covariance), standardised_square


def _update_factor(
    after: State,
    prepared: PreparedBlock,
    learned: block.BlockResult,
    gap_block: gaps.BlockWithGaps | None,
    A: Array,
    variance_outside: float,
    config: LearningConfig,
) -> State:
    """If Σ is not kept, return the state with the next [C | F].

    The covariance is AᵀA plus `variance_outside` in all directions.
    """
    step = None
    if gap_block:
        step = gaps.compute_entry_step(gap_block)
        mean = _move_mean(prepared, gap_block, step.mean_change, config)
        after = replace(after, mean=mean, known=step.known)
    F = after.C[:, config.components :]
    start = np.hstack([learned.C, F, learned.sketch])
    to_next_units: Array | float = 1.0  # a factor of each column
    if prepared.scale is not None:
        variances = _compute_next_variances(after, prepared, learned, gap_block, step)
        after = replace(after, variances=variances)
        after, next_scale = scaling.rescale(after, variances)
        D_ratio = next_scale / prepared.scale
        to_next_units = D_ratio.astype(config.dtype)
        variance_outside *= scaling.compute_variance_factor(D_ratio)
    is_small = after.count <= EXACT_UP_TO_MESSAGES or len(A) <= EXACT_UP_TO_ROWS
    start_lacks_directions = prepared.weights.past < EXACT_BELOW_PAST_SHARE or after.rank < config.components
    if is_small or start_lacks_directions:
        CF = ritz.decompose_rows(A * to_next_units, config.limits)
    else:
        CF = ritz.update_on_rows(A, start, config.limits, to_next_units)
    return replace(after, C=add_variance(CF, variance_outside))


def _compute_next_variances(
    after: State,
    prepared: PreparedBlock,
    learned: block.BlockResult,
    gap_block: gaps.BlockWithGaps | None,
    step: gaps.EntryStep | None,
) -> F64:
    """If Σ is not kept, return the variances of the entries of the data after the block, (d,)."""
    squares = scaling.sum_squares(learned.Y)  # Σc y²
    if gap_block and step:
        return gaps.compute_next_variances(gap_block, step, squares, after.entry_variances, prepared.D)
    return prepared.weights.past * after.entry_variances + squares / prepared.D**2
