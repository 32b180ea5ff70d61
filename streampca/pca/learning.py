"""Learn a stream in one pass, block by block: from one `State` to the next (docs/mathematics.md, section 4).

1. Algorithm 1 moves C through the block, message by message, which gives their losses (blocked/block.py).
2. If Σ is kept, the block is added to it. Otherwise Σ is approximated by [C | F], by the mean variance outside of its
   columns, and by the rows of the block.
3. Rayleigh–Ritz makes the next [C | F] (blocked/ritz.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streampca.pca import gaps, missing, scaling
from streampca.pca.arrays import F64, Array, as_kernel_input, packed_diagonal, rows_with_missing
from streampca.pca.blocked import block, centring, ritz, triangle
from streampca.pca.state import NO_LOSSES, Losses, State, add_variance

LARGEST_COVARIANCE = 768  # dimensions up to which Σ is kept
GUARD = 10  # columns of F if Σ is kept; measured, see docs/mathematics.md
SPARE = 40  # fewest columns of F if Σ is not kept; measured, see docs/mathematics.md
YOUNG = 4096  # messages: a younger stream needs the latest axes more than speed
OLD = 2**15  # messages from which a stream may have the longest blocks
LEARN_BLOCK = 256  # messages in a block of a young stream
LONG_BLOCK = 1024  # messages in a block of a stream that is not young
LONGEST_BLOCK = 2048  # messages in a block of an old stream, if its vectors are short or its columns many
_SHORT = 3072  # bytes: a longest block of such vectors takes no more memory than a long block of 768 doubles each
_WIDE = 512  # columns whose decomposition takes longer than learning a block
# If Σ is not kept, the rows of past and block are usually approximated from a sketch. They are decomposed exactly:
WHOLE_UNTIL = 1024  # … up to this number of messages
SHORT_MEMORY = 0.5  # … if the past has a smaller share than this at the end of the block
FEW_ROWS = 448  # … if there are no more rows than this: a sketch says too little about them


@dataclass(frozen=True)
class LearningConfig:
    """The parameters of a model, apart from the data."""

    dimensions: int  # d
    components: int  # k, the components of the served model
    oversampling: int | None = None  # columns of F; None: 10 if Σ is kept, otherwise 40 + max(10, 3k/5)
    center: bool = True
    dtype: str = "float64"
    warm_up: int | None = None  # messages in the first block; None: max(200, 2k)
    impute: bool = False  # whether messages may lack entries, which are NaN
    standardize: bool = False  # whether to learn D(v − m), D = 1/standard deviation of each entry so far
    factor: bool = False  # never keep Σ: for tests and experiments in few dimensions; not a setting

    def __post_init__(self) -> None:
        if self.standardize and not self.center:
            raise ValueError("standardize divides by standard deviations about the mean, so center must be true")

    @property
    def keeps_covariance(self) -> bool:
        """Whether Σ is kept: up to 768 dimensions, or if it is hardly larger than the factor would be."""
        return not self.factor and self.dimensions <= max(LARGEST_COVARIANCE, self.components + self._spare)

    @property
    def columns(self) -> int:
        """The largest number of columns of [C | F]: C has the k that are served, F the rest."""
        spare = self.oversampling
        if spare is None:
            spare = GUARD if self.keeps_covariance else self._spare
        return min(self.components + spare, self.dimensions)

    @property
    def _spare(self) -> int:
        """The number of columns of F if Σ is not kept; measured."""
        return SPARE + max(10, 3 * self.components // 5)

    @property
    def limits(self) -> ritz.Limits:
        """Which axes become columns of [C | F]."""
        return ritz.Limits(columns=self.columns, rounding=self.rounding, smallest=self.smallest_value)

    @property
    def start(self) -> int:
        """The number of messages in the first block."""
        return max(200, 2 * self.components) if self.warm_up is None else self.warm_up

    @property
    def largest_value(self) -> float:
        """The largest entry that a vector may have: sums of larger squares over a block would overflow."""
        return float(np.sqrt(np.finfo(self.dtype).max / (2**14 * self.dimensions)))

    @property
    def smallest_value(self) -> float:
        """The smallest deviation that counts: a stream whose deviations are all smaller is constant.

        Squares of smaller numbers would underflow.
        """
        return 16 * float(np.sqrt(np.finfo(self.dtype).tiny))

    @property
    def min_observed(self) -> int:
        """The fewest entries that an incomplete message may have.

        With fewer, the predicted entries would be farther off than the mean.
        """
        return min(max(2 * self.components, math.ceil(0.3 * self.dimensions)), self.dimensions)

    def next_block(self, weight: float) -> int:
        """Return the number of messages in the block that follows messages of this weight."""
        if not weight:
            return max(self.start, 1)
        if weight < self.start + YOUNG:
            return LEARN_BLOCK
        vector_bytes = self.dimensions * np.dtype(self.dtype).itemsize
        allows_longest = vector_bytes <= _SHORT or self.columns >= _WIDE
        return LONGEST_BLOCK if weight >= OLD and allows_longest else LONG_BLOCK

    @property
    def rounding(self) -> float:
        """The share of the largest variance below which a variance is a rounding error."""
        return 1e-7 if self.dtype == "float32" else 1e-13


class Messages(NamedTuple):
    """Messages in the order of the stream."""

    V: Array  # (n, d)
    retention: F64  # (n,): ρ, the share of the past that each message keeps

    def part(self, start: int, end: int) -> "Messages":
        """Return the messages start … end−1, as views."""
        return Messages(self.V[start:end], self.retention[start:end])

    def followed_by(self, later: "Messages") -> "Messages":
        """Return copies of these messages and of `later`, in this order."""
        return Messages(np.concatenate([self.V, later.V]), np.concatenate([self.retention, later.retention]))


BeforeBlock = Callable[[State, Array], object]  # called before a block is learned, with the state and the block (n, d)


def learn(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn V (n, d) in blocks, of which the last may be shorter; return the next state and the losses.

    `retention` (n,) holds each message's ρ. V must be finite and within `config.largest_value`; with `config.impute`
    entries may be missing. Neither its memory layout nor the number of blocks in one call changes a bit of the result.
    The first block of a stream has no losses, because there is no model to predict it.
    """
    new = Messages(np.asarray(V, config.dtype), retention)
    nothing_pending = new.part(0, 0)
    state, rest, losses = learn_whole_blocks(config, state, nothing_pending, new)
    if len(rest.V):
        state, block_losses = _learn_block(state, *rest, config)
        losses.append(block_losses)
    return state, Losses(*map(np.concatenate, zip(NO_LOSSES, *losses, strict=True)))


