"""Learn a stream in one pass, block by block: from one `State` to the next.

A block is learned in one of two ways.

- *By Algorithm 1* (blocked/update.py): each message in turn, exactly, with η = 1/w, then the unit gauge. This is the
  normal case.
- *By absorbing it*: factor and block are stacked side by side and the K leading singular directions are kept. This is
  exact as long as there are at most K directions. It is used for the first thousand messages, since a short stream ends
  before Algorithm 1 has converged; where the factor has fewer than K columns; where little of the past is left: after a
  message that weighs much, because the half-life is short, or that dwarfs everything before it; and where messages vary
  in a direction that the factor cannot see (blocked/watch.py).

From an absorbed block 32 more directions are kept and, after the start, up to 8 others that the block itself shows.
They are learned like the others, until half of the weight is younger than the block: by then a new direction is as
strong as the old ones.

Both estimate the same weighted covariance, mean and total variance; they differ only in the directions they drop.
"""

from dataclasses import dataclass, replace

import numpy as np

from streampca.pca import axes
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, gauge, update
from streampca.pca.blocked.centring import Weights
from streampca.pca.blocked.update import BlockConfig, Iterate
from streampca.pca.gaps import fill, rows_with_gaps
from streampca.pca.losses import NO_LOSSES, Losses
from streampca.pca.state import State

BLOCK = 256  # messages
STRETCH = 64  # messages of a block that share one pass over C; measured, see docs/mathematics.md
WIDE, WIDE_STRETCH = 96, 128  # from so many columns on, a longer stretch is faster
BLOCKS_BETWEEN_TURNS = 16
STARTS = 5  # first blocks' lengths that are absorbed: where a stream may end before Algorithm 1 has converged
SPARE = 32  # columns beyond K, after an absorbed block
NEW = 8  # further ones, after the start, for what that block shows


