"""Prepares the messages of a block for Algorithm 1: weighs and standardises them, and fills their missing entries."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from streampca.pca import scaling
from streampca.pca.arrays import F64, Array, as_kernel_input, find_incomplete_rows
from streampca.pca.blocked import centring
from streampca.pca.learning_config import LearningConfig
from streampca.pca.missing import Filled, fill_missing_entries, prepare_new_entries
from streampca.pca.pooled_moments import pool_shares
from streampca.pca.state import State


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
    def has_unknown_entries(self) -> bool:
        """Whether an entry is missing in this block, or was unknown for a part of the weight before the block."""
        return self.filled is not None or self.before.known is not None

    @property
    def mean_before(self) -> F64:
        """The mean before the block in the units of V, (d,). In a first block with gaps, EM has found it."""
        return self.filled.predictor.mean if self.filled else self.before.mean

    @property
    def eta(self) -> float:
        """η, the block's share of the weight."""
        return 1.0 - self.weights.past

    @property
    def D(self) -> F64:  # noqa: N802
        """One over the standard deviations of the entries before the block, (d,); ones if not standardised."""
        return np.ones(len(self.origin)) if self.scale is None else self.scale

    def in_units_of_data(self, mean: F64) -> F64:
        """Convert a mean in the units of V (d,) to the units of the data."""
        return mean if self.scale is None else self.origin + mean / self.scale


def prepare_block(
    state: State, V: Array, retention: F64, config: LearningConfig, standardised_out: Array
) -> PreparedBlock:
    """Prepare the messages V (n, d) that follow `state`.

    1. Weigh the messages.
    2. Clip outliers of entries that no earlier message has shown, and learn the means of these entries.
    3. Standardise the messages, if the stream is standardised. They are written to `standardised_out`.
    4. Fill in missing entries.

    In the code, `rows` are the messages after each step. `state_before` is `state` with its mean in the units of
    `rows`: 0 when the rows are standardised.
    """
    has_gaps = config.impute and bool(find_incomplete_rows(V).any())
    # 1. `compute_weights` also sets the limit beyond which outliers are clipped. The limit is lower if an entry of the
    # block was known for only a small share of the weight.
    smallest_known_share = 1.0
    if state.known is not None:  # None: every entry was always known
        is_in_block = ~np.isnan(V).all(axis=0)  # (d,): entries that some message of the block has
        smallest_known_share = float(state.known_shares[is_in_block].min(initial=1.0))
    weights = centring.compute_weights(state, retention, config.center, smallest_known_share)
    # 2.
    state_before = state
    rows = V
    if has_gaps or state.known is not None:
        state_before, rows = prepare_new_entries(state, V, config.center)  # sets the means of new entries
    # (d,): the weight of the messages of the block that lack each entry, as a share of the weight after the block
    missing_in_block: F64 | None = None
    if has_gaps:
        missing_in_block = weights.c @ np.isnan(rows)  # c: share of each message in the weight after the block
    # The share of each entry after the block: past_share · (share before) + missing_in_block
    missing_shares = pool_shares(
        before=state.missing,
        past_share=weights.past,
        added=missing_in_block,
        new_share=1.0,  # `missing_in_block` is already a share of the weight after the block
        if_none=0.0,  # None: no message lacks an entry
    )
    # 3.
    origin = state_before.mean
    scale = None
    if config.standardize:
        scale = scaling.choose_scale(state_before, rows)
        rows = scaling.standardise(as_kernel_input(rows), origin, scale, standardised_out)
        state_before = replace(state_before, mean=np.zeros(config.dimensions))  # the mean of the standardised rows
    # 4.
    filled = None
    if has_gaps:
        filled = fill_missing_entries(state_before, rows, weights, config.components, config.center)
        rows = filled.V
    return PreparedBlock(
        V=rows,
        before=state_before,
        weights=weights,
        origin=origin,
        scale=scale,
        filled=filled,
        missing_shares=missing_shares,
    )
