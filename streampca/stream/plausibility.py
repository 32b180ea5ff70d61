"""Rejects vectors that are absurdly far from the others, as `implausible`: one of them could ruin a model for good.

A record is judged before any of its vectors is learned, by the partition's state after its last whole block. So the
judgement, like the fold, is a function of the partition's records, whatever the batches in which they arrive.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.scores import Scores
from streampca.stream.decoded import Reject
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.record import Vectors

_ROUNDING = 1e-9  # deviations that are smaller, relative to the mean, may be rounding of a constant stream
_ROWS = 64  # vectors whose distances are computed at once, so that little memory is needed


class Learned(NamedTuple):
    """A fold after records, the scores of its new blocks, and all records that are not in it, in order."""

    fold: Fold
    scores: list[Scores]
    rejects: list[Reject]


def learn(fold: Fold, event: Vectors, fold_config: FoldConfig, factor: float) -> Learned:
    """Learn the records of an event without the implausible ones; factor 0: learn all of them.

    A record is implausible if a vector in it is farther from the running mean than `factor` times the usual distance.
    """
    V, _, rejects, counts = event.decoded
    if not factor or _surely_plausible(fold, V, fold_config, factor):
        return Learned(*fold.learn(V, event.timestamps, event.next, fold_config, counts), rejects)
    firsts, done = np.cumsum(counts) - counts, 0
    scores: list[Scores] = []
    implausible: list[Reject] = []
    while done < len(counts):
        room = fold_config.learning.next_block(fold.state) - len(fold.pending)
        end = int(np.searchsorted(firsts, firsts[done] + room))  # the records that begin within the next block
        part = _Part(V[firsts[done] : firsts[end - 1] + counts[end - 1]], counts[done:end])
        good, found = part.judge(fold, factor)
        implausible += [Reject(int(event.decoded.places[done + i]), "implausible", text) for i, text in found]
        fold, new = fold.learn(
            part.vectors[np.repeat(good, part.counts)],
            event.timestamps[done:end][good],
            fold.position,
            fold_config,
            part.counts[good],
        )
        scores, done = scores + new, end
    return Learned(fold.at(event.next), scores, sorted([*rejects, *implausible]))


class _Part(NamedTuple):
    """Consecutive records that are judged by the same state."""

    vectors: Array  # (n, d)
    counts: NDArray[np.int64]  # (m,): vectors of each record

    def judge(self, fold: Fold, factor: float) -> tuple[NDArray[np.bool_], list[tuple[int, str]]]:
        """Which records are plausible, and the place of each other one with what is wrong with it."""
        usual = usual_distance(fold)
        if math.isinf(usual):
            return np.ones(len(self.counts), np.bool_), []
        firsts = np.cumsum(self.counts) - self.counts
        farthest = np.maximum.reduceat(_distances(self.vectors, fold.state.mean), firsts)
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


def _surely_plausible(fold: Fold, V: Array, fold_config: FoldConfig, factor: float) -> bool:
    """Whether no vector can be implausible, wherever mean and usual distance move meanwhile: one cheap pass over V.

    The mean stays among the vectors and itself; the mean square distance shrinks at most by its share of messages.
    """
    stats, pending = fold.stats, fold.pending
    with np.errstate(over="ignore"):
        squares = float(np.vdot(V, V)) + float(np.vdot(pending, pending))
    largest = math.sqrt(squares) + fold_config.learning.smallest_value * math.sqrt(V.size + pending.size)
    farthest = _length(fold.state.mean) + 2 * largest
    messages = stats.scored + len(V) + len(pending)
    return 2 * farthest <= factor * math.sqrt(stats.norm * stats.scored / max(messages, 1))  # 2: for rounding


def _distances(V: Array, mean: F64) -> F64:
    """‖v − mean‖ of every row of V (n, d)."""
    parts = (V[i : i + _ROWS] - mean for i in range(0, len(V), _ROWS))
    distances: F64 = np.sqrt(np.concatenate([(Y * Y).sum(axis=1) for Y in parts]))
    return distances


def _length(mean: F64) -> float:
    return math.sqrt(float((mean * mean).sum()))


def _text(distance: float, usual: float, factor: float) -> str:
    return (
        f"its distance from the mean is {distance:.3g}, {distance / usual:.3g} times the usual one; "
        f"implausible_factor is {factor:g}"
    )
