"""One pass over a stream, block by block: the step from one `State` to the next.

A block is learned in one of two ways.

- *Krasulina*: the messages one after the other by Algorithm 1, exactly (blocks.py), with η = 1/w, then the unit gauge
  (gauge.py). This is the way of a stream in full swing.
- *Absorb*: the factor and the block are stacked, and the leading K singular directions of both together are kept.
  It is exact as long as there are no more than K directions, and is used while that is so (so at the start, where
  the factor has no columns at all), and where little of the past is left: after a message that weighs much, because of
  a short half-life, or that dwarfs all before it.

Both give the same weighted covariance, mean and total variance; they differ in what is cut off.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streampca.pca import axes
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, update
from streampca.pca.blocked.update import Factor
from streampca.pca.state import State

BLOCK = 256  # messages
STRETCH = 64  # of them, taken through the factor at once; chosen by measurement, see docs/mathematics.md
WIDE, WIDE_STRETCH = 96, 128  # so many columns make longer ones pay
BLOCKS_BETWEEN_TURNS = 16


@dataclass(frozen=True)
class LearningConfig:
    """What shapes a model, beside the data."""

    dimensions: int  # d
    components: int  # k, those served
    oversampling: int = 10
    center: bool = True
    dtype: str = "float64"
    warm_up: int | None = None  # messages that the start waits for; None: max(200, 2K)

    @property
    def columns(self) -> int:
        """K: the columns of C, those served and a few more."""
        return min(self.components + self.oversampling, self.dimensions)

    @property
    def block(self) -> int:
        """Messages to a block, once there is a factor."""
        return BLOCK

    @property
    def stretch(self) -> int:
        """Messages to a stretch of a block."""
        return STRETCH if self.columns < WIDE else WIDE_STRETCH

    @property
    def start(self) -> int:
        """Messages held back until the first factor is made of them."""
        return max(200, 2 * self.columns) if self.warm_up is None else self.warm_up

    @property
    def largest_value(self) -> float:
        """Vectors with entries beyond this are refused: sums of their squares over a block would overflow."""
        return float(np.sqrt(np.finfo(self.dtype).max / (2**14 * self.dimensions)))

    @property
    def smallest_value(self) -> float:
        """Streams whose entries are all below this, or whose spread is, count as constant: their squares vanish."""
        return 16 * float(np.sqrt(np.finfo(self.dtype).tiny))

    def next_block(self, state: State) -> int:
        """How many messages the next block takes."""
        return self.block if state.count else max(self.start, 1)


def absorbed(state: State, config: LearningConfig) -> int:
    """How many messages the next block takes if it is sure to be absorbed; 0 if it may be learned by Algorithm 1."""
    return config.next_block(state) if state.rank < config.columns else 0


class Scores(NamedTuple):
    """How well each message of a block was known before it was learned, by the k served components."""

    residual: F64  # (B,): ‖r‖²
    norm: F64  # (B,): ‖v − m‖², m the running mean before the message


NO_SCORES = Scores(np.zeros(0), np.zeros(0))


def learn(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Scores]:
    """Learn V (n, d), each message's share of the past that it keeps in `retention` (n,), 1 for all of it.

    V is one block while nothing has been learned, later any number of `config.block` messages each, of which the last
    may be shorter. It must be finite and within `config.largest_value`. Neither how it lies in memory nor how many
    blocks it holds matters to the bits of the result. The messages of the very first block are not scored (there was
    no model yet): its scores are empty.
    """
    V, block, scores = update.frozen(V, config.dtype), config.block if state.count else len(V), [NO_SCORES]
    while len(V):
        learned = _krasulina(state, V, retention, config) or _absorb(state, V[:block], retention[:block], config)
        n = learned[0].count - state.count
        V, retention, state = V[n:], retention[n:], _upkeep(learned[0], state)
        scores.append(learned[1])
    return state, scores[-1] if len(scores) <= 2 else Scores(*map(np.concatenate, zip(*scores, strict=True)))


def centred(state: State, V: Array, weights: centring.Weights, config: LearningConfig) -> tuple[F64, F64]:
    """Weights (n,) in the running mean, zero where that is not taken off, and the mean before the blocks."""
    if not config.center:
        return np.zeros(len(V)), state.mean
    # A mean without weight may be any; the block's own keeps the squares free of a large offset.
    return weights.a, state.mean if state.weight else V.mean(axis=0, dtype=np.float64)


def _krasulina(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Scores] | None:
    """Algorithm 1 on each message and the unit gauge, for as many blocks as that goes; None where it does for none."""
    if state.rank < config.columns:
        return None
    most = config.block * (BLOCKS_BETWEEN_TURNS - state.blocks)
    V, weights = V[:most], centring.weights(state.weight, retention[:most], config.block)
    a, mean = centred(state, V, weights, config)
    factor, seen = update.learn(
        V,
        Factor(state.C, state.N, np.eye(state.rank), mean),
        update.Weights(weights.a, a, weights.c, weights.past),
        update.Steps(min(config.components, state.rank), config.block, config.stretch, unit=True),
    )
    if not len(seen.squares):
        return None
    return advanced(state, factor, len(seen.norm), seen.squares, weights), Scores(seen.residual, seen.norm)


def _absorb(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Scores]:
    """The leading K directions of the covariance of factor and block together."""
    weights = centring.weights(state.weight, retention, len(V))
    a, mean = centred(state, V, weights, config)
    Y = V - mean
    after = mean + (centring.shares(a)[0] @ Y if config.center else 0.0)
    centring.about(Y, a)
    norm, scores = (Y * Y).sum(axis=1), NO_SCORES
    if state.count:
        scores = Scores(np.clip(norm - axes.captured(Y @ state.C, state.N, config.components), 0.0, norm), norm)
    Y *= np.sqrt(weights.c * (1 - a))[:, None]
    F = np.hstack([np.sqrt(weights.past) * state.C, Y.T])
    C, variance = axes.leading(F, config.columns, config.dtype)
    squares = np.array([weights.c @ (norm * (1 - a))])
    return advanced(state, Factor(C, np.diag(variance), np.eye(len(variance)), after), len(V), squares, weights), scores


def advanced(state: State, factor: Factor, messages: int, squares: F64, weights: centring.Weights) -> State:
    """The state after so many messages that made this factor; `squares` is the weighted sum of ‖y‖² of each block."""
    total_variance = state.total_variance
    for past, sum_of_squares in zip(weights.past.tolist(), squares.tolist(), strict=False):
        total_variance = past * total_variance + sum_of_squares
    return State(
        factor.C,
        factor.N,
        factor.mean,
        float(weights.total[len(squares) - 1]),
        total_variance,
        state.count + messages,
        state.blocks + len(squares),
    )


def _upkeep(state: State, before: State) -> State:
    """From time to time, turn C to its principal axes: columns dwindled to rounding are dropped, N is made anew."""
    if state.rank == 0 or (state.blocks < BLOCKS_BETWEEN_TURNS and state.rank == before.rank):
        return state
    C, variance = axes.turn(state.C)
    return State(C, np.diag(variance), state.mean, state.weight, state.total_variance, state.count, 0)
