"""Histograms of past scores, from which p-values come: the share of messages that were at least as unusual.

Fixed limits for scores would not do, because each stream has scores of another size. docs/mathematics.md, section 10.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array
from streampca.pca.projection import Scores

WINDOW = 20_000  # the effective number of scores that a histogram remembers

_PER_OCTAVE = 32  # bins between a number and its double: the upper end of a bin is 2 % above the lower end
_LOWEST = -32  # the lowest bin begins at 2^−32
_OCTAVES = 96
BINS = _PER_OCTAVE * _OCTAVES
_EDGES = 2.0 ** (np.arange(_PER_OCTAVE) / _PER_OCTAVE)  # lower ends of the bins of one octave, from 1


@dataclass(frozen=True, eq=False)
class PastScores:
    """Histograms of past scores: the weight of each bin, (3, BINS), with the rows of `Scores`.

    A bin is 1/32 octave wide. Each score is divided by its expected value (`Projected.relative_scores`), so that scores
    of several models can be compared. Histograms are merged by adding their weights.
    """

    weights: F64

    @classmethod
    def empty(cls) -> "PastScores":
        """Make histograms without scores."""
        return cls(np.zeros((3, BINS)))

    @classmethod
    def from_table(cls, table: Array) -> "PastScores":
        """Read histograms from the rows that `table()` has returned. Raises `ValueError` for other rows."""
        weights = np.zeros((3, BINS))
        if table.dtype != np.float64 or table.ndim != 2 or table.shape[1] != 3 or not np.isfinite(table).all():
            raise ValueError("not rows of a histogram, a bin and a weight")
        bins = table[:, :2]  # the index of the statistic, and of the bin
        weight = table[:, 2]
        exists = (bins == np.floor(bins)) & (bins >= 0) & (bins < weights.shape)
        are_different = len(np.unique(bins, axis=0)) == len(bins)
        if not (exists.all() and (weight > 0).all() and are_different):
            raise ValueError("a histogram, bin or weight is out of range")
        bins = bins.astype(np.intp)
        weights[bins[:, 0], bins[:, 1]] = weight
        return cls(weights)

    def table(self) -> F64:
        """Return a row for each bin that is not empty, (m, 3): the index of the statistic, the bin, its weight."""
        which = np.nonzero(self.weights)
        return np.column_stack([*which, self.weights[which]])

    @property
    def weight(self) -> float:
        """The effective number of scores."""
        return float(self.weights[0].sum())

    @property
    def least_p(self) -> float:
        """The smallest possible p-value, 1/(1 + weight): that of a score above all past scores."""
        return 1 / (1 + self.weight)

    def with_scores(self, scores: Scores, kept: float = 1.0) -> "PastScores":
        """Add n scores, after the weights of older scores are multiplied by `kept` and have decayed by n/WINDOW."""
        older = self.weights * (kept * (1 - 1 / WINDOW) ** len(scores.score))
        new = [np.bincount(_find_bins(values)[0], minlength=BINS) for values in scores]
        return PastScores(older + new)

    def p_values(self, scores: Scores) -> Scores:
        """Return the p-value of each of n scores: near 0 if the vector is unusual, 1 without past scores."""
        p = []
        for weights, above, values in zip(self.weights, self._above, scores, strict=True):
            bins, part = _find_bins(values)  # only the part of a bin that is above the score counts
            p.append((1 + above[bins] + part * weights[bins]) / (1 + above[0] + weights[0]))
        return Scores(*p)

    @cached_property
    def _above(self) -> F64:
        """The weight of the bins above each one, (3, BINS)."""
        return np.cumsum(self.weights[:, ::-1], axis=1)[:, ::-1] - self.weights


def _find_bins(values: F64) -> tuple[NDArray[np.intp], F64]:
    """Find the bin of each value, and the part of the bin above the value.

    The first and the last bin also hold the values beyond the histogram.
    """
    mantissa, exponent = np.frexp(np.clip(values, 2.0**_LOWEST, 2.0 ** (_LOWEST + _OCTAVES)))
    within_octave = np.searchsorted(_EDGES, 2 * mantissa, side="right") - 1
    octave = exponent - 1 - _LOWEST
    bins: NDArray[np.intp] = np.minimum(octave * _PER_OCTAVE + within_octave, BINS - 1).astype(np.intp)
    ends = np.append(_EDGES, 2.0)
    upper_end = ends[within_octave + 1]
    return bins, (upper_end - 2 * mantissa) / (upper_end - ends[within_octave])