def learn_whole_blocks(
    config: LearningConfig, state: State, pending: Messages, new: Messages, before_block: BeforeBlock | None = None
) -> tuple[State, Messages, list[Losses]]:
    """Learn the pending messages and then the new ones, as far as they fill whole blocks.

    Returns the state, the messages that are still pending, and the losses of each block. Since an incomplete block
    waits for more messages, the sizes of batches change no bit. New messages are copied only if pending ones precede
    them in a block, in the first block of a stream, and if they remain pending.
    """
    nothing_pending = pending.part(0, 0)
    losses = list[Losses]()
    if not state.count:
        new = pending.followed_by(new)
        pending = nothing_pending
    while True:
        needed = config.next_block(state.weight) - len(pending.V)
        if needed > len(new.V):
            return state, pending.followed_by(new), losses
        messages = new.part(0, needed)
        new = new.part(needed, len(new.V))
        if len(pending.V):  # otherwise a copy would take time and memory for nothing
            messages = pending.followed_by(messages)
            pending = nothing_pending
        if before_block:
            before_block(state, messages.V)
        state, block_losses = _learn_block(state, *messages, config)
        losses.append(block_losses)


def _learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block V (n, d), in which entries may be missing; return the next state and the losses.

    Missing entries are filled first, so that all messages are learned by the same algorithm.
    """
    d = config.dimensions
    past_rows = 0 if config.keeps_covariance else state.rank
    A = np.empty((past_rows + len(V), d), config.dtype)
    block_rows = A[past_rows:]  # filled in by `block.learn`
    has_gaps = config.impute and bool(rows_with_missing(V).any())
    # If an entry of the block began late, messages are clipped by the weight since then.
    is_shown = ~np.isnan(V).all(axis=0) if has_gaps else np.full(d, True)
    weights = centring.compute_weights(state, retention, config.center, state.age(np.asarray(is_shown)))
    if has_gaps or state.known is not None:
        state, V = missing.prepare_new_entries(state, V, config.center)
    origin = state.mean
    scale = scaling.choose_scale(state, V) if config.standardize else None
    if scale is not None:  # messages become D(v − m), in the memory of the rows that will replace them
        V = scaling.standardise(as_kernel_input(V), origin, scale, block_rows)
        state = replace(state, mean=np.zeros(d))
    # Missing entries are filled, and their shares are updated.
    filled = None
    missing_shares = None if state.missing is None else weights.past * state.missing
    if has_gaps:
        missing_before = 0.0 if missing_shares is None else missing_shares
        missing_shares = missing_before + weights.c @ np.isnan(V)
        filled = missing.fill(state, V, weights, config.components, config.center)
        V = filled.V
    # Algorithm 1 learns the rows.
    learned = block.learn(
        V,
        C=state.C[:, : config.components],
        mean=state.mean,
        total_variance=state.total_variance,
        weights=weights,
        smallest=config.smallest_value**2,
        Y=block_rows,
    )
    after = replace(
        state,
        mean=learned.mean if scale is None else origin + learned.mean / scale,
        weight=weights.total,
        total_variance=learned.total_variance,
        count=state.count + len(V),
        concentration=weights.concentration,
        clipped=state.clipped + int((learned.kept < 1).sum()),
        missing=missing_shares,
        pinv_error=learned.pinv_error,
    )
    losses = _compute_losses(learned, weights, config) if state.count else NO_LOSSES
    # The block is added to Σ, or the next [C | F] is found without Σ.
    gap_block = None
    if filled or state.known is not None:
        predictor = filled.predictor if filled else missing.make_predictor(state, config.components)
        gap_block = gaps.BlockWithGaps(
            before=state, filled=filled, predictor=predictor, learned=learned, weights=weights
        )
    if config.keeps_covariance:
        after = _learn_covariance(after, learned, gap_block, origin, scale, weights.past, config)
    else:
        # The past has the variance `outside` in all directions. Its rows in A hold what its columns have beyond that.
        outside = state.variance_outside
        A[:past_rows] = np.sqrt(weights.past) * add_variance(state.C, -outside).T
        outside *= weights.past
        after = _learn_factor(after, learned, A, gap_block, origin, scale, weights.past, outside, config)
    return after, losses


def _learn_covariance(
    state: State, learned: block.BlockResult, gap_block: gaps.BlockWithGaps | None, origin: F64, scale: F64 | None,
    past: float, config: LearningConfig,
) -> State:  # fmt: skip
    """Add the block to Σ and find the next [C | F], if Σ is kept; return the state with both.

    `state` has everything else of the state after the block. The rows of the block are in units of D = `scale` (d,), if
    the stream is standardised, about the mean `origin` (d,). `past` is the share of the past at the end of the block.
    """
    d = config.dimensions
    product = triangle.gram(learned.Y)
    before = np.zeros(d * (d + 1) // 2) if state.covariance is None else state.covariance
    # Half as many directions as in the sketch are enough, because Σ is multiplied twice.
    sketch = learned.sketch[:, ::2] + learned.sketch[:, 1::2]
    start = np.hstack([learned.C, state.C[:, config.components :], sketch])
    units = np.ones(d) if scale is None else scale
    new_units = units
    step = None
    if gap_block:
        step = gaps.compute_pair_step(gap_block, before, product, units)
        mean = _move_mean(gap_block, step.moved, origin, scale, config.largest_value)
        state = replace(state, mean=mean, known=step.known, total_variance=float(step.variance.sum()))
    if scale is not None:
        if step:
            variances = step.variance / scale**2
        else:
            variances = past * before[packed_diagonal(d)] + product.diagonal() / scale**2
        state, new_units = scaling.rescale(replace(state, covariance=None, variances=variances))
        start = start * (new_units / scale)[:, None].astype(config.dtype)
    if step:
        square = np.empty((d, d), config.dtype)
        covariance = step.apply(units, square, new_units)
    else:
        covariance, square = triangle.add_block(before, past, product, 1.0 / units, new_units)
    if state.rank:
        CF = ritz.update_on_covariance(square, start, config.limits)
    else:
        CF = ritz.decompose_covariance(square, config.limits)
    return replace(state, C=CF.astype(config.dtype, copy=False), covariance=covariance, variances=None)


def _move_mean(gap_block: gaps.BlockWithGaps, moved: F64, origin: F64, scale: F64 | None, largest: float) -> F64:
    """Move the mean before a block with gaps by `moved` (d,), and limit it to ±`largest`, as entries are.

    If the stream is standardised, `moved` is in units of D = `scale`, and the mean before is `origin` in units of v.
    """
    mean = gap_block.predictor.mean + moved
    return np.clip(mean if scale is None else origin + mean / scale, -largest, largest)


def _learn_factor(
    state: State, learned: block.BlockResult, A: Array, gap_block: gaps.BlockWithGaps | None, origin: F64,
    scale: F64 | None, past: float, outside: float, config: LearningConfig,
) -> State:  # fmt: skip
    """Find the next [C | F] if Σ is not kept; return the state with it.

    The covariance is AᵀA, where A holds the rows of the past above those of the block, and the variance `outside` in
    all directions. The other parameters are those of `_learn_covariance`.
    """
    before = np.zeros(config.dimensions) if state.variances is None else state.variances
    step = None
    if gap_block:
        step = gaps.compute_entry_step(gap_block)
        mean = _move_mean(gap_block, step.moved, origin, scale, config.largest_value)
        state = replace(state, mean=mean, known=step.known)
    start = np.hstack([learned.C, state.C[:, config.components :], learned.sketch])
    units: Array | float = 1.0
    if scale is not None:
        squares = scaling.sum_squares(learned.Y)
        variances = past * before + squares / scale**2
        if gap_block and step:
            variances = gaps.compute_next_variances(gap_block, step, squares, before, scale)
        state, new_scale = scaling.rescale(replace(state, variances=variances))
        units = (new_scale / scale).astype(config.dtype)
        outside *= scaling.change_of_variances(new_scale / scale)
    has_little = state.count <= WHOLE_UNTIL or len(A) <= FEW_ROWS
    if has_little or past < SHORT_MEMORY or state.rank < config.components:
        C = ritz.decompose_rows(A * units, config.limits)
    else:
        C = ritz.update_on_rows(A, start, config.limits, units)
    return replace(state, C=add_variance(C, outside))


def _compute_losses(learned: block.BlockResult, weights: centring.Weights, config: LearningConfig) -> Losses:
    """Compute the losses of a block from what C explained of each row."""
    explained = np.nan_to_num(learned.explained, nan=0.0)  # NaN if C has shrunk until (CᵀC)⁻¹ overflows
    explained /= np.maximum(1 - weights.a, np.finfo(np.float64).tiny)  # a row is √(1−a) times v − m
    residual = np.clip(learned.norm - explained, 0.0, learned.norm)
    return Losses(residual=residual, norm=learned.norm)
