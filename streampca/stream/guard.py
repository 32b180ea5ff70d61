"""The guard keeps outliers out of a fold: records whose score is among the highest of their partition.

A record is scored by the state after the partition's last whole block, and compared with the scores before that block.
Every score is counted, whether its record is learned or not: otherwise what was refused once would be unusual for ever.
If too many of the recent records are outliers, the stream has changed, and the guard is open: it refuses nothing.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.pca import anomaly, histogram
from streampca.pca.arrays import F64, Array
from streampca.pca.histogram import BINS, bins_of
from streampca.pca.state import State
from streampca.pca.state_scores import StateScorer

OUTLIER = "outlier"  # the reason of a reject
NAMED = 3  # dimensions named for a refused record
RECENT = 10_000  # records
MOST = 100  # outliers among them; with more the guard is open


class Judgement(NamedTuple):
    """What the guard finds of m records."""

    guard: "Guard"  # after them
    p: F64  # (m,)
    refused: NDArray[np.bool_]  # (m,)
    causes: dict[int, list[tuple[int, float]]]  # of each refused record: dimensions, and their shares of its score


@dataclass(frozen=True, eq=False)
class Guard:
    """The scores of a partition's messages and its recent outliers: a function of its records, like the fold."""

    weights: F64 = field(default_factory=lambda: np.zeros((2, BINS)))  # of scores before this block, and since then
    judged: int = 0  # records
    outliers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # which of the last 10,000
    learned: int = 0  # outliers that were learned, as the guard was open
    scorer: StateScorer | None = None  # of the state after the last block; not part of the value

    @property
    def is_open(self) -> bool:
        """Whether it refuses nothing, as more than 1 % of the last 10,000 records were outliers."""
        return len(self.outliers) > MOST

    def judge(self, state: State, k: int, V: Array, counts: NDArray[np.int64], outlier_p: float) -> Judgement:
        """Judge records of `counts` (m,) vectors each, V (n, d) together, all of the block that follows this state.

        A record is an outlier if the smallest p of its n vectors is at most `outlier_p`/n.
        """
        scorer = self.scorer or StateScorer(state, k)
        bins = bins_of(scorer.scores(V, int(self.weights[1].sum())).score)
        firsts = np.cumsum(counts) - counts
        least = np.minimum.reduceat(histogram.p_values(self._at_least, bins), firsts)
        p = np.minimum(least * counts, 1.0)
        weights = self.weights.copy()
        np.add.at(weights[1], bins, 1.0)
        numbers = self.judged + np.flatnonzero(p <= outlier_p)
        outliers = np.concatenate([self.outliers, numbers])
        recent = np.arange(1, 1 + len(outliers)) - np.searchsorted(outliers, outliers - RECENT, side="right")
        refused = np.zeros(len(p), np.bool_)
        refused[numbers - self.judged] = recent[len(self.outliers) :] <= MOST
        judged = self.judged + len(p)
        outliers = outliers[np.searchsorted(outliers, judged - RECENT) :]
        learned = self.learned + len(numbers) - int(refused.sum())
        causes = {}
        for i in np.flatnonzero(refused).tolist():
            worst = firsts[i] + bins[firsts[i] : firsts[i] + counts[i]].argmax()
            causes[i] = scorer.contributions(V[worst], NAMED)
        return Judgement(Guard(weights, judged, outliers, learned, scorer), p, refused, causes)

    def after_block(self, messages: int, weight: float) -> "Guard":
        """After a block of so many messages, which made the fold's weight this one: older scores fade as messages do.

        They keep e^(−n/w) of their weight, as those of the served model do (docs/mathematics.md, section 10).
        """
        kept = math.exp(-messages / weight) * (1 - 1 / anomaly.WINDOW) ** messages
        past, new = self.weights
        return replace(self, weights=np.stack([kept * past + new, np.zeros(BINS)]), scorer=None)

    @cached_property
    def _at_least(self) -> F64:
        return histogram.at_least(self.weights[0])
