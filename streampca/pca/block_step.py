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
    """Learn one block V (n, d), in which entries may be missing; return the next state and the losses.

    `retention` (n,) holds the share of the past that each message keeps. First the messages are prepared, and Algorithm
    1 learns them one by one. If Σ is kept, Σ is then updated, and the next axes are those of Σ. Otherwise they are the
    axes of the rows of past and block.
    """
    # If Σ is not kept, A holds the rows of the past above the rows of the block: AᵀA will be the covariance, except for
    # the variance outside of the columns.
    past_row_count = 0 if config.keeps_covariance else state.rank
    A = np.empty((past_row_count + len(V), config.dimensions), config.dtype)
    block_rows = A[past_row_count:]
    prepared = _prepare(state, V, retention, config, memory=block_rows)
    weights = prepared.weights
    learned = block.learn(  # which also writes the rows of the block to Y
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
    A[:past_row_count] = np.sqrt(weights.past) * past_rows
    outside = weights.past * variance_outside
    return _update_factor(after, prepared, learned, gap_block, A, outside, config), losses


def _prepare(state: State, V: Array, retention: F64, config: LearningConfig, memory: Array) -> PreparedBlock:
    """Prepare the messages V (n, d) that follow `state`: weigh and standardise them, and fill missing entries.

    Standardised messages are written to `memory` (n, d). This saves an allocation: `block.learn` will overwrite them.
    """
    d = config.dimensions
    has_gaps = config.impute and bool(find_incomplete_rows(V).any())
    shown_entries = ~np.isnan(V).all(axis=0) if has_gaps else np.full(d, True)
    # The weight since the newest of these entries was first seen, as a share of the whole weight. The distance from
    # the mean to which messages are clipped grows with this weight.
    age_of_newest = state.find_least_known(np.asarray(shown_entries))
    weights = centring.compute_weights(state, retention, config.center, age_of_newest)
    if has_gaps or state.known is not None:
        state, V = prepare_new_entries(state, V, config.center)
    origin = state.mean
    scale = scaling.choose_scale(state, V) if config.standardize else None
    if scale is not None:
        V = scaling.standardise(as_kernel_input(V), origin, scale, memory)
        state = replace(state, mean=np.zeros(d))  # the mean was subtracted from the messages
    filled = None
    missing_shares = None if state.missing is None else weights.past * state.missing
    if has_gaps:
        missing_shares_of_past = 0.0 if missing_shares is None else missing_shares
        missing_shares = missing_shares_of_past + weights.c @ np.isnan(V)
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


def _compute_losses(learned: block.BlockResult, weights: centring.Weights) -> Losses:
    """Compute the losses of the messages of a block: what C did not explain of each message before it was learned."""
    explained = np.nan_to_num(learned.explained, nan=0.0)  # NaN if C has shrunk until (CᵀC)⁻¹ overflows
    # A message v moves the mean m by the share a of v − m, and is learned as the row √(1−a) (v − m). `explained` is the
    # part of the squared length of this row, and `norm` is ‖v − m‖². If a message keeps nothing of the past, a is 1.
    explained /= np.maximum(1 - weights.a, np.finfo(np.float64).tiny)
    residual = np.clip(learned.norm - explained, 0.0, learned.norm)
    return Losses(residual=residual, norm=learned.norm)


def _find_gaps(
    prepared: PreparedBlock, learned: block.BlockResult, config: LearningConfig
) -> gaps.BlockWithGaps | None:
    """Return what gaps.py needs of the block; None if no entry is missing in it, and all were always known before."""
    before = prepared.before
    filled = prepared.filled
    if not filled and before.known is None:
        return None
    predictor = filled.predictor if filled else make_predictor(before, config.components)
    return gaps.BlockWithGaps(
        before=before, filled=filled, predictor=predictor, learned=learned, weights=prepared.weights
    )


def _move_mean(prepared: PreparedBlock, gap_block: gaps.BlockWithGaps, mean_change: F64, config: LearningConfig) -> F64:
    """Return the mean after a block with gaps, which moves the mean by `mean_change` (d,).

    The mean is limited to the range of entries, because `mean_change` may be a prediction that is far off.
    """
    mean = prepared.in_units_of_data(gap_block.predictor.mean + mean_change)
    return np.clip(mean, -config.largest_value, config.largest_value)


def _update_covariance(
    after: State,
    prepared: PreparedBlock,
    learned: block.BlockResult,
    gap_block: gaps.BlockWithGaps | None,
    config: LearningConfig,
) -> State:
    """If Σ is kept, return the state with Σ after the block, and with the next [C | F].

    `after` is the state after the block, but still has the Σ, the [C | F] and the D (one over the standard deviations)
    from before the block.
    """
    if gap_block:
        after, covariance = _add_block_with_gaps(after, prepared, gap_block, config)
    else:
        after, covariance = _add_complete_block(after, prepared, learned)
    # The next columns are searched in the span of `start`: C after the block, F with the spare directions, and random
    # sums of the block's rows, which contain new directions. Half of the sums in `learned.sketch` would do, because
    # `update_on_covariance` multiplies with Σ twice. So the sums are added in pairs.
    half_sketch = learned.sketch[:, ::2] + learned.sketch[:, 1::2]
    F = after.C[:, config.components :]
    start = np.hstack([learned.C, F, half_sketch])
    if prepared.scale is not None and after.scale is not None:  # from the units of this block to those of the next
        ratio = after.scale / prepared.scale
        start = start * ratio[:, None].astype(config.dtype)
    if after.rank:  # 0 in the first block, and if there was no variance before
        CF = ritz.update_on_covariance(covariance, start, config.limits)
    else:
        CF = ritz.decompose_covariance(covariance, config.limits)
    return replace(after, C=CF.astype(config.dtype, copy=False))


def _add_complete_block(after: State, prepared: PreparedBlock, learned: block.BlockResult) -> tuple[State, Array]:
    """Add a block to Σ. Called only if no message of the stream has a gap.

    In the units of a block, the entries of the data are multiplied by D: one over the standard deviations before the
    block or, if the stream is not standardised, 1. Returns the state with the next Σ, packed and in the units of the
    data, and this Σ as a square (d, d) in the units of the next block.
    """
    d = len(after.mean)
    past = prepared.weights.past
    D = prepared.D
    product = triangle.gram(learned.Y)  # YᵀY, in the units of this block
    covariance_before = np.zeros(d * (d + 1) // 2) if after.covariance is None else after.covariance
    next_D = D
    if prepared.scale is not None:
        variances = past * covariance_before[find_packed_diagonal(d)] + product.diagonal() / D**2
        after, next_D = scaling.rescale(after, variances)
    covariance, square = triangle.add_block(
        covariance_before, past, product, to_units_of_triangle=1.0 / D, to_next_units=next_D
    )
    return replace(after, covariance=covariance), square


def _add_block_with_gaps(
    after: State, prepared: PreparedBlock, gap_block: gaps.BlockWithGaps, config: LearningConfig
) -> tuple[State, Array]:
    """Add a block to Σ, if an entry is missing in the block, or was not always known before.

    In the units of a block, the entries of the data are multiplied by D: one over the standard deviations before the
    block or, if the stream is not standardised, 1. Returns the state with the next Σ, packed and in the units of the
    data, with mean, total variance, and the share of the weight for which each pair of entries is known. Also returns
    this Σ as a square (d, d) in the units of the next block.
    """
    D = prepared.D
    step = gap_pairs.compute_pair_step(gap_block, after.covariance, D)
    mean = _move_mean(prepared, gap_block, step.mean_change, config)
    after = replace(after, mean=mean, known=step.known, total_variance=float(step.variance.sum()))
    next_D = D
    if prepared.scale is not None:
        variances_of_data = step.variance / D**2  # `step.variance` is in the units of this block
        after, next_D = scaling.rescale(after, variances_of_data)
    covariance, square = step.apply(D, next_D, config.dtype)
    return replace(after, covariance=covariance), square


def _update_factor(
    after: State,
    prepared: PreparedBlock,
    learned: block.BlockResult,
    gap_block: gaps.BlockWithGaps | None,
    A: Array,
    outside: float,
    config: LearningConfig,
) -> State:
    """If Σ is not kept, return the state with the next [C | F].

    The covariance is AᵀA plus the variance `outside` in all directions. A holds the rows of the past above the rows of
    the block. `after` is the state after the block, but still has the [C | F] and the D from before the block, where D
    is one over the standard deviations of the entries.
    """
    step = None
    if gap_block:
        step = gaps.compute_entry_step(gap_block)
        mean = _move_mean(prepared, gap_block, step.mean_change, config)
        after = replace(after, mean=mean, known=step.known)
    # If the axes are only approximated, they are searched in the span of `start`: C after the block, F with the spare
    # directions, and random sums of the block's rows, which contain new directions.
    F = after.C[:, config.components :]
    start = np.hstack([learned.C, F, learned.sketch])
    ratio: Array | float = 1.0  # D of the next block, divided by the D of this block
    if prepared.scale is not None:
        variances = _compute_next_variances(after, prepared, learned, gap_block, step)
        after, next_scale = scaling.rescale(replace(after, variances=variances), variances)
        precise_ratio = next_scale / prepared.scale
        ratio = precise_ratio.astype(config.dtype)
        outside *= scaling.compute_variance_factor(precise_ratio)
    is_small = after.count <= EXACT_UP_TO_MESSAGES or len(A) <= EXACT_UP_TO_ROWS
    # If the block outweighs the past, or C has too few columns, `start` lacks most of the directions of the block.
    start_lacks_directions = prepared.weights.past < EXACT_BELOW_PAST_SHARE or after.rank < config.components
    if is_small or start_lacks_directions:
        C = ritz.decompose_rows(A * ratio, config.limits)
    else:
        C = ritz.update_on_rows(A, start, config.limits, ratio)
    return replace(after, C=add_variance(C, outside))


def _compute_next_variances(
    after: State,
    prepared: PreparedBlock,
    learned: block.BlockResult,
    gap_block: gaps.BlockWithGaps | None,
    step: gaps.EntryStep | None,
) -> F64:
    """If Σ is not kept, return the variances σ² of the entries of the data after the block, (d,).

    Without gaps, σ² ← past · σ² + Σc y²/D². y are the rows of the block, c their weights, and D is one over the
    standard deviations before the block. `after` still has the variances from before the block.
    """
    squares = scaling.sum_squares(learned.Y)  # Σc y², because Y has the rows √c·y
    if gap_block and step:
        return gaps.compute_next_variances(gap_block, step, squares, after.entry_variances, prepared.D)
    return prepared.weights.past * after.entry_variances + squares / prepared.D**2
