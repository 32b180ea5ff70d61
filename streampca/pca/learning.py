"""Learn a stream in one pass, block by block: from one `State` to the next (docs/mathematics.md, section 4).

1. Algorithm 1 moves C through the block, message by message, which gives their losses (blocked/block.py).
2. The block enters Σ where that is kept. Elsewhere [C | F] and the block's rows stand in for it.
3. Rayleigh–Ritz makes the next [C | F] (blocked/ritz.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streampca.pca import missing
from streampca.pca.arrays import F64, Array, rows_with_missing
from streampca.pca.blocked import block, centring, ritz, triangle
from streampca.pca.blocked.centring import Weights
from streampca.pca.state import NO_LOSSES, Losses, State

LARGEST_COVARIANCE = 768  # dimensions up to which Σ is kept unless `oversampling` is given
GUARD, SPARE = 10, 40  # ℓ, columns of F: where Σ is kept, and elsewhere; measured, see docs/mathematics.md
LEARN_BLOCK, LONG_BLOCK = 256, 1024  # messages in a block of a young stream, and later
YOUNG = 4096  # messages: a young stream needs the latest axes more than speed
_LONGEST_FIRST_BLOCK = 2000  # messages, where entries are missing
WHOLE_UNTIL = 1024  # messages until which blocks are decomposed whole where Σ is not kept
SHORT_MEMORY = 0.5  # share of the past at the end of a block: of less, blocks are decomposed whole
_LARGE_ROW = 4096  # bytes of a message: beside Σ, 1,024 of larger ones would make checkpoints of more than 6 MB
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class LearningConfig:
    """The parameters of a model, apart from the data."""

    dimensions: int  # d
    components: int  # k, those served
    oversampling: int | None = None  # None: max(10, 3k/5)
    center: bool = True
    dtype: str = "float64"
    warm_up: int | None = None  # messages in the first block; None: max(200, 2K)
    impute: bool = False  # whether messages may lack entries, which are NaN

    @property
    def keeps_covariance(self) -> bool:
        """True if Σ is kept: up to 768 dimensions, or where it is no larger than the factor would be."""
        small = self.oversampling is None and self.dimensions <= LARGEST_COVARIANCE
        return small or self.components + self.beyond + SPARE >= self.dimensions

    @property
    def beyond(self) -> int:
        """Columns that C has beyond the served ones where Σ is not kept; the default is measured."""
        return max(10, 3 * self.components // 5) if self.oversampling is None else self.oversampling

    @property
    def columns(self) -> int:
        """K: columns of C."""
        return self.components if self.keeps_covariance else self.components + self.beyond

    @property
    def limits(self) -> ritz.Limits:
        """Which columns [C | F] has."""
        spare = GUARD if self.keeps_covariance else SPARE
        return ritz.Limits(min(self.columns + spare, self.dimensions), self.rounding, self.smallest_value)

    @property
    def start(self) -> int:
        """Messages in the first block."""
        return max(200, 2 * self.columns) if self.warm_up is None else self.warm_up

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

    def next_block(self, count: int) -> int:
        """Messages in the block that follows the first `count` messages."""
        if not count:
            return max(self.start, 1)
        if count < self.start + YOUNG:
            return LEARN_BLOCK
        large = self.keeps_covariance and np.dtype(self.dtype).itemsize * self.dimensions > _LARGE_ROW
        return LONG_BLOCK // 2 if large else LONG_BLOCK

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
        size = config.next_block(state.count) if state.count else first_block(new.V, config)
        missing = size - len(pending.V)
        if missing > len(new.V):
            return state, pending.followed_by(new), losses
        block, new = new.part(0, missing), new.part(missing, len(new.V))
        block, pending = pending.followed_by(block) if len(pending.V) else block, none
        if before_block:
            before_block(state, block.V)
        state, of_block = _learn_block(state, *block, config)
        losses.append(of_block)


def first_block(V: Array, config: LearningConfig) -> int:
    """Messages in the first block of a stream that begins with V (n, d); more than n if it lacks some.

    Where entries are missing it ends when every entry was seen as often as otherwise, at most at 2,000 messages:
    sensors may be off at first, and guesses of what has never been seen would stay in the covariance.
    """
    start = config.next_block(0)
    if not config.impute or len(V) < start:
        return start
    longest = max(start, _LONGEST_FIRST_BLOCK)
    seen = (~np.isnan(V[:longest])).cumsum(axis=0, dtype=np.int32).min(axis=1)
    return int(np.searchsorted(seen, start)) + 1 if seen[-1] >= start else longest


def _learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block, whose messages may lack entries: filled, they cost no second algorithm."""
    weights = centring.weights(state.weight, retention, config.center)
    surplus, shares = np.zeros(len(V)), state.missing and state.missing.times(weights.past)
    if config.impute:
        if config.center:
            state = missing.initialise_new_means(state, V)
        if rows_with_missing(V).any():
            V, surplus, shares = missing.fill(state, V, weights, config.components, config.center)
    past_rows = 0 if config.keeps_covariance else state.rank
    A = np.empty((past_rows + len(V), config.dimensions), config.dtype)
    learned = block.learn(
        V, state.C[:, : config.columns], state.mean, state.total_variance, weights, config.components,
        config.smallest_value**2, A[past_rows:],
    )  # fmt: skip
    after = replace(
        state,
        mean=learned.mean,
        weight=weights.total,
        total_variance=max(learned.total_variance - float(weights.c * (1 - weights.a) @ surplus), 0.0),
        count=state.count + len(V),
        clipped=state.clipped + learned.clipped,
        missing=shares,
        pinv_error=learned.pinv_error,
    )
    losses = _losses(learned, weights, surplus, config) if state.count else NO_LOSSES
    correct = _learn_covariance if config.keeps_covariance else _learn_factor
    return correct(after, learned, A, weights.past, config), losses


def _learn_covariance(state: State, learned: block.BlockResult, Y: Array, past: float, config: LearningConfig) -> State:
    """Σ with the rows Y of the block, and the next [C | F]."""
    d, F = config.dimensions, state.C[:, learned.C.shape[1] :]
    before = np.zeros(d * (d + 1) // 2) if state.covariance is None else state.covariance
    covariance, square = triangle.plus(before, past, (Y.T @ Y).astype(np.float64, copy=False))
    start = np.hstack([learned.C, F, learned.sketch])
    CF = ritz.on_covariance(square, start, config.limits) if state.rank else ritz.of_covariance(square, config.limits)
    return replace(state, C=CF.astype(config.dtype, copy=False), covariance=covariance)


def _learn_factor(state: State, learned: block.BlockResult, A: Array, past: float, config: LearningConfig) -> State:
    """The next [C | F] where Σ is not kept: from the rows A, those of the block below room for those of the past."""
    A[: state.rank], F = np.sqrt(past) * state.C.T, state.C[:, learned.C.shape[1] :]
    if state.count <= WHOLE_UNTIL or past < SHORT_MEMORY or state.rank < config.columns:
        return replace(state, C=ritz.strongest(A, config.limits))
    return replace(state, C=ritz.on_rows(A, learned.C, F, learned.sketch, config.limits))


def _losses(learned: block.BlockResult, weights: Weights, surplus: F64, config: LearningConfig) -> Losses:
    """The losses of a block; `surplus` (n,) is what filling has added to each squared distance from the mean."""
    explained = learned.explained / np.maximum(1 - weights.a, _TINY)
    outside = 1 - config.components / config.dimensions
    norm = np.maximum(learned.norm - surplus, 0.0)
    return Losses(np.clip(norm + surplus * (1 - outside) - explained, 0.0, norm), norm)
