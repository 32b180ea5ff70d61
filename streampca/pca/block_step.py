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
    1 learns them one by one. Then the next axes are computed. If Σ is kept, the block is added to Σ, and the axes are
    those of Σ. If not, they are the axes of the rows of past and block.
    """
    # If Σ is not kept, `rows` will hold one row for each column of [C | F], for the past, and below them the rows of
    # the block. If Σ is kept, `rows` has only the rows of the block.
    past_row_count = 0 if config.keeps_covariance else state.rank
    rows = np.empty((past_row_count + len(V), config.dimensions), config.dtype)
    # The memory for the rows √c·y of the block, which `block.learn` writes. Until then, it holds standardised messages.
    block_rows = rows[past_row_count:]
    prepared = _prepare(state, V, retention, config, memory=block_rows)
    weights = prepared.weights
    learned = block.learn(  # Algorithm 1 updates C and the mean message by message
        prepared.V,
        C=state.C[:, : config.components],
        mean=prepared.before.mean,
        total_variance=state.total_variance,  # in the units of `prepared.V`, as C is
        weights=weights,
        smallest_variance=config.smallest_value**2,
        Y=block_rows,
    )
    losses = _compute_losses(learned, weights) if state.count else NO_LOSSES  # no model predicts the first block
    after = replace(
        state,
        mean=prepared.in_units_of_data(learned.mean),
        weight=weights.total,
        total_variance=learned.total_variance,
        count=state.count + len(V),
        concentration=weights.concentration,
        clipped=state.clipped + int((learned.kept < 1).sum()),
        missing=prepared.missing_shares,
        pinv_error=learned.pinv_error,  # how far C† was from exact at the end of the block
    )
    gap_block = _find_gaps(prepared, learned, config)
    if config.keeps_covariance:
        return _update_covariance(after, prepared, learned, gap_block, config), losses
    # The covariance of the past is past_rowsᵀ·past_rows, plus the variance `variance_outside` in all directions.
    past_rows, variance_outside = state.split_covariance()
    rows[:past_row_count] = np.sqrt(weights.past) * past_rows
    outside = weights.past * variance_outside
    return _update_factor(after, prepared, learned, gap_block, A=rows, outside=outside, config=config), losses


def _prepare(state: State, V: Array, retention: F64, config: LearningConfig, memory: Array) -> PreparedBlock:
    """Prepare the messages V (n, d) that follow `state`: weigh and standardise them, and fill missing entries.

    If the stream is standardised, the messages become D(v − m), with the mean m and with D, one over the standard
    deviations. They are written to `memory` (n, d). This saves an allocation: `block.learn` will overwrite them.
    """
    d = config.dimensions
    has_gaps = config.impute and bool(find_incomplete_rows(V).any())
    shown_entries = ~np.isnan(V).all(axis=0) if has_gaps else np.full(d, True)
    # A message is clipped at a distance that grows with the weight before it. An entry that began late was known for
    # only a share of this weight. The smallest of these shares, among the entries that this block shows, counts.
    known_share = state.find_least_known(np.asarray(shown_entries))
    weights = centring.compute_weights(state, retention, config.center, known_share=known_share)
    may_have_new_entries = has_gaps or state.known is not None  # `known` is None if all entries were always known
    if may_have_new_entries:
        state, V = prepare_new_entries(state, V, config.center)  # clips new entries, and gives the state their means
    missing_shares = _update_missing_shares(state.missing, np.isnan(V) if has_gaps else None, weights)
    origin = state.mean
    scale = scaling.choose_scale(state, V) if config.standardize else None
    if scale is not None:
        V = scaling.standardise(as_kernel_input(V), origin, scale, memory)
        state = replace(state, mean=np.zeros(d))  # the mean of D(v − m); m stays in `origin`
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


def _update_missing_shares(before: F64 | None, missing: Array | None, weights: centring.Weights) -> F64 | None:
    """Return the share of messages that lack each entry after a block, (d,): past · before + Σ c · missing.

    `weights.past` is the share of the weight that all earlier messages keep, and `weights.c` (n,) the share of each
    message of the block; together they are 1. `missing` (n, d) is True where a message lacks an entry. None stands for
    no missing entries: in `before` for the past, in `missing` for the block, and in the result for both.
    """
    share_from_past = None if before is None else weights.past * before
    if missing is None:
        return share_from_past
    share_from_block = weights.c @ missing
    return share_from_block if share_from_past is None else share_from_past + share_from_block


def _compute_losses(learned: block.BlockResult, weights: centring.Weights) -> Losses:
    """Compute the losses of the messages of a block: what C did not explain of each message before it was learned.

    A message v moves the mean m by the share a of v − m, and is learned as the row y = √(1−a) (v − m). C explains
    `learned.explained` of ‖y‖². So of ‖v − m‖², which is `learned.norm`, C explains `learned.explained`/(1−a).
    """
    explained = np.nan_to_num(learned.explained, nan=0.0)  # NaN if C has shrunk until (CᵀC)⁻¹ overflows
    # a is 1 if the earlier messages have lost all of their weight: then the mean becomes the message.
    explained /= np.maximum(1 - weights.a, np.finfo(np.float64).tiny)
    residual = np.clip(learned.norm - explained, 0.0, learned.norm)
    return Losses(residual=residual, norm=learned.norm)


def _find_gaps(
    prepared: PreparedBlock, learned: block.BlockResult, config: LearningConfig
) -> gaps.BlockWithGaps | None:
    """Return what gaps.py needs of a block; None if every entry has a value in the block and in all earlier messages.

    The result has the predictor of missing entries, even if the block has no gaps: then the predictor is used for the
    moments of entries that began late.
    """
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
    """Return the mean after a block with gaps, which moves the mean by `mean_change` (d,).

    The mean is limited to ±`config.largest_value`, like the entries of messages, because `mean_change` may be a
    prediction that is far off.
    """
    # `predictor.mean` is the mean before the block or, in the first block of a stream, the mean that EM has found.
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
        next_state, covariance = _add_block_with_gaps(after, prepared, gap_block, config)
    else:
        next_state, covariance = _add_complete_block(after, prepared, learned)
    # The next columns are searched in the span of `start`: C after the block, F with the spare directions, and random
    # sums of the block's rows, which contain new directions. `update_on_covariance` turns the span towards the axes of
    # Σ, so half as many sums are enough, and take half the time. The sums are added in pairs, because without every
    # second sum the rows in it would be lost.
    half_sketch = learned.sketch[:, ::2] + learned.sketch[:, 1::2]
    F = next_state.C[:, config.components :]  # `next_state` has the next Σ and D, but still the [C | F] from before
    start = np.hstack([learned.C, F, half_sketch])
    if prepared.scale is not None and next_state.scale is not None:  # from the units of this block to the next
        ratio = next_state.scale / prepared.scale
        start = start * ratio[:, None].astype(config.dtype)
    if next_state.rank:  # 0 in the first block, and if there was no variance before
        CF = ritz.update_on_covariance(covariance, start, config.limits)
    else:
        CF = ritz.decompose_covariance(covariance, config.limits)
    return replace(next_state, C=CF.astype(config.dtype, copy=False))


def _add_complete_block(after: State, prepared: PreparedBlock, learned: block.BlockResult) -> tuple[State, Array]:
    """Add a block to Σ. Called only if no message of the stream has a gap.

    The rows of the block are in the units of the data times D: one over the standard deviations before the block or, if
    the stream is not standardised, 1. Returns the state with the next Σ, packed and in the units of the data, and the
    next Σ as a square (d, d) in the units of the next block, which has the next D.
    """
    d = len(after.mean)
    past = prepared.weights.past
    D = prepared.D
    # The rows of Y are √c·y with the weights c, so YᵀY is the weighted moment Σ c yyᵀ, in the units of this block.
    product = triangle.gram(learned.Y)
    covariance_before = np.zeros(d * (d + 1) // 2) if after.covariance is None else after.covariance
    next_D = D
    if prepared.scale is not None:
        variance_before = covariance_before[find_packed_diagonal(d)]
        variances = past * variance_before + product.diagonal() / D**2  # in the units of the data
        after, next_D = scaling.rescale(after, variances)  # puts the D of the next block into the state
    covariance, square = triangle.add_block(  # past · covariance_before + YᵀY, in both units
        covariance_before, past, product, to_units_of_triangle=1.0 / D, to_next_units=next_D
    )
    return replace(after, covariance=covariance), square


def _add_block_with_gaps(
    after: State, prepared: PreparedBlock, gap_block: gaps.BlockWithGaps, config: LearningConfig
) -> tuple[State, Array]:
    """Add a block to Σ, if an entry is missing in the block, or was not always known before.

    The rows of the block are in the units of the data times D: one over the standard deviations before the block or, if
    the stream is not standardised, 1. Returns the state after the block, with the next Σ packed and in the units of the
    data, and the next Σ as a square (d, d) in the units of the next block, which has the next D. `step.apply` computes
    Σ last, because it needs the next D, which follows from the variances.
    """
    D = prepared.D
    step = gap_pairs.compute_pair_step(gap_block, after.covariance, D)
    mean = _move_mean(prepared, gap_block, step.mean_change, config)
    variances_of_block = step.variance  # in the units of this block, in which a state has its total variance, too
    after = replace(after, mean=mean, known=step.known, total_variance=float(variances_of_block.sum()))
    next_D = D
    if prepared.scale is not None:
        variances_of_data = variances_of_block / D**2
        after, next_D = scaling.rescale(after, variances_of_data)  # also sets the total variance in the next units
    covariance_of_data, square_of_next_block = step.apply(D, next_D, config.dtype)
    return replace(after, covariance=covariance_of_data), square_of_next_block


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

    The covariance is AᵀA plus the variance `outside` in all directions: A holds rows R for the past above the rows of
    the block, in the units of the block, and the covariance of the past is RᵀR plus `outside` in all directions. So the
    axes of AᵀA are those of the covariance, whose variances are larger by `outside`. `after` is the state after the
    block, but still has the [C | F] from before.
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
    units: Array | float = 1.0  # by which rows are multiplied: the next block has other units if it is standardised
    if prepared.scale is not None:
        variances = _compute_next_variances(after, prepared, learned, gap_block, step)
        after = replace(after, variances=variances)
        after, next_scale = scaling.rescale(after, variances)
        D_ratio = next_scale / prepared.scale  # D of the next block, divided by the D of this block
        units = D_ratio.astype(config.dtype)
        outside *= scaling.compute_variance_factor(D_ratio)
    is_small = after.count <= EXACT_UP_TO_MESSAGES or len(A) <= EXACT_UP_TO_ROWS
    # If the block outweighs the past, or C has too few columns, the span of `start` contains too few of the directions
    # in which the block varies.
    start_lacks_directions = prepared.weights.past < EXACT_BELOW_PAST_SHARE or after.rank < config.components
    if is_small or start_lacks_directions:
        CF = ritz.decompose_rows(A * units, config.limits)
    else:
        CF = ritz.update_on_rows(A, start, config.limits, units)
    return replace(after, C=add_variance(CF, outside))


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
