"""Learn a stream in one pass, block by block: from one `State` to the next.

Each message is shortened if it is absurdly far away, and centred (blocked/centring.py). Then

- *where d is small*, the covariance is updated as such: Σ ← past·Σ + Yᵀ diag(c) Y. In the unit gauge Algorithm 1 with
  K = d is just that, in every order of the messages;
- *else* Algorithm 1 moves C, message by message (blocked/recurrence.py), and a Rayleigh–Ritz step finds what it cannot
  see and sets the scale (blocked/ritz.py).

Messages are scored by the k leading axes at the start of their block; in the first case, at the last turn.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.linalg import LinAlgError

from streampca.pca import axes
from streampca.pca.arrays import F64, Array
from streampca.pca.blocked import centring, recurrence, ritz
from streampca.pca.blocked.centring import Weights
from streampca.pca.gaps import fill, rows_with_gaps
from streampca.pca.losses import NO_LOSSES, Losses
from streampca.pca.state import State

EXACT = 256  # dimensions up to which the covariance is kept: it is quicker, and no larger than factor and block
BLOCK, LONGEST_BLOCK = 256, 1024  # messages: about three times as many as C has columns is fastest
TURNED = 2**14  # messages from one turn of an exact covariance to its axes to the next; and then blocks are longest
_TINY = float(np.finfo(np.float64).tiny)
YOUNG = 1024  # messages until which blocks are decomposed whole: short streams end before Algorithm 1 has converged


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
        """K: columns of C, the served components and the oversampling; d where the covariance is kept."""
        columns = min(self.components + self.beyond, self.dimensions)
        return self.dimensions if self.dimensions <= EXACT else columns

    @property
    def beyond(self) -> int:
        """Columns that are learned beyond the served ones; by default as measured, see docs/mathematics.md."""
        return max(10, 3 * self.components // 5) if self.oversampling is None else self.oversampling

    @property
    def exact(self) -> bool:
        """Whether the covariance is kept: K = d."""
        return self.columns == self.dimensions

    @property
    def block(self) -> int:
        """Messages in every block but the first, and those of an exact covariance that is not young."""
        rows = BLOCK if self.exact else 1 << (3 * self.columns - 1).bit_length()
        return min(max(rows, BLOCK), LONGEST_BLOCK)

    @property
    def start(self) -> int:
        """Messages in the first block."""
        return max(200, 0 if self.exact else 2 * self.columns) if self.warm_up is None else self.warm_up

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
        """Entries that a message with gaps must have: with fewer, filling them is worse than taking the mean."""
        return min(max(2 * self.components, math.ceil(0.3 * self.dimensions)), self.dimensions)

    def next_block(self, count: int) -> int:
        """Messages in the block that follows the first `count` messages."""
        long = self.exact and count >= self.start + TURNED
        return (LONGEST_BLOCK if long else self.block) if count else max(self.start, 1)

    @property
    def rounding(self) -> float:
        """Variances below this share of the largest are rounding errors."""
        return 1e-6 if self.dtype == "float32" else 1e-13


def learn(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn V (n, d), cut into blocks from its first row on; the last block may be shorter.

    `retention` (n,) holds each message's λ, the share of the past that it keeps. V must be finite and within
    `config.largest_value`, except for gaps with `config.impute`. Neither its memory layout nor the number of blocks in
    one call changes a bit of the result. The first block has no losses, as there was no model to predict it.
    """
    V, losses = np.asarray(V, config.dtype), [NO_LOSSES]
    while len(V):
        n = min(config.next_block(state.count), len(V))
        state, of_block = _learn_block(state, V[:n], retention[:n], config)
        V, retention = V[n:], retention[n:]
        losses.append(of_block)
    return state, losses[-1] if len(losses) <= 2 else Losses(*map(np.concatenate, zip(*losses, strict=True)))


