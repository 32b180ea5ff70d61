"""Rejects vectors that are absurdly far from the others, as `implausible`: one of them could ruin a model for good.

A record is judged before any of its vectors is learned, by the partition's state after its last whole block. So the
judgement, like the fold, is a function of the partition's records, whatever the batches in which they arrive.
"""

import math

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.stream.fold import Fold, FoldConfig

_ROUNDING = 1e-9  # deviations that are smaller, relative to the mean, may be rounding of a constant stream
_ROWS = 64  # vectors whose distances are computed at once, so that little memory is needed


def judge(
    fold: Fold, V: Array, counts: NDArray[np.int64], factor: float
) -> tuple[NDArray[np.bool_], list[tuple[int, str]]]:
    """Which records of `counts` (m,) vectors each, V (n, d) together, are plausible.

    Also returns the place of each other one with what is wrong with it: a vector in it is farther from the running mean
    than `factor` times the usual distance.
    """
    usual = usual_distance(fold)
    if math.isinf(usual):
        return np.ones(len(counts), np.bool_), []
    farthest = np.maximum.reduceat(_distances(V, fold.state.mean), np.cumsum(counts) - counts)
    good = farthest <= factor * usual
    return good, [(int(i), _text(float(farthest[i]), usual, factor)) for i in np.flatnonzero(~good)]


def usual_distance(fold: Fold) -> float:
    """The root mean square distance of the partition's vectors from the running mean.

    Infinite, so that nothing is implausible, before the first block is learned and while all vectors have been equal.
    The larger of two estimates: of the model, which covers the first block but may forget, and of all scores since.
    With the first alone, a stream that pauses for many half-lives would be rejected when it resumes.
    """
    state = fold.state
    usual = math.sqrt(max(state.total_variance, fold.stats.norm))
    return usual if state.count and usual > _ROUNDING * _length(state.mean) else math.inf


def surely_plausible(fold: Fold, V: Array, fold_config: FoldConfig, factor: float) -> bool:
    """Whether no vector can be implausible, wherever mean and usual distance move meanwhile: one cheap pass over V.

    The mean stays among the vectors and itself; the mean square distance shrinks at most by its share of messages.
    """
    stats, pending = fold.stats, fold.pending
    with np.errstate(over="ignore"):
        squares = _squares(V) + _squares(pending)
    largest = math.sqrt(squares) + fold_config.learning.smallest_value * math.sqrt(V.size + pending.size)
    farthest = _length(fold.state.mean) + 2 * largest
    messages = stats.with_loss + len(V) + len(pending)
    return 2 * farthest <= factor * math.sqrt(stats.norm * stats.with_loss / max(messages, 1))  # 2: for rounding


def _squares(V: Array) -> float:
    """The sum of the squares of all entries that are not missing."""
    squares = float(np.vdot(V, V))
    return squares if not math.isnan(squares) else float(np.nansum(np.square(V)))


def _distances(V: Array, mean: F64) -> F64:
    """‖v − mean‖ of every row of V (n, d), along the entries that are not missing."""
    parts = (V[i : i + _ROWS] - mean for i in range(0, len(V), _ROWS))
    squares = [np.where(np.isnan(Y), 0.0, Y * Y).sum(axis=1) for Y in parts]
    distances: F64 = np.sqrt(np.concatenate(squares))
    return distances


def _length(mean: F64) -> float:
    return math.sqrt(float((mean * mean).sum()))


def _text(distance: float, usual: float, factor: float) -> str:
    return (
        f"its distance from the mean is {distance:.3g}, {distance / usual:.3g} times the usual one; "
        f"implausible_factor is {factor:g}"
    )
