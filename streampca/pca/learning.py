"""One pass over a stream, block by block: the step from one `State` to the next.

A block is learned in one of two ways.

- *Krasulina*: the messages one after the other by Algorithm 1, exactly (blocks.py), with η = 1/w, then the unit gauge
  (gauge.py). This is the way of a stream in full swing.
- *Absorb*: the factor and the block are stacked, and the leading K singular directions of both together are kept.
  It is exact as long as there are no more than K directions, and is used while that is so (so at the start, where
  the factor has no columns at all), and wherever the block outweighs the past: a half-life shorter than a block, or
  a message that dwarfs all before it.

Both give the same weighted covariance, mean and total variance; they differ in what is cut off.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca import axes, blocks, centring, gauge, products
from streampca.pca.state import Array, State

F64 = NDArray[np.float64]

BLOCK = 64  # messages; chosen by measurement, see docs/mathematics.md
WIDE, WIDE_BLOCK = 48, 128  # so many columns make blocks of so many messages pay: what costs K³ a block is then dear
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
        return BLOCK if self.columns < WIDE else WIDE_BLOCK

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
    """How well each message of a block was known before the block was learned, by the k served components."""

    residual: F64  # (B,): ‖r‖²
    norm: F64  # (B,): ‖v − m‖², m the running mean before the message


class Moments(NamedTuple):
    """A block in small matrices. L is that of centring.py; where the mean is not taken off it is the identity."""

    D: Array  # (n, B, w), panels of a matrix (B, d): the messages about the mean before the block
    mean: F64  # (d,): the mean after the block
    a: F64  # (B,): Y = diag(root) L D is what is learned
    root: F64  # (B,) = √(1−a)
    P: F64  # (B, r) = L D C
    G: F64  # (B, B) = L D Dᵀ Lᵀ


def learn(state: State, V: Array, retention: F64, recipe: Recipe) -> tuple[State, Scores]:
    """Learn one block V (B, d), each message's share of the past that it keeps in `retention` (B,), 1 for all of it.

    V must be finite and within `recipe.largest_value`. How it lies in memory does not matter to the bits of the
    result. The messages of the very first block are not scored (there was no model yet): its scores are empty.
    """
    weights = centring.weights(state.weight, retention)
    moments = moments_of(state, V, weights, recipe)
    factor = None
    if state.rank == recipe.columns and weights.past >= 0.5:
        factor = _krasulina(state, moments, weights)
    if factor is None:
        factor = _absorb(state, moments, weights, recipe)
    learned = advanced(state, *factor, moments, weights)
    return _upkeep(learned, state), _scores(state, moments, recipe)


def advanced(state: State, C: Array, N: F64, moments: Moments, weights: centring.Weights) -> State:
    """The state after a block that made C and N = CᵀC of the factor."""
    return State(
        C,
        N,
        moments.mean,
        weights.total,
        float(weights.past * state.total_variance + (weights.c * moments.root**2) @ moments.G.diagonal()),
        state.count + len(moments.a),
        state.blocks + 1,
    )


def moments_of(state: State, V: Array, weights: centring.Weights, recipe: Recipe) -> Moments:
    """The block V (B, d) about the running mean, seen from the factor of `state`."""
    V = np.require(V, recipe.dtype, ["C", "A"]).view()
    V.flags.writeable = False  # for compiled code a type of its own; so there is but one to compile, whoever made V
    a = weights.a if recipe.center else np.zeros(len(V))
    c = weights.c if recipe.center else a
    # A mean without weight may be any; the block's own keeps the squares free of a large offset.
    mean = state.mean if state.weight or not recipe.center else V.mean(axis=0, dtype=np.float64)
    D = products.panels(len(V), V.shape[1], V.dtype)
    after = centring.offsets(V, mean, c, D)
    P, G = products.seen(D, state.C)
    return Moments(D, after, a, np.sqrt(1 - a), centring.about(P, a), centring.about(centring.about(G, a).T, a))


def _krasulina(state: State, moments: Moments, weights: centring.Weights) -> tuple[Array, F64] | None:
    """C and N after Algorithm 1 on each message and the unit gauge; None where the block outweighs the past."""
    P, G = centring.scaled(moments.P, moments.G, moments.root)
    S = gauge.inverse(state.N)
    if S is None:
        return None
    block = blocks.run(P, G, S, state.N, weights.a)
    R = gauge.correction(block, P, S, state.N, weights.c, weights.past)
    if R is None:
        return None
    Pi, Z, N = gauge.corrected(block, R)
    return factor_after(state.C, Pi, moments, Z), N


def factor_after(C: Array, Pi: F64, moments: Moments, Z: F64) -> Array:
    """C Pi + YᵀZ (d, K), of the C before the block, Pi (K, K) and Z (B, K)."""
    Z = centring.spread(Z, moments.root, moments.a)
    return products.moved(C, Pi.astype(C.dtype, copy=False), moments.D, Z.astype(C.dtype, copy=False))


def _absorb(state: State, moments: Moments, weights: centring.Weights, recipe: Recipe) -> tuple[Array, F64]:
    """C and N of the leading K directions of the covariance of factor and block together."""
    Y = (np.sqrt(weights.c) * moments.root)[:, None] * centring.about(
        products.whole(moments.D, recipe.dimensions), moments.a
    )
    C, variance = axes.leading(np.hstack([np.sqrt(weights.past) * state.C, Y.T]), recipe.columns, recipe.dtype)
    return C, np.diag(variance)


def _upkeep(state: State, before: State) -> State:
    """From time to time, turn C to its principal axes: columns dwindled to rounding are dropped, N is made anew."""
    if state.rank == 0 or (state.blocks < BLOCKS_BETWEEN_TURNS and state.rank == before.rank):
        return state
    C, variance = axes.turn(state.C)
    return State(C, np.diag(variance), state.mean, state.weight, state.total_variance, state.count, 0)


def _scores(state: State, moments: Moments, recipe: Recipe) -> Scores:
    """‖v − m‖² − ‖projection on the k principal axes‖², by the factor at the start of the block.

    The first k columns of C would do in a steady stream (0.01 % too much loss on MNIST), but not in one that drifts (up
    to 5 %).
    """
    if not state.count:
        return Scores(np.zeros(0), np.zeros(0))
    norm = moments.G.diagonal().copy()
    captured = axes.captured(moments.P, state.N, recipe.components) if state.rank else np.zeros(len(norm))
    return Scores(np.clip(norm - captured, 0.0, norm), norm)