@dataclass(frozen=True)
class LearningConfig:
    """The parameters of a model, apart from the data."""

    dimensions: int  # d
    components: int  # k, those served
    oversampling: int | None = None  # None: max(10, 3k/5)
    center: bool = True
    dtype: str = "float64"
    warm_up: int | None = None  # messages in the first block; None: max(200, 2K)
    impute: bool = False  # whether messages may have gaps, entries that are NaN

    @property
    def columns(self) -> int:
        """K: regular columns of C, the served components and the oversampling."""
        return min(self.components + self.beyond, self.dimensions)

    @property
    def beyond(self) -> int:
        """Columns that are learned beyond the served ones; by default as measured, see docs/mathematics.md."""
        return max(10, 3 * self.components // 5) if self.oversampling is None else self.oversampling

    @property
    def block(self) -> int:
        """Messages in every block but the first."""
        return BLOCK

    @property
    def stretch(self) -> int:
        """Messages in a stretch of a block."""
        return STRETCH if self.columns < WIDE else WIDE_STRETCH

    @property
    def start(self) -> int:
        """Messages in the first block, from which the first factor is made."""
        return max(200, 2 * self.columns) if self.warm_up is None else self.warm_up

    @property
    def early(self) -> int:
        """Messages until which every block is absorbed."""
        return STARTS * self.start

    @property
    def settled(self) -> int:
        """Messages until which there may be columns beyond K from the start of the stream."""
        return 2 * self.early + (BLOCKS_BETWEEN_TURNS + 1) * self.block

    @property
    def largest_value(self) -> float:
        """Vectors with larger entries are rejected: sums of their squares over a block would overflow."""
        return float(np.sqrt(np.finfo(self.dtype).max / (2**14 * self.dimensions)))

    @property
    def smallest_value(self) -> float:
        """A stream whose entries or deviations are all smaller counts as constant: their squares underflow."""
        return 16 * float(np.sqrt(np.finfo(self.dtype).tiny))

    def next_block(self, state: State) -> int:
        """Messages in the next block."""
        return self.block if state.count else max(self.start, 1)


def learn(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn V (n, d), cut into blocks from its first row on; the last block may be shorter.

    `retention` (n,) holds each message's ρ, the share of the past that it keeps. V must be finite and within
    `config.largest_value`, except for gaps with `config.impute`. Neither its memory layout nor the number
    of blocks in one call changes a bit of the result.
    The first block of a stream has no scores, as there was no model to predict it.
    """
    V, scores = update.read_only(V, config.dtype), [NO_LOSSES]
    with_gaps = config.impute and rows_with_gaps(V).any()
    while len(V):
        block = config.next_block(state)
        if config.impute and config.center:
            state = fill.initialise_new_means(state, V[:block])
        learned = (
            _learn_block(state, V[:block], retention[:block], config)
            if with_gaps
            else _update(state, V, retention, config) or _absorb(state, V[:block], retention[:block], config)
        )
        n = learned[0].count - state.count
        V, retention, state = V[n:], retention[n:], _turned(learned[0], state, config)
        scores.append(learned[1])
    return state, scores[-1] if len(scores) <= 2 else Losses(*map(np.concatenate, zip(*scores, strict=True)))


def unseen_variance_ratio(state: State, config: LearningConfig) -> float:
    """Of the largest variance beyond the K regular columns to the smallest served one; 0 without any.

    Above 0: the stream has recently shown directions that the factor could not see. At 1 they are served. Also 0 where
    every block is absorbed: at the start of a stream, and with a very short half-life.
    """
    always = state.count < config.settled or state.weight * gauge.LARGEST_SHARE < 1
    if always or state.rank <= config.columns:
        return 0.0
    variance = np.sort(state.N.diagonal())[::-1]
    return float(variance[config.columns] / _smallest_served(state, config))


def _smallest_served(state: State, config: LearningConfig) -> float:
    """λ_k, the variance along the k-th axis; 0 with fewer axes."""
    return float(np.sort(state.N.diagonal())[-config.components]) if state.rank >= config.components else 0.0


def mean_before(state: State, V: Array, center: bool) -> F64:
    """The mean to subtract from the messages V (n, d) at first.

    At the start, where it has no weight, it may be anything: the mean of V keeps the squares free of a large offset.
    """
    return state.mean if state.weight or not center else V.mean(axis=0, dtype=np.float64)


def _learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block, which may have gaps: filled, they cost no second algorithm."""
    if not rows_with_gaps(V).any():
        return _update(state, V, retention, config) or _absorb(state, V, retention, config)
    weights = centring.weights(state.weight, retention, len(V), config.center)
    V, surplus, gaps = fill.fill(state, V, weights, config.components, config.center)
    after, (residual, norm) = _update(state, V, retention, config) or _absorb(state, V, retention, config)
    variance = after.total_variance - weights.c * (1 - weights.a) @ surplus
    if len(norm):
        norm, outside = np.maximum(norm - surplus, 0.0), 1 - config.components / config.dimensions
        residual = np.clip(residual - outside * surplus, 0.0, norm)
    return replace(after, total_variance=max(float(variance), 0.0), gaps=gaps), Losses(residual, norm)


def _update(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses] | None:
    """Learn as many leading blocks as possible by Algorithm 1 in the unit gauge; None if there is no such block."""
    if state.rank < config.columns or state.count < config.early:
        return None
    most = config.block * (BLOCKS_BETWEEN_TURNS - state.blocks)
    V, weights = V[:most], centring.weights(state.weight, retention[:most], config.block, config.center)
    after, scores, squares = update.learn(
        V,
        Iterate(state.C, state.N, np.eye(state.rank), mean_before(state, V, config.center)),
        weights,
        BlockConfig(min(config.components, state.rank), config.block, config.stretch, unit=True),
    )
    return (advance(state, after, len(scores.norm), squares, weights), scores) if len(squares) else None


def _absorb(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block by keeping the leading directions of the covariance of factor and block together."""
    weights, m0 = centring.weights(state.weight, retention, len(V), config.center), mean_before(state, V, config.center)
    Y = V - m0
    mean = m0 + (weights.c @ Y if config.center else 0.0)
    centring.subtract_running_mean(Y, weights.a)
    norm, scores = (Y * Y).sum(axis=1), NO_LOSSES
    if state.count:
        explained = axes.explained_squares(Y @ state.C, state.N, config.components)
        scores = Losses(np.clip(norm - explained, 0.0, norm), norm)
    Y *= np.sqrt(weights.c * (1 - weights.a))[:, None]
    F = np.hstack([np.sqrt(weights.past) * state.C, Y.T])
    new, smallest = NEW if state.count >= config.early else 0, _smallest_served(state, config) * weights.c.sum()
    C, variance = axes.leading_and_new(F, state.rank, config.columns + SPARE, new, smallest, config.dtype)
    squares = np.array([weights.c @ (norm * (1 - weights.a))])
    after = Iterate(C, np.diag(variance), np.eye(len(variance)), mean)
    return replace(advance(state, after, len(V), squares, weights), older=1.0), scores


def advance(state: State, after: Iterate, messages: int, squares: F64, weights: Weights) -> State:
    """The state after so many messages; `squares` holds the weighted sum of ‖y‖² of each block."""
    total_variance, older, gaps = state.total_variance, state.older, state.gaps
    for past, sum_of_squares in zip(weights.past.tolist(), squares.tolist(), strict=False):
        total_variance, older = past * total_variance + sum_of_squares, past * older
        gaps = gaps and gaps.times(past)
    return State(
        after.C,
        after.N,
        after.mean,
        float(weights.total[len(squares) - 1]),
        total_variance,
        state.count + messages,
        state.blocks + len(squares),
        older,
        gaps,
    )


def _turned(state: State, before: State, config: LearningConfig) -> State:
    """Every 16 blocks: C turned to its principal axes, without columns that are only rounding, and N from C again.

    Columns beyond K are dropped when half of the weight is younger than the last block that was absorbed.
    """
    if state.rank == 0 or (state.blocks < BLOCKS_BETWEEN_TURNS and state.rank == before.rank):
        return state
    C, variance = axes.turn(state.C)
    if state.older <= 0.5:
        C, variance = np.ascontiguousarray(C[:, : config.columns]), variance[: config.columns]
    return replace(state, C=C, N=np.diag(variance), blocks=0)
