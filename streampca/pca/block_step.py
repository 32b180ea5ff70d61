"""Learns one block: computes the `State` after a block from the `State` before it (docs/mathematics.md, section 4).

1. The messages are prepared: standardised, and with missing entries filled, so that all blocks are learned alike.
2. Algorithm 1 moves C through the block, message by message, which gives their losses (blocked/block.py).
3. If Σ is kept, the block is added to it. Otherwise Σ is approximated by [C | F], by the mean variance outside of its
   columns, and by the rows of the block.
4. Rayleigh–Ritz makes the next [C | F] (blocked/ritz.py).
"""

from dataclasses import replace

import numpy as np

from streampca.pca import scaling
from streampca.pca.arrays import F64, Array, find_packed_diagonal
from streampca.pca.blocked import block, centring, ritz, triangle
from streampca.pca.gap_pairs import add_block_with_gaps
from streampca.pca.gaps import add_block_to_entries
from streampca.pca.learning_config import LearningConfig
from streampca.pca.prepared_block import PreparedBlock, prepare_block
from streampca.pca.state import NO_LOSSES, Losses, State, add_variance

# If Σ is not kept, the axes of past and block are usually approximated by Nyström's method. They are exact …
EXACT_UP_TO_MESSAGES = 1024  # … if the stream has no more messages than this: Algorithm 1 has not converged yet
EXACT_UP_TO_ROWS = 448  # … if there are no more rows than this: random sums would say too little about them
EXACT_BELOW_PAST_SHARE = 0.5  # … if the past has a smaller share of the weight than this at the end of the block


def learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (n, d), in which entries may be missing; return the next state and the losses.

    1. Prepare the messages: weigh and standardise them, and fill missing entries. Each message keeps the share
       `retention` (n,) of the weight of earlier messages.
    2. Move C by Algorithm 1, a gradient step for each message, which also gives the losses. A message v far from the
       mean m is clipped: only a share of v − m is kept.
    3. Compute the next columns [C | F], all of which `State.C` holds. If the state keeps its covariance Σ, add the
       block to Σ, and compute the columns from Σ. Otherwise compute the columns from rows for the past and the block.
    """
    rows, block_rows = _allocate_rows(state, len(V), config)
    prepared = prepare_block(state, V, retention, config, standardised_out=block_rows)
    weights = prepared.weights
    learned = block.learn(
        prepared.V,
        C=state.C[:, : config.components],
        mean=prepared.before.mean,  # in the units of `prepared.V`
        total_variance=state.total_variance,
        weights=weights,
        smallest_variance=config.smallest_value**2,  # `smallest_value` is a standard deviation
        # Filled in with the rows √c·y: y is the centred message, and c its share of the weight. `prepare_block` may
        # have put `prepared.V` into the same memory: each message is read before its row is written.
        Y=block_rows,
    )
    losses = _compute_losses(learned, weights) if state.count else NO_LOSSES
    partly_updated = replace(  # Σ and [C | F] are still from before the block
        state,
        mean=prepared.in_units_of_data(learned.mean),
        weight=weights.total,
        total_variance=learned.total_variance,
        count=state.count + len(V),
        concentration=weights.concentration,  # the sum of the squared shares of all messages
        clipped=state.clipped + int((learned.kept_share < 1).sum()),
        missing=prepared.missing_shares,
        pinv_error=learned.pinv_error,  # rounding error of the (CᵀC)⁻¹ that Algorithm 1 keeps
    )
    if config.keeps_covariance:
        return _update_with_covariance(partly_updated, prepared, learned, config), losses
    return _update_without_covariance(partly_updated, prepared, learned, rows, config), losses


def _allocate_rows(state: State, message_count: int, config: LearningConfig) -> tuple[Array, Array]:
    """Return the empty rows for the past and the block, and the view of these rows that belongs to the block.

    The block has a row for each message. If Σ is not kept, rows for the past come first, one for each column of
    [C | F]. `_update_without_covariance` fills them in, and needs them in one array with the rows of the block.
    """
    past_row_count = 0 if config.keeps_covariance else state.rank
    rows = np.empty((past_row_count + message_count, config.dimensions), config.dtype)
    return rows, rows[past_row_count:]


def _compute_losses(learned: block.BlockResult, weights: centring.Weights) -> Losses:
    """Compute the losses of the messages of a block, each before the message was learned.

        loss of a message v = ‖v − m‖² − (explained part of ‖y‖²) / (1 − a)        y = √(1 − a) (v − m)

    m is the mean before the message, and a is the weight of the message in the mean after it. Algorithm 1 learns y, so
    it has computed the explained part of ‖y‖². The explained part of ‖v − m‖² is 1/(1 − a) times as large.
    """
    explained_square_of_y = np.nan_to_num(learned.explained_square, nan=0.0)  # NaN, and then 0, if (CᵀC)⁻¹ overflowed
    # For the first message of a stream, a is 1 and y is 0: this must not be 0/0.
    one_minus_a = np.maximum(1 - weights.a, np.finfo(np.float64).tiny)
    explained_square = explained_square_of_y / one_minus_a
    square = learned.squared_distance  # ‖v − m‖²
    return Losses(residual=np.clip(square - explained_square, 0.0, square), norm=square)


def _update_with_covariance(
    partly_updated: State, prepared: PreparedBlock, learned: block.BlockResult, config: LearningConfig
) -> State:
    """For a state that keeps its covariance Σ: return the state with the next Σ and the next columns [C | F].

    In `partly_updated`, mean, weight and counts are from after the block, Σ and [C | F] still from before the block.
    `learned.C` is C after the gradient steps of the block (Algorithm 1).

    1. Add the block to Σ.
    2. Choose the columns from which the search for the next axes starts: C after the gradient steps, F from before the
       block, and random sums of the block's rows, which contain new directions.
    3. Search the leading axes of Σ from these columns. The leading axes are the next [C | F].
    """
    # 1. `square` is the next Σ as a square (d, d). If the stream is standardised, `square` is in the units of the next
    # scale. The columns are still in the units of the old scale, so step 2 converts them.
    covariance_before = partly_updated.covariance
    if covariance_before is None:  # before the first block: a packed triangle of zeros
        covariance_before = np.zeros(config.dimensions * (config.dimensions + 1) // 2)
    if prepared.has_unknown_entries:
        next_state, square = add_block_with_gaps(partly_updated, covariance_before, prepared, learned, config)
    else:
        next_state, square = _add_complete_block(partly_updated, covariance_before, prepared, learned)
    # 2. Half as many random sums are enough for a state that keeps Σ, so they are added in pairs.
    random_sums = learned.random_sums[:, ::2] + learned.random_sums[:, 1::2]
    F_before = partly_updated.C[:, config.components :]  # the columns of [C | F] after those of C
    start = np.hstack([learned.C, F_before, random_sums])
    if prepared.scale is not None and next_state.scale is not None:  # the stream is standardised
        to_next_units = next_state.scale / prepared.scale  # a scale multiplies entries of the data
        start = start * to_next_units[:, None].astype(config.dtype)
    # 3. Before the first block, and in a stream that was constant so far, [C | F] has no columns to start from.
    had_columns = partly_updated.rank > 0
    if had_columns:
        CF = ritz.update_on_covariance(square, start, config.limits)
    else:
        CF = ritz.decompose_covariance(square, config.limits)
    return replace(next_state, C=CF.astype(config.dtype, copy=False))


def _add_complete_block(
    state: State, covariance_before: F64, prepared: PreparedBlock, learned: block.BlockResult
) -> tuple[State, Array]:
    """Add a complete block to Σ, if every pair of entries was always known.

        next Σ = past · Σ + D⁻¹ (sum of c yyᵀ) D⁻¹

    `past` is the share that the messages before the block have in the weight after it, and c are the shares of the
    block's messages y. The rows of `learned.Y` are √c y. Σ, of which `covariance_before` is the packed triangle, is in
    the units of the data. The messages y are in scaled units, the units of the data times D (d,): 1/standard deviation
    of each entry before the block. If the stream is not standardised, D is 1.

    Apart from Σ, `state` is the state after the block. Returns `state` with the next Σ, and also the next Σ as a square
    (d, d) in the next scaled units, the units of the data times the next D.
    """
    past = prepared.weights.past
    D = prepared.D
    product = triangle.gram(learned.Y)  # sum of c yyᵀ, in scaled units
    next_D = D
    is_standardised = prepared.scale is not None
    if is_standardised:
        variances_of_data_before = covariance_before[find_packed_diagonal(len(D))]
        variances_of_data = past * variances_of_data_before + product.diagonal() / D**2
        state, next_D = scaling.rescale(state, variances_of_data)
    # `covariance` is the packed next Σ in the units of the data, and `square` is the same in the next scaled units.
    covariance, square = triangle.add_block(
        covariance_before, past, product, to_units_of_triangle=1.0 / D, to_units_of_square=next_D
    )
    return replace(state, covariance=covariance), square


def _update_without_covariance(
    state: State, prepared: PreparedBlock, learned: block.BlockResult, rows: Array, config: LearningConfig
) -> State:
    """For a state that does not keep its covariance Σ: return the state with the next columns [C | F].

    `state` is the state after the block, but its columns, which `state.C` holds, are from before the block.

    1. Write the past as rows above the rows of the block, √c y for each message y with the share c of the weight. All
       rows together are A, and Σ = AᵀA + sI: the past has the variance s (`variance_outside`) in every direction.
    2. Update the variances of the entries, by which a stream is standardised.
    3. In a standardised stream, each entry was multiplied by D (`prepared.scale`): 1/its standard deviation before the
       block. Compute the next D (`next_scale`). The columns of A must be multiplied by (next D)/D, and s, which is one
       number for all directions, is multiplied by the median of ((next D)/D)².
    4. Find the leading axes of A, exactly or by Nyström's method. With s added to their variances, they are the next
       [C | F].
    """
    variance_outside = _write_past_rows(rows, prepared)  # 1. above the rows of the block, which are in `rows` already
    state = _update_entries(state, prepared, learned, config)  # 2.
    to_next_units: Array | float = 1.0  # a factor of each column of A
    if prepared.scale is not None:  # 3.
        state, next_scale = scaling.rescale(state, state.entry_variances)
        D_ratio = next_scale / prepared.scale
        to_next_units = D_ratio.astype(config.dtype)
        variance_outside *= scaling.compute_variance_factor(D_ratio)
    # 4. Nyström's method searches the axes in the span of C after the gradient steps, of F from before the block, and
    # of a few random sums of the block's rows. This span lacks directions if the stream or the block is short, if the
    # block outweighs the past, or if the past has few columns.
    is_short = state.count <= EXACT_UP_TO_MESSAGES or len(rows) <= EXACT_UP_TO_ROWS
    past_says_little = prepared.weights.past < EXACT_BELOW_PAST_SHARE or state.rank < config.components
    if is_short or past_says_little:
        CF = ritz.decompose_rows(rows * to_next_units, config.limits)  # exactly
    else:
        F = state.C[:, config.components :]
        start = np.hstack([learned.C, F, learned.random_sums])
        CF = ritz.update_on_rows(rows, start, config.limits, to_next_units)  # by Nyström's method
    return replace(state, C=add_variance(CF, variance_outside))


def _write_past_rows(rows: Array, prepared: PreparedBlock) -> float:
    """Express the covariance before the block by rows R and a variance s in all directions.

        past · (covariance before the block) = RᵀR + sI

    `past` is the share that the messages before the block have in the weight after it. R has a row for each column of
    [C | F]. R is written to the first rows of `rows`, which are still empty. Returns s.
    """
    past = prepared.weights.past
    unweighted_rows, variance_outside = prepared.before.split_covariance()  # R and s for past = 1
    rows[: len(unweighted_rows)] = np.sqrt(past) * unweighted_rows
    return past * variance_outside


def _update_entries(state: State, prepared: PreparedBlock, learned: block.BlockResult, config: LearningConfig) -> State:
    """For a state that does not keep Σ: add the block to what the state keeps of each entry.

    If an entry is missing in this block, or was unknown for a part of the earlier weight, `add_block_to_entries`
    updates the means, the known shares and the variances. Otherwise means and known shares are up to date, and only a
    standardised stream keeps variances of entries:

        next variances = past · variances_before + squares / D²        squares = sum of c y²

    `past` is the share of the weight of the messages before the block, and c the share of a message y of the block. y
    was multiplied by D, 1/standard deviation of each entry. Dividing by D² converts to the units of the data.
    """
    if prepared.has_unknown_entries:
        return add_block_to_entries(state, prepared, learned, config)
    is_standardised = prepared.scale is not None
    if not is_standardised:
        return state
    squares = scaling.sum_squares(learned.Y)  # sum of c y²: the rows of `learned.Y` are √c y
    variances_before = state.entry_variances  # `state.variances`, or zeros before the first block
    return replace(state, variances=prepared.weights.past * variances_before + squares / prepared.D**2)
