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

from streampca.pca import gap_pairs, gaps, missing, scaling
from streampca.pca.arrays import F64, Array, as_kernel_input, find_incomplete_rows, find_packed_diagonal
from streampca.pca.blocked import block, centring, ritz, triangle
from streampca.pca.learning_config import LearningConfig
from streampca.pca.state import NO_LOSSES, Losses, State, add_variance

# If Σ is not kept, the rows of past and block are usually approximated from a sketch. They are decomposed exactly …
WHOLE_UNTIL = 1024  # … if the stream has no more messages than this
SHORT_MEMORY = 0.5  # … if the past has a smaller share of the weight than this at the end of the block
FEW_ROWS = 448  # … if there are no more rows than this: a sketch would say too little about them


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
    filled: missing.Filled | None  # None: no message of the block lacks an entry
    missing_shares: F64 | None  # (d,): share of messages that lack each entry, after the block; None: all are complete

    @property
    def units(self) -> F64:
        """D, one over the standard deviations, (d,); ones if the stream is not standardised."""
        return np.ones(len(self.origin)) if self.scale is None else self.scale

    def in_units_of_data(self, mean: F64) -> F64:
        """Convert a mean in the units of V (d,) to the units of the data."""
        return mean if self.scale is None else self.origin + mean / self.scale


def learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (n, d), in which entries may be missing; return the next state and the losses.

    `retention` (n,) holds the share of the past that each message keeps.
    """
    # If Σ is not kept, A holds the rows of the past above the rows of the block: AᵀA will be the covariance.
    past_row_count = 0 if config.keeps_covariance else state.rank
    A = np.empty((past_row_count + len(V), config.dimensions), config.dtype)
    block_rows = A[past_row_count:]
    prepared = _prepare(state, V, retention, config, memory=block_rows)
    weights = prepared.weights
    learned = block.learn(
        prepared.V,
        C=state.C[:, : config.components],
        mean=prepared.before.mean,
        total_variance=state.total_variance,
        weights=weights,
        smallest=config.smallest_value**2,
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
    # The past has the variance `variance_outside` in all directions, and more along its columns. The rows of the past
    # in A hold only what the columns have more, so that `variance_outside` can be added again at the end.
    variance_outside = state.variance_outside
    A[:past_row_count] = np.sqrt(weights.past) * add_variance(state.C, -variance_outside).T
    variance_outside *= weights.past  # the past has only this share of the weight after the block
    return _update_factor(after, prepared, learned, gap_block, A, variance_outside, config), losses


def _prepare(state: State, V: Array, retention: F64, config: LearningConfig, memory: Array) -> PreparedBlock:
    """Prepare the messages V (n, d) that follow `state`: weigh and standardise them, and fill missing entries.

    Standardised messages are written to `memory` (n, d), where the rows of Algorithm 1 will replace them.
    """
    d = config.dimensions
    has_gaps = config.impute and bool(find_incomplete_rows(V).any())
    # How far from the mean messages are clipped depends on the weight before them. If an entry of the block was first
    # seen late, this is the weight since then.
    shown_entries = ~np.isnan(V).all(axis=0) if has_gaps else np.full(d, True)
    age = state.find_least_known(np.asarray(shown_entries))
    weights = centring.compute_weights(state, retention, config.center, age)
    if has_gaps or state.known is not None:
        state, V = missing.prepare_new_entries(state, V, config.center)
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
        filled = missing.fill(state, V, weights, config.components, config.center)
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
    # `explained` belongs to the learned row √(1−a) (v − m), and `norm` to v − m. If a message keeps nothing of the
    # past, a is 1 and the row is 0.
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
    predictor = filled.predictor if filled else missing.make_predictor(before, config.components)
    return gaps.BlockWithGaps(
        before=before, filled=filled, predictor=predictor, learned=learned, weights=prepared.weights
    )


def _move_mean(prepared: PreparedBlock, gap_block: gaps.BlockWithGaps, moved: F64, config: LearningConfig) -> F64:
    """Return the mean after a block with gaps, which moves the mean by `moved` (d,).

    The mean is limited to the range of entries, because `moved` may be a prediction that is far off.
    """
    mean = prepared.in_units_of_data(gap_block.predictor.mean + moved)
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
    # The columns of the sketch are random combinations of the block's rows. They are added in pairs, so half as many
    # remain. That is enough here, because `ritz` multiplies with Σ twice.
    half_sketch = learned.sketch[:, ::2] + learned.sketch[:, 1::2]
    start = np.hstack([learned.C, after.C[:, config.components :], half_sketch])
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

    Returns the state with the next Σ, and this Σ as a square (d, d) in the units of the next block.
    """
    d = len(after.mean)
    past = prepared.weights.past
    # Rows of Y are in units of D: an entry is multiplied by its element of D. Σ is kept in the units of the data, so a
    # new D does not change it.
    scale = prepared.units
    product = triangle.gram(learned.Y)  # in units of D
    covariance_before = np.zeros(d * (d + 1) // 2) if after.covariance is None else after.covariance
    next_scale = scale
    if prepared.scale is not None:
        variances = past * covariance_before[find_packed_diagonal(d)] + product.diagonal() / scale**2
        after, next_scale = scaling.rescale(after, variances)
    to_units_of_data = 1.0 / scale
    covariance, square = triangle.add_block(covariance_before, past, product, to_units_of_data, next_scale)
    return replace(after, covariance=covariance), square


def _add_block_with_gaps(
    after: State, prepared: PreparedBlock, gap_block: gaps.BlockWithGaps, config: LearningConfig
) -> tuple[State, Array]:
    """Add a block to Σ, if an entry is missing in the block, or was not always known before.

    Returns the state with the next Σ, mean, total variance and N, and this Σ as a square (d, d) in the units of the
    next block.
    """
    units = prepared.units
    step = gap_pairs.compute_pair_step(gap_block, after.covariance, units)
    mean = _move_mean(prepared, gap_block, step.moved, config)
    after = replace(after, mean=mean, known=step.known, total_variance=float(step.variance.sum()))
    next_units = units
    if prepared.scale is not None:
        after, next_units = scaling.rescale(after, step.variance / units**2)
    covariance, square = step.apply(units, next_units, config.dtype)
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
    the block. `after` is the state after the block, but still has the [C | F] and the D from before the block.
    """
    d = config.dimensions
    past = prepared.weights.past
    step = None
    if gap_block:
        step = gaps.compute_entry_step(gap_block)
        mean = _move_mean(prepared, gap_block, step.moved, config)
        after = replace(after, mean=mean, known=step.known)
    start = np.hstack([learned.C, after.C[:, config.components :], learned.sketch])
    ratio: Array | float = 1.0  # D of the next block, divided by the D of this block
    if prepared.scale is not None:
        scale = prepared.scale
        squares = scaling.sum_squares(learned.Y)
        variances_before = np.zeros(d) if after.variances is None else after.variances
        variances = past * variances_before + squares / scale**2
        if gap_block and step:
            variances = gaps.compute_next_variances(gap_block, step, squares, variances_before, scale)
        after, next_scale = scaling.rescale(replace(after, variances=variances), variances)
        ratio = (next_scale / scale).astype(config.dtype)
        outside *= scaling.compute_variance_factor(next_scale / scale)
    # The rows are decomposed exactly, or else their axes are approximated in one pass.
    is_small = after.count <= WHOLE_UNTIL or len(A) <= FEW_ROWS
    is_exact = is_small or past < SHORT_MEMORY or after.rank < config.components
    if is_exact:
        C = ritz.decompose_rows(A * ratio, config.limits)
    else:
        C = ritz.update_on_rows(A, start, config.limits, ratio)
    return replace(after, C=add_variance(C, outside))
