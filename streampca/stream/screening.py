"""Learns the records of an event without the implausible ones and, with a guard, without outliers.

A record is judged before any of its vectors is learned, by the partition's state after its last whole block. So the
judgement, like the fold, is a function of the partition's records, whatever the batches in which they arrive.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array
from streampca.pca.losses import Losses
from streampca.stream import plausibility
from streampca.stream.decoded import Reject
from streampca.stream.events import Vectors
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.guard import OUTLIER, Guard


class Screening(NamedTuple):
    """Which records are not learned."""

    implausible_factor: float = 1e4  # times the usual distance from the mean; 0: nothing is implausible
    outlier_p: float = 0.0  # records with a p up to it are outliers; 0: none is, and the fold has no guard


class Learned(NamedTuple):
    """A fold after records, the scores of its new blocks, and all records that are not in it, in order."""

    fold: Fold
    scores: list[Losses]
    rejects: list[Reject]


def learn(fold: Fold, event: Vectors, fold_config: FoldConfig, screening: Screening) -> Learned:
    """Learn the records of an event that are plausible and no outliers."""
    V, _, rejects, counts = event.decoded
    factor, outlier_p = screening
    if not outlier_p and fold.guard:
        fold = replace(fold, guard=None)
    if factor and plausibility.surely_plausible(fold, V, fold_config, factor):
        factor = 0.0
    if not factor and not outlier_p:
        return Learned(*fold.learn(V, event.timestamps, event.next, fold_config, counts), rejects)
    firsts, done = np.cumsum(counts) - counts, 0
    scores: list[Losses] = []
    refused: list[Reject] = []
    while done < len(counts):
        room = fold_config.learning.next_block(fold.state) - len(fold.pending)
        end = int(np.searchsorted(firsts, firsts[done] + room))  # the records that begin within the next block
        part = _Part(V[firsts[done] : firsts[end - 1] + counts[end - 1]], event.decoded.places[done:end],
                     event.timestamps[done:end], counts[done:end])  # fmt: skip
        if factor:
            part, found = _plausible(part, fold, factor)
            refused += found
        if outlier_p:
            fold, part, found = _guarded(part, fold, fold_config, outlier_p)
            refused += found
        fold, new = fold.learn(part.vectors, part.timestamps, fold.position, fold_config, part.counts)
        scores, done = scores + new, end
    return Learned(fold.at(event.next), scores, sorted([*rejects, *refused]))


class _Part(NamedTuple):
    """Consecutive records that are judged by the same state."""

    vectors: Array  # (n, d)
    places: NDArray[np.int64]  # (m,): of the records in the batch
    timestamps: NDArray[np.int64]  # (m,)
    counts: NDArray[np.int64]  # (m,): vectors of each record

    def only(self, good: NDArray[np.bool_]) -> "_Part":
        """The good ones of m records."""
        if good.all():
            return self
        rows = np.repeat(good, self.counts)
        return _Part(self.vectors[rows], self.places[good], self.timestamps[good], self.counts[good])


def _plausible(part: _Part, fold: Fold, factor: float) -> tuple[_Part, list[Reject]]:
    """The plausible records, and the others."""
    good, found = plausibility.judge(fold, part.vectors, part.counts, factor)
    return part.only(good), [Reject(int(part.places[i]), "implausible", text) for i, text in found]


def _guarded(part: _Part, fold: Fold, fold_config: FoldConfig, outlier_p: float) -> tuple[Fold, _Part, list[Reject]]:
    """The fold with the records' scores in its guard, the records that are no outliers, and the others."""
    guard = fold.guard or Guard()
    if not fold.state.count or not len(part.counts):  # there is nothing yet to judge by
        return replace(fold, guard=guard), part, []
    components = fold_config.learning.components
    guard, p, refused, causes = guard.judge(fold.state, components, part.vectors, part.counts, outlier_p)
    rejects = [Reject(int(part.places[i]), OUTLIER, _text(p[i], outlier_p, causes[i])) for i in causes]
    return replace(fold, guard=guard), part.only(~refused), rejects


def _text(p: float, outlier_p: float, causes: list[tuple[int, float]]) -> str:
    named = ", ".join(f"{dimension} ({100 * share:.0f} %)" for dimension, share in causes)
    return (
        f"only {100 * p:.2g} % of its partition's recent messages score as high, where outlier_p is {outlier_p:g}; "
        f"the dimensions {named} contribute most to its score"
    )