def _learn_block(state: State, V: Array, retention: F64, config: LearningConfig) -> tuple[State, Losses]:
    """Learn one block, which may have gaps: filled, they cost no second algorithm."""
    weights = centring.weights(state.weight, retention, config.center)
    surplus, gaps = np.zeros(len(V)), state.gaps and state.gaps.times(weights.past)
    if config.impute:
        if config.center:
            state = fill.initialise_new_means(state, V)
        if rows_with_gaps(V).any():
            V, surplus, gaps = fill.fill(state, V, weights, config.components, config.center)
    block = centring.centre(V, state.mean, state.total_variance, weights, smallest=config.smallest_value**2)
    after = replace(
        state,
        mean=block.mean,
        weight=weights.total,
        total_variance=max(block.total_variance - float(weights.c * (1 - weights.a) @ surplus), 0.0),
        count=state.count + len(V),
        shortened=state.shortened + block.shortened,
        gaps=gaps,
    )
    P = (block.Y @ state.C).astype(np.float64, copy=False)
    losses = _losses(state, P, block.norm, weights, surplus, config) if state.count else NO_LOSSES
    return (_summed if config.exact else _moved)(after, block.Y, P, weights, config), losses


def _summed(state: State, Y: Array, P: F64, weights: Weights, config: LearningConfig) -> State:
    """The covariance after the centred messages Y (n, d), which are overwritten, and its axes now and then."""
    Y *= np.sqrt(weights.c)[:, None].astype(Y.dtype, copy=False)
    before = state.C @ state.C.T if state.covariance is None else state.covariance  # None: empty, or just merged
    covariance = weights.past * before.astype(np.float64, copy=False) + Y.T @ Y
    state, blocks = replace(state, covariance=covariance), -(-max(state.count - config.start, 0) // config.block)
    turns = TURNED // config.block
    young = blocks < turns and blocks & (blocks - 1) == 0  # a power of two: axes change quickly at first
    due = blocks % turns < -(-len(Y) // config.block)
    return axes.turned(state, config.components) if young or due else state


def _moved(state: State, Y: Array, P: F64, weights: Weights, config: LearningConfig) -> State:
    """Algorithm 1 on C, and the Rayleigh–Ritz step; P (n, r) is Y [C | F]."""
    C, variance, K, r = state.C, state.variance, min(config.columns, state.rank), state.rank
    G = (Y @ Y.T).astype(np.float64, copy=False)
    rows, limit = ritz.rows(variance, P, G, weights.c, weights.past), config.columns + ritz.SPARE
    coefficients = None
    if r and state.count > YOUNG:
        with suppress(LinAlgError):  # C has lost a column
            moved = _algorithm1(P[:, :K], G, variance[:K], r, weights.eta)
            coefficients = ritz.restricted(rows, moved, limit, config.rounding)
    if coefficients is None:
        coefficients = ritz.strongest(rows, limit, config.rounding)
    coefficients = coefficients.astype(C.dtype, copy=False)
    C = C @ coefficients[:r] + Y.T @ coefficients[r:]
    after = replace(state, C=C)
    known = int(np.sum(after.variance > config.smallest_value**2))
    return after if known == C.shape[1] else replace(state, C=np.ascontiguousarray(C[:, :known]))


def _algorithm1(P: F64, G: F64, variance: F64, r: int, eta: F64) -> F64:
    """Coefficients (r + n, K) of C after n messages: of the r columns [C | F] before, and of the messages."""
    X, Z, _, _ = recurrence.learn(P, G, np.diag(1 / variance), eta)
    K = len(variance)
    moved = np.zeros((r + len(P), K))
    moved[:K], moved[r:] = np.eye(K) - X.T @ Z, Z
    return moved


def _losses(state: State, P: F64, norm: F64, weights: Weights, surplus: F64, config: LearningConfig) -> Losses:
    """The losses of messages with these P = Y [C | F] and ‖v − m‖², by the k leading axes of the state."""
    k = min(config.components, state.rank)
    explained = ((P[:, :k] / np.sqrt(state.variance[:k])) ** 2).sum(axis=1) / np.maximum(1 - weights.a, _TINY)
    outside = 1 - config.components / config.dimensions
    norm = np.maximum(norm - surplus, 0.0)
    return Losses(np.clip(norm + surplus * (1 - outside) - explained, 0.0, norm), norm)
