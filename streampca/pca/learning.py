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
from numpy.typing import NDArray

from streampca.pca import axes, blocks, centring
from streampca.pca.blocks import Factor
from streampca.pca.state import Array, State

F64 = NDArray[np.float64]

BLOCK = 256  # messages
STRETCH = 64  # of them, taken through the factor at once; chosen by measurement, see docs/mathematics.md
WIDE, WIDE_STRETCH = 96, 128  # so many columns make longer ones pay
LARGEST_SHARE = 1 / 64  # of the weight learned, that a message may have to be learned by Algorithm 1
BLOCKS_BETWEEN_TURNS = 16


@dataclass(frozen=True)
class Recipe:
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


class Scores(NamedTuple):
    """How well each message of a block was known before it was learned, by the k served components."""

    residual: F64  # (B,): ‖r‖²
    norm: F64  # (B,): ‖v − m‖², m the running mean before the message


NO_SCORES = Scores(np.zeros(0), np.zeros(0))


def learn(state: State, V: Array, retention: F64, recipe: Recipe) -> tuple[State, Scores]:
    """Learn one block V (B, d), each message's share of the past that it keeps in `retention` (B,), 1 for all of it.

    V must be finite and within `recipe.largest_value`. How it lies in memory does not matter to the bits of the
    result. The messages of the very first block are not scored (there was no model yet): its scores are empty.
    """
    weights = centring.weights(state.weight, retention)
    V = blocks.frozen(V, recipe.dtype)
    learned = None
    if state.rank == recipe.columns and weights.a.max() <= LARGEST_SHARE:
        learned = _krasulina(state, V, weights, recipe)
    if learned is None:
        learned = _absorb(state, V, weights, recipe)
    return _upkeep(learned[0], state), learned[1]


def centred(state: State, V: Array, weights: centring.Weights, recipe: Recipe) -> tuple[F64, F64]:
    """Weights (B,) in the running mean, zero where that is not taken off, and the mean before the block."""
    if not recipe.center:
        return np.zeros(len(V)), state.mean
    # A mean without weight may be any; the block's own keeps the squares free of a large offset.
    return weights.a, state.mean if state.weight else V.mean(axis=0, dtype=np.float64)


def _krasulina(state: State, V: Array, weights: centring.Weights, recipe: Recipe) -> tuple[State, Scores] | None:
    """Algorithm 1 on each message and the unit gauge; None where a message dwarfs the past."""
    a, mean = centred(state, V, weights, recipe)
    learned = blocks.learn(
        V,
        Factor(state.C, state.N, np.eye(state.rank), mean),
        blocks.Weights(weights.a, a, weights.c, weights.past),
        min(recipe.components, state.rank),
        recipe.stretch,
        unit=True,
    )
    if learned is None:
        return None
    factor, seen = learned
    scores = _scores(seen.norm / (1 - a), seen.captured / (1 - a))
    return advanced(state, factor.C, factor.N, factor.mean, seen.norm, weights), scores


def _absorb(state: State, V: Array, weights: centring.Weights, recipe: Recipe) -> tuple[State, Scores]:
    """The leading K directions of the covariance of factor and block together."""
    a, mean = centred(state, V, weights, recipe)
    Y = V - mean
    after = mean + (centring.shares(a)[0] @ Y if recipe.center else 0.0)
    centring.about(Y, a)
    norm = (Y * Y).sum(axis=1)
    scores = _scores(norm, axes.captured(Y @ state.C, state.N, recipe.components)) if state.count else NO_SCORES
    Y *= np.sqrt(weights.c * (1 - a))[:, None]
    C, variance = axes.leading(np.hstack([np.sqrt(weights.past) * state.C, Y.T]), recipe.columns, recipe.dtype)
    return advanced(state, C, np.diag(variance), after, norm * (1 - a), weights), scores


def advanced(state: State, C: Array, N: F64, mean: F64, norm: F64, weights: centring.Weights) -> State:
    """The state after a block of messages y with ‖y‖² = norm (B,) that made C, N = CᵀC and the running mean."""
    return State(
        C,
        N,
        mean,
        weights.total,
        float(weights.past * state.total_variance + weights.c @ norm),
        state.count + len(norm),
        state.blocks + 1,
    )


def _upkeep(state: State, before: State) -> State:
    """From time to time, turn C to its principal axes: columns dwindled to rounding are dropped, N is made anew."""
    if state.rank == 0 or (state.blocks < BLOCKS_BETWEEN_TURNS and state.rank == before.rank):
        return state
    C, variance = axes.turn(state.C)
    return State(C, np.diag(variance), state.mean, state.weight, state.total_variance, state.count, 0)


def _scores(norm: F64, captured: F64) -> Scores:
    return Scores(np.clip(norm - captured, 0.0, norm), norm)
