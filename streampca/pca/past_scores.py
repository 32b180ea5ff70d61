"""Histograms of past scores, with which p-values compare: the share of messages that were as unusual.

How large scores are depends on the stream. docs/mathematics.md, section 10.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.projection import Scores

WINDOW = 20_000  # scores: the effective number of past ones

_PER_OCTAVE = 32  # the number at one end of a bin is 2 % above that at the other
_LOWEST, _OCTAVES = -32, 96
BINS = _PER_OCTAVE * _OCTAVES
_EDGES = 2.0 ** (np.arange(_PER_OCTAVE) / _PER_OCTAVE)


@dataclass(frozen=True, eq=False)
class PastScores:
    """Histograms of past scores: the weight of each bin, (3, BINS), rows as in `Scores`.

    A bin is 1/32 octave. Scores count as multiples of the expected ones (`Projected.relative_scores`), so that those by
    several models compare. Histograms are merged by adding their weights.
    """

    weights: F64

    @classmethod
    def empty(cls) -> "PastScores":
        return cls(np.zeros((3, BINS)))

    @classmethod
    def from_table(cls, table: Array) -> "PastScores":
        """From the rows of `table`. Raises `ValueError` if they are not such rows."""
        weights = np.zeros((3, BINS))
        if table.dtype != np.float64 or table.ndim != 2 or table.shape[1] != 3 or not np.isfinite(table).all():
            raise ValueError("not rows of a histogram, a bin and a weight")
        which, weight = table[:, :2], table[:, 2]
        inside = (which == np.floor(which)) & (which >= 0) & (which < weights.shape)
        if not (inside.all() and (weight > 0).all() and len(np.unique(which, axis=0)) == len(which)):
            raise ValueError("a histogram, bin or weight is out of range")
        which = which.astype(np.intp)
        weights[which[:, 0], which[:, 1]] = weight
        return cls(weights)

    def table(self) -> F64:
        """The bins that are not empty, (m, 3): the index of the statistic, the bin, its weight."""
        which = np.nonzero(self.weights)
        return np.column_stack([*which, self.weights[which]])

    @property
    def weight(self) -> float:
        """The effective number of scores."""
        return float(self.weights[0].sum())

    @property
    def least_p(self) -> float:
        """No p-value is smaller: 1/(1 + weight), of a score beyond all past ones."""
        return 1 / (1 + self.weight)

    def with_scores(self, scores: Scores, kept: float = 1.0) -> "PastScores":
        """Add n scores; older ones are multiplied by `kept` and decay by n/WINDOW."""
        older = self.weights * (kept * (1 - 1 / WINDOW) ** len(scores.score))
        new = [np.bincount(_bins_of(values)[0], minlength=BINS) for values in scores]
        return PastScores(older + new)

    def p_values(self, scores: Scores) -> Scores:
        """p of each of n scores: near 0 if the vector is unusual, 1 without past scores."""
        p = []
        for weights, above, values in zip(self.weights, self._above, scores, strict=True):
            bins, part = _bins_of(values)  # of the bin that holds the score, the part above it counts
            p.append((1 + above[bins] + part * weights[bins]) / (1 + above[0] + weights[0]))
        return Scores(*p)

    @cached_property
    def _above(self) -> F64:
        """The weight of the bins above each one, (3, BINS)."""
        return np.cumsum(self.weights[:, ::-1], axis=1)[:, ::-1] - self.weights


def _bins_of(values: F64) -> tuple[NDArray[np.intp], F64]:
    """The bin of each value, and the part of it that is above the value; the first and last hold all beyond them."""
    mantissa, exponent = np.frexp(np.clip(values, 2.0**_LOWEST, 2.0 ** (_LOWEST + _OCTAVES)))
    within = np.searchsorted(_EDGES, 2 * mantissa, side="right") - 1
    bins: NDArray[np.intp] = np.minimum((exponent - 1 - _LOWEST) * _PER_OCTAVE + within, BINS - 1).astype(np.intp)
    ends = np.append(_EDGES, 2.0)
    return bins, (ends[within + 1] - 2 * mantissa) / (ends[within + 1] - ends[within])
