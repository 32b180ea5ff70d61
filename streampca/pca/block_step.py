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

# If Σ is not kept, the rows of past and block are usually approximated from a sketch. They are decomposed exactly …
EXACT_UP_TO_MESSAGES = 1024  # … if the stream has no more messages than this
EXACT_UP_TO_ROWS = 448  # … if there are no more rows than this: a sketch would say too little about them
EXACT_BELOW_PAST_SHARE = 0.5  # … if the past has a smaller share of the weight than this at the end of the block


def learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (n, d), in which entries may be missing; return the next state and the losses."""
    past_row_count = 0 if config.keeps_covariance else state.rank
    # The rows of the block are written below the rows of the past, so that they are not copied.
    rows = np.empty((past_row_count + len(V), config.dimensions), config.dtype)
    block_rows = rows[past_row_count:]
    prepared = prepare_block(state, V, retention, config, standardised_out=block_rows)
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
    if config.keeps_covariance:
        return _update_covariance(after, prepared, learned, config), losses
    return _update_factor(after, prepared, learned, rows, config), losses


def _compute_losses(learned: block.BlockResult, weights: centring.Weights) -> Losses:
    """Compute the losses of the messages of a block, each before the message was learned."""
    explained = np.nan_to_num(learned.explained, nan=0.0)  # NaN if (CᵀC)⁻¹ has overflowed
    # Explained is a part of y = √(1 − a)(v − m). For the first message, a is 1.
    explained /= np.maximum(1 - weights.a, np.finfo(np.float64).tiny)
    residual = np.clip(learned.norm - explained, 0.0, learned.norm)
    return Losses(residual=residual, norm=learned.norm)


def _update_covariance(
    after: State, prepared: PreparedBlock, learned: block.BlockResult, config: LearningConfig
) -> State:
    """Return the state with the next Σ and [C | F].

    `after` still has Σ and [C | F] from before the block.
    """
    covariance_before = after.covariance
    if covariance_before is None:
        covariance_before = np.zeros(config.dimensions * (config.dimensions + 1) // 2)
    if prepared.has_known_gaps:
        next_state, covariance = add_block_with_gaps(after, covariance_before, prepared, learned, config)
    else:
        next_state, covariance = _add_complete_block(after, covariance_before, prepared, learned)
    # Half as many random sums of rows are enough.
    half_sketch = learned.sketch[:, ::2] + learned.sketch[:, 1::2]
    F = after.C[:, config.components :]
    start = np.hstack([learned.C, F, half_sketch])
    if prepared.scale is not None and next_state.scale is not None:
        to_next_units = next_state.scale / prepared.scale
        start = start * to_next_units[:, None].astype(config.dtype)
    if after.rank:
        CF = ritz.update_on_covariance(covariance, start, config.limits)
    else:
        CF = ritz.decompose_covariance(covariance, config.limits)
    return replace(next_state, C=CF.astype(config.dtype, copy=False))


def _add_complete_block(
    after: State, covariance_before: F64, prepared: PreparedBlock, learned: block.BlockResult
) -> tuple[State, Array]:
    """Add a complete block to Σ, if every pair of entries was always known.

    Σ is in the units of the data, as a packed triangle. Also returns the next Σ as a square (d, d), standardised for
    the next block.
    """
    past = prepared.weights.past
    D = prepared.D  # 1/standard deviations
    product = triangle.gram(learned.Y)  # Σc yyᵀ
    next_D = D
    if prepared.scale is not None:
        variance_before = covariance_before[find_packed_diagonal(len(D))]
        variances = past * variance_before + product.diagonal() / D**2  # in the units of the data
        after, next_D = scaling.rescale(after, variances)
    covariance, standardised_square = triangle.add_block(
        covariance_before, past, product, to_units_of_triangle=1.0 / D, to_next_units=next_D
    )
    return replace(after, covariance=covariance), standardised_square


def _update_factor(
    after: State, prepared: PreparedBlock, learned: block.BlockResult, rows: Array, config: LearningConfig
) -> State:
    """If Σ is not kept, return the state with the next [C | F].

    `rows` hold those of the block, below space for the rows of the past. `after` still has [C | F] from before the
    block.
    """
    past = prepared.weights.past
    past_rows, variance_outside = prepared.before.split_covariance()
    rows[: len(past_rows)] = np.sqrt(past) * past_rows
    variance_outside *= past
    # Now Σ is AᵀA plus `variance_outside` in all directions, with A the rows.
    F = after.C[:, config.components :]
    start = np.hstack([learned.C, F, learned.sketch])
    if prepared.has_known_gaps:
        after = add_block_to_entries(after, prepared, learned, config)
    elif prepared.scale is not None:
        squares = scaling.sum_squares(learned.Y)  # Σc y²
        after = replace(after, variances=past * after.entry_variances + squares / prepared.D**2)
    to_next_units: Array | float = 1.0  # a factor of each column
    if prepared.scale is not None:
        after, next_scale = scaling.rescale(after, after.entry_variances)
        D_ratio = next_scale / prepared.scale
        to_next_units = D_ratio.astype(config.dtype)
        variance_outside *= scaling.compute_variance_factor(D_ratio)
    is_small = after.count <= EXACT_UP_TO_MESSAGES or len(rows) <= EXACT_UP_TO_ROWS
    start_lacks_directions = past < EXACT_BELOW_PAST_SHARE or after.rank < config.components
    if is_small or start_lacks_directions:
        CF = ritz.decompose_rows(rows * to_next_units, config.limits)
    else:
        CF = ritz.update_on_rows(rows, start, config.limits, to_next_units)
    return replace(after, C=add_variance(CF, variance_outside))
