"""Learn a stream in one pass, block by block: from one `State` to the next (docs/mathematics.md, section 4).

1. Algorithm 1 moves C through the block, message by message, which gives their losses (blocked/block.py).
2. The block enters Σ where that is kept. Elsewhere [C | F], the mean variance outside of its columns, and the block's
   rows stand in for it.
3. Rayleigh–Ritz makes the next [C | F] (blocked/ritz.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streampca.pca import gaps, missing, scaling
from streampca.pca.arrays import F64, Array, of_one_type, packed_diagonal, rows_with_missing
from streampca.pca.blocked import block, centring, ritz, triangle
from streampca.pca.state import NO_LOSSES, Losses, State, with_added_variance

LARGEST_COVARIANCE = 768  # dimensions up to which Σ is kept
GUARD, SPARE = 10, 40  # columns of F: where Σ is kept, and elsewhere the fewest; measured, see docs/mathematics.md
LEARN_BLOCK, LONG_BLOCK, LONGEST_BLOCK = 256, 1024, 2048  # messages in a block of a young stream, and later
YOUNG, OLD = 4096, 2**15  # messages: a young stream needs the latest axes more than speed
_SHORT = 3072  # bytes of a vector of which the longest blocks take no more memory than others of one of 768 doubles
_WIDE = 512  # columns whose decomposition takes longer than learning a block
WHOLE_UNTIL = 1024  # messages until which blocks are decomposed whole where Σ is not kept
SHORT_MEMORY = 0.5  # share of the past at the end of a block: of less, blocks are decomposed whole
FEW_ROWS = 448  # of past and block: fewer are decomposed whole, as sketches say too little of them


@dataclass(frozen=True)
class LearningConfig:
    """The parameters of a model, apart from the data."""

    dimensions: int  # d
    components: int  # k, those served
    oversampling: int | None = None  # columns of F; None: 10 where Σ is kept, else 40 + max(10, 3k/5)
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
        """True if Σ is kept: up to 768 dimensions, or where it is hardly larger than the factor would be."""
        return not self.factor and self.dimensions <= max(LARGEST_COVARIANCE, self.components + self._spare)

    @property
    def columns(self) -> int:
        """Columns of [C | F], at most: C has the k served ones, F the others."""
        spare = GUARD if self.keeps_covariance else self._spare
        return min(self.components + (spare if self.oversampling is None else self.oversampling), self.dimensions)

    @property
    def _spare(self) -> int:
        """Columns of F where Σ is not kept; measured."""
        return SPARE + max(10, 3 * self.components // 5)

    @property
    def limits(self) -> ritz.Limits:
        """Which columns [C | F] has."""
        return ritz.Limits(self.columns, self.rounding, self.smallest_value)

    @property
    def start(self) -> int:
        """Messages in the first block."""
        return max(200, 2 * self.components) if self.warm_up is None else self.warm_up

    @property
    def largest_value(self) -> float:
        """Vectors with larger entries are rejected: sums of their squares over a block would overflow."""
        return float(np.sqrt(np.finfo(self.dtype).max / (2**14 * self.dimensions)))

    @property
    def smallest_value(self) -> float:
        """A stream whose entries or deviations are all smaller counts as constant: their squares underflow."""
        return 16 * float(np.sqrt(np.finfo(self.dtype).tiny))

    @property
    def min_observed(self) -> int:
        """Entries that an incomplete message must have: with fewer, filling them is worse than taking the mean."""
        return min(max(2 * self.components, math.ceil(0.3 * self.dimensions)), self.dimensions)

    def next_block(self, weight: float) -> int:
        """Messages in the block that follows messages of this weight."""
        if not weight:
            return max(self.start, 1)
        if weight < self.start + YOUNG:
            return LEARN_BLOCK
        is_longest = self.dimensions * np.dtype(self.dtype).itemsize <= _SHORT or self.columns >= _WIDE
        return LONGEST_BLOCK if weight >= OLD and is_longest else LONG_BLOCK

    @property
    def rounding(self) -> float:
        """Variances below this share of the largest are rounding errors."""
        return 1e-7 if self.dtype == "float32" else 1e-13


class Messages(NamedTuple):
    """Messages in the order of the stream."""

    V: Array  # (n, d)
    retention: F64  # (n,): ρ, the share of the past that each message keeps

    def part(self, start: int, end: int) -> "Messages":
        """Messages start … end−1."""
        return Messages(self.V[start:end], self.retention[start:end])

    def followed_by(self, later: "Messages") -> "Messages":
        """These messages and later ones, copied."""
        return Messages(np.concatenate([self.V, later.V]), np.concatenate([self.retention, later.retention]))


BeforeBlock = Callable[[State, Array], object]  # called with the state before a block, and the block (n, d)


def learn(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn V (n, d), cut into blocks from its first row on; the last block may be shorter.

    `retention` (n,) holds each message's ρ. V must be finite and within `config.largest_value`; with `config.impute`
    entries may be missing. Neither its memory layout nor the number of blocks in one call changes a bit of the result.
    The first block has no losses, as no model predicts it.
    """
    new = Messages(np.asarray(V, config.dtype), retention)
    state, rest, losses = learn_whole_blocks(config, state, new.part(0, 0), new)
    if len(rest.V):
        state, of_block = _learn_block(state, *rest, config)
        losses.append(of_block)
    return state, Losses(*map(np.concatenate, zip(NO_LOSSES, *losses, strict=True)))


