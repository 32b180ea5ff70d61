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
EXACT_UP_TO_MESSAGES = 1024  # … if the stream has no more messages than this
EXACT_UP_TO_ROWS = 448  # … if there are no more rows than this: random sums would say too little about them
EXACT_BELOW_PAST_SHARE = 0.5  # … if the past has a smaller share of the weight than this at the end of the block


def learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (n, d), in which entries may be missing; return the next state and the losses.

    1. Prepare the messages: weigh and standardise them, and fill missing entries. Each message keeps the share
       `retention` (n,) of the weight of earlier messages.
    2. Move C by Algorithm 1, a gradient step for each message, which also gives the losses. A message v far from the
       mean m is clipped: only a share of v − m is kept.
    3. If Σ is kept, add the block to it. Compute the next [C | F], from Σ or from rows of the past and the block.
    """
    # One array has a row for each message. If Σ is not kept, free rows for the columns of [C | F] come first. The array
    # is written up to three times: `prepare_block` writes standardised messages to `block_rows`, `block.learn` replaces
    # them by the rows √c·y that it has learned, and `_update_factor` writes the past to the free rows.
    past_row_count = 0 if config.keeps_covariance else state.rank
    rows = np.empty((past_row_count + len(V), config.dimensions), config.dtype)
    block_rows = rows[past_row_count:]
    prepared = prepare_block(state, V, retention, config, standardised_out=block_rows)
    weights = prepared.weights
    learned = block.learn(
        prepared.V,
        C=state.C[:, : config.components],
        mean=prepared.before.mean,  # in the units of `prepared.V`
        total_variance=state.total_variance,
        weights=weights,
        smallest_variance=config.smallest_value**2,
        Y=block_rows,  # may be the same memory as `prepared.V`: a message is read before its row is written
    )
    losses = _compute_losses(learned, weights) if state.count else NO_LOSSES
    after = replace(
        state,
        mean=prepared.in_units_of_data(learned.mean),
        weight=weights.total,
        total_variance=learned.total_variance,
        count=state.count + len(V),
        concentration=weights.concentration,  # the sum of the squared shares of all messages
        clipped=state.clipped + int((learned.kept_share < 1).sum()),
        missing=prepared.missing_shares,
        pinv_error=learned.pinv_error,
    )
    if config.keeps_covariance:
        return _update_covariance(after, prepared, learned, config), losses
    return _update_factor(after, prepared, learned, rows, config), losses


def _compute_losses(learned: block.BlockResult, weights: centring.Weights) -> Losses:
    """Compute the losses of the messages of a block, each before the message was learned.

    A loss is ‖v − m‖² less its explained part. Algorithm 1 has computed the explained part of ‖y‖² for
    y = √(1 − a)(v − m), where a is the message's weight in the mean. So this part is divided by 1 − a.
    """
    explained_square_of_y = np.nan_to_num(learned.explained_square, nan=0.0)  # NaN if (CᵀC)⁻¹ has overflowed
    # For the first message of a stream, a is 1 and y is 0: this must not be 0/0.
    one_minus_a = np.maximum(1 - weights.a, np.finfo(np.float64).tiny)
    explained_square = explained_square_of_y / one_minus_a
    residual = np.clip(learned.squared_distance - explained_square, 0.0, learned.squared_distance)
    return Losses(residual=residual, norm=learned.squared_distance)


def _update_covariance(
    after: State, prepared: PreparedBlock, learned: block.BlockResult, config: LearningConfig
) -> State:
    """Return the state with the next Σ and [C | F]. `after` still has both from before the block.

    1. Add the block to Σ.
    2. Put three kinds of columns side by side: C after Algorithm 1, F from before the block, and random sums of the
       block's rows, which contain new directions.
    3. Search the leading axes of Σ from the span of these columns. The leading axes are the next [C | F].
    """
    covariance_before = after.covariance
    if covariance_before is None:
        covariance_before = np.zeros(config.dimensions * (config.dimensions + 1) // 2)
    if prepared.has_known_gaps:
        next_state, covariance = add_block_with_gaps(after, covariance_before, prepared, learned, config)
    else:
        next_state, covariance = _add_complete_block(after, covariance_before, prepared, learned)
    # The random sums are added in pairs, because half as many are enough.
    random_sums = learned.random_sums[:, ::2] + learned.random_sums[:, 1::2]
    F = after.C[:, config.components :]
    start = np.hstack([learned.C, F, random_sums])
    if prepared.scale is not None and next_state.scale is not None:
        to_next_units = next_state.scale / prepared.scale
        start = start * to_next_units[:, None].astype(config.dtype)
    if after.rank:  # 0 if no message before the block has differed from the mean: then there are no axes to start from
        CF = ritz.update_on_covariance(covariance, start, config.limits)
    else:
        CF = ritz.decompose_covariance(covariance, config.limits)
    return replace(next_state, C=CF.astype(config.dtype, copy=False))


def _add_complete_block(
    state: State, covariance_before: F64, prepared: PreparedBlock, learned: block.BlockResult
) -> tuple[State, Array]:
    """Add a complete block to Σ, if every pair of entries was always known.

        next Σ = past · Σ + D⁻¹ (sum of c yyᵀ) D⁻¹

    `past` is the share of the weight before the block, and c are the shares of its messages y. The rows of `learned.Y`
    are √c y. Σ is a packed triangle in the units of the data. D (d,) is 1/standard deviation of each entry before the
    block, by which the messages of a standardised stream were multiplied; in other streams, D is 1.

    `state` is the state after the block, but without the next Σ. Returns this state with the next Σ; and the next Σ as
    a square (d, d), multiplied by the next D from left and right.
    """
    past = prepared.weights.past
    D = prepared.D
    product = triangle.gram(learned.Y)  # sum of c yyᵀ
    next_D = D
    is_standardised = prepared.scale is not None
    if is_standardised:
        variance_before = covariance_before[find_packed_diagonal(len(D))]
        variances = past * variance_before + product.diagonal() / D**2  # in the units of the data
        state, next_D = scaling.rescale(state, variances)
    covariance, standardised_square = triangle.add_block(
        covariance_before, past, product, to_units_of_triangle=1.0 / D, to_next_units=next_D
    )
    return replace(state, covariance=covariance), standardised_square


def _update_factor(
    after: State, prepared: PreparedBlock, learned: block.BlockResult, rows: Array, config: LearningConfig
) -> State:
    """If Σ is not kept, return the state with the next [C | F]. `after` still has [C | F] from before the block.

    1. Let A be `rows`: the past and the block. Then Σ = AᵀA + variance_outside · I.
    2. Update the variances of the entries, with which a stream is standardised.
    3. If the stream is standardised, the columns of A were multiplied by D: 1/standard deviation of each entry before
       the block. Convert A to the next D.
    4. The next [C | F] are the leading axes of A, exactly or by Nyström's method.
    """
    # 1. The block is in the last rows of A already. The past is written to the first rows.
    variance_outside = _write_past_rows(rows, prepared)
    F = after.C[:, config.components :]
    # Nyström's method searches the axes in the span of these columns. `random_sums` are sums of the block's rows with
    # random signs, which contain the new directions of the block.
    start = np.hstack([learned.C, F, learned.random_sums])
    after = _update_entries(after, prepared, learned, config)  # 2.
    to_next_units: Array | float = 1.0  # a factor of each column of A
    if prepared.scale is not None:  # 3.
        after, next_scale = scaling.rescale(after, after.entry_variances)
        D_ratio = next_scale / prepared.scale
        to_next_units = D_ratio.astype(config.dtype)
        variance_outside *= scaling.compute_variance_factor(D_ratio)
    # 4.
    is_small = after.count <= EXACT_UP_TO_MESSAGES or len(rows) <= EXACT_UP_TO_ROWS
    start_lacks_directions = prepared.weights.past < EXACT_BELOW_PAST_SHARE or after.rank < config.components
    if is_small or start_lacks_directions:
        CF = ritz.decompose_rows(rows * to_next_units, config.limits)
    else:
        CF = ritz.update_on_rows(rows, start, config.limits, to_next_units)
    return replace(after, C=add_variance(CF, variance_outside))


def _write_past_rows(rows: Array, prepared: PreparedBlock) -> float:
    """Fill the first rows of `rows`, which are free, with rows R for the messages before the block; return s.

        past · (covariance before the block) = RᵀR + sI

    `past` is the share of these messages in the weight after the block. s is a variance in all directions.
    """
    past = prepared.weights.past
    past_rows, variance_outside = prepared.before.split_covariance()
    rows[: len(past_rows)] = np.sqrt(past) * past_rows
    return variance_outside * past


def _update_entries(state: State, prepared: PreparedBlock, learned: block.BlockResult, config: LearningConfig) -> State:
    """For a state that keeps no Σ: add the block to the variances of the entries, in the units of the data.

    Only a standardised stream has these variances. If entries are missing, the means are computed again, too.
    """
    if prepared.has_known_gaps:
        return add_block_to_entries(state, prepared, learned, config)
    is_standardised = prepared.scale is not None
    if not is_standardised:
        return state
    squares = scaling.sum_squares(learned.Y)  # sum of c y² for standardised messages y of weight c
    variances_before = state.entry_variances
    return replace(state, variances=prepared.weights.past * variances_before + squares / prepared.D**2)