def learn_whole_blocks(
    config: LearningConfig, state: State, pending: Messages, new: Messages, before_block: BeforeBlock | None = None
) -> tuple[State, Messages, list[Losses]]:
    """Learn the whole blocks among the pending messages and the new ones after them.

    Returns the state, the messages that are still pending, and the losses of each block: so the sizes of batches change
    no bit. Only the first block of a stream, one that begins with pending messages, and what remains are copied.
    """
    none, losses = pending.part(0, 0), list[Losses]()
    if not state.count:
        pending, new = none, pending.followed_by(new)
    while True:
        size = config.next_block(state.weight)
        missing = size - len(pending.V)
        if missing > len(new.V):
            return state, pending.followed_by(new), losses
        block, new = new.part(0, missing), new.part(missing, len(new.V))
        block, pending = pending.followed_by(block) if len(pending.V) else block, none
        if before_block:
            before_block(state, block.V)
        state, of_block = _learn_block(state, *block, config)
        losses.append(of_block)


def _learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block, whose messages may lack entries: filled, they cost no second algorithm."""
    d, past_rows = config.dimensions, 0 if config.keeps_covariance else state.rank
    A = np.empty((past_rows + len(V), d), config.dtype)
    has_gaps = config.impute and bool(rows_with_missing(V).any())
    shown = ~np.isnan(V).all(axis=0) if has_gaps else np.full(d, True)
    weights = centring.weights(state, retention, config.center, state.age(np.asarray(shown)))
    if has_gaps or state.known is not None:
        state, V = missing.begin(state, V, config.center)
    origin, scale = state.mean, scaling.scale_for(state, V) if config.standardize else None
    if scale is not None:  # from here on, messages are D(v − m), in the memory of the Y that will replace them
        V = scaling.standardised(of_one_type(V), origin, scale, A[past_rows:])
        state = replace(state, mean=np.zeros(d))
    filled = None
    lacking = None if state.missing is None else weights.past * state.missing
    if has_gaps:
        lacking = (0.0 if lacking is None else lacking) + weights.c @ np.isnan(V)
        filled = missing.fill(state, V, weights, config.components, config.center)
        V = filled.V
    C, smallest = state.C[:, : config.components], config.smallest_value**2
    learned = block.learn(V, C, state.mean, state.total_variance, weights, smallest, A[past_rows:])
    after = replace(
        state,
        mean=learned.mean if scale is None else origin + learned.mean / scale,
        weight=weights.total,
        total_variance=learned.total_variance,
        count=state.count + len(V),
        concentration=weights.concentration,
        clipped=state.clipped + int((learned.kept < 1).sum()),
        missing=lacking,
        pinv_error=learned.pinv_error,
    )
    losses = _losses(learned, weights, config) if state.count else NO_LOSSES
    of_gaps = None
    if filled or state.known is not None:
        predictor = filled.predictor if filled else missing.predictor(state, config.components)
        of_gaps = gaps.BlockWithGaps(before=state, filled=filled, predictor=predictor, learned=learned, weights=weights)
    if config.keeps_covariance:
        after = _learn_covariance(after, learned, of_gaps, origin, scale, weights.past, config)
    else:
        # The past has this variance in all directions, and its columns what they have more.
        outside = state.variance_outside
        A[:past_rows] = np.sqrt(weights.past) * with_added_variance(state.C, -outside).T
        outside *= weights.past
        after = _learn_factor(after, learned, A, of_gaps, origin, scale, weights.past, outside, config)
    return after, losses


def _learn_covariance(
    state: State, learned: block.BlockResult, of_gaps: gaps.BlockWithGaps | None, origin: F64, scale: F64 | None,
    past: float, config: LearningConfig,
) -> State:  # fmt: skip
    """Σ with the rows Y of the block, and the next [C | F]."""
    d, product = config.dimensions, triangle.of_rows(learned.Y)
    before = np.zeros(d * (d + 1) // 2) if state.covariance is None else state.covariance
    sketch = learned.sketch[:, ::2] + learned.sketch[:, 1::2]  # half as many do, as Σ is multiplied twice
    start = np.hstack([learned.C, state.C[:, config.components :], sketch])
    units = new_units = np.ones(d) if scale is None else scale
    step = None
    if of_gaps:
        step = gaps.pair_step(of_gaps, before, product, units)
        mean = _moved_mean(of_gaps, step.moved, origin, scale, config.largest_value)
        state = replace(state, mean=mean, known=step.known, total_variance=float(step.variance.sum()))
    if scale is not None:
        if step:
            variances = step.variance / scale**2
        else:
            variances = past * before[packed_diagonal(d)] + product.diagonal() / scale**2
        state, new_units = scaling.rescaled(replace(state, covariance=None, variances=variances))
        start = start * (new_units / scale)[:, None].astype(config.dtype)
    if step:
        square = np.empty((d, d), config.dtype)
        covariance = step.applied(units, square, new_units)
    else:
        covariance, square = triangle.plus(before, past, product, 1.0 / units, new_units)
    CF = ritz.on_covariance(square, start, config.limits) if state.rank else ritz.of_covariance(square, config.limits)
    return replace(state, C=CF.astype(config.dtype, copy=False), covariance=covariance, variances=None)


def _moved_mean(of_gaps: gaps.BlockWithGaps, moved: F64, origin: F64, scale: F64 | None, largest: float) -> F64:
    """The mean (d,) that has `moved` from the one before a block with gaps; at most `largest`, as entries are."""
    mean = of_gaps.predictor.mean + moved
    return np.clip(mean if scale is None else origin + mean / scale, -largest, largest)


def _learn_factor(
    state: State, learned: block.BlockResult, A: Array, of_gaps: gaps.BlockWithGaps | None, origin: F64,
    scale: F64 | None, past: float, outside: float, config: LearningConfig,
) -> State:  # fmt: skip
    """The next [C | F] where Σ is not kept: of the rows A, those of the past above those of the block.

    The covariance is AᵀA, and the variance `outside` of the past in all directions.
    """
    before = np.zeros(config.dimensions) if state.variances is None else state.variances
    step = None
    if of_gaps:
        step = gaps.entry_step(of_gaps)
        mean = _moved_mean(of_gaps, step.moved, origin, scale, config.largest_value)
        state = replace(state, mean=mean, known=step.known)
    start = np.hstack([learned.C, state.C[:, config.components :], learned.sketch])
    units: Array | float = 1.0
    if scale is not None:
        squares = scaling.squares(learned.Y)
        variances = past * before + squares / scale**2
        if of_gaps and step:
            variances = gaps.next_variances(of_gaps, step, squares, before, scale)
        state, new_scale = scaling.rescaled(replace(state, variances=variances))
        units = (new_scale / scale).astype(config.dtype)
        outside *= scaling.change_of_variances(new_scale / scale)
    few = state.count <= WHOLE_UNTIL or len(A) <= FEW_ROWS
    if few or past < SHORT_MEMORY or state.rank < config.components:
        C = ritz.strongest(A * units, config.limits)
    else:
        C = ritz.on_rows(A, start, config.limits, units)
    return replace(state, C=with_added_variance(C, outside))


def _losses(learned: block.BlockResult, weights: centring.Weights, config: LearningConfig) -> Losses:
    """The losses of a block."""
    explained = np.nan_to_num(learned.explained, nan=0.0)  # where C has shrunk until (CᵀC)⁻¹ overflows
    explained /= np.maximum(1 - weights.a, np.finfo(np.float64).tiny)
    return Losses(np.clip(learned.norm - explained, 0.0, learned.norm), learned.norm)
