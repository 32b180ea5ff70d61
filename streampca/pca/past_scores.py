"""Histograms of past scores, which give p-values: the share of earlier messages that were at least as unusual.

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
_HISTOGRAMS = len(Scores._fields)  # one for each kind of score
_LOWER_ENDS = 2.0 ** (np.arange(_PER_OCTAVE) / _PER_OCTAVE)  # of the 32 bins from 1 to 2


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
        return cls(np.zeros((_HISTOGRAMS, BINS)))

    @classmethod
    def from_table(cls, table: Array) -> "PastScores":
        """Read histograms from the rows that `table()` has returned. Raises `ValueError` for other rows."""
        weights = np.zeros((_HISTOGRAMS, BINS))
        has_three_columns = table.ndim == 2 and table.shape[1] == 3
        if table.dtype != np.float64 or not has_three_columns or not np.isfinite(table).all():
            raise ValueError("not rows of a histogram, a bin and a weight")
        indices = table[:, :2]  # of the histogram, and of the bin in it
        weight = table[:, 2]
        are_in_range = (indices >= 0) & (indices < weights.shape)  # each column has its own limit
        are_valid = are_in_range & (indices == np.floor(indices))
        are_different = len(np.unique(indices, axis=0)) == len(indices)
        if not (are_valid.all() and (weight > 0).all() and are_different):
            raise ValueError("a histogram, bin or weight is out of range")
        indices = indices.astype(np.intp)
        weights[indices[:, 0], indices[:, 1]] = weight
        return cls(weights)

    def table(self) -> F64:
        """Return a row for each bin that is not empty, (m, 3): the index of the histogram, the bin, its weight."""
        indices = np.nonzero(self.weights)  # of the histograms, and of the bins
        return np.column_stack([*indices, self.weights[indices]])

    @property
    def weight(self) -> float:
        """The effective number of scores."""
        return float(self.weights[0].sum())

    @property
    def least_p(self) -> float:
        """The smallest possible p-value, 1/(1 + weight): that of a score above all past scores."""
        return 1 / (1 + self.weight)

    def with_scores(self, scores: Scores, kept: float = 1.0) -> "PastScores":
        """Return the histograms with more scores.

        The weight of older scores is multiplied by 1 − 1/`WINDOW` for each new score. It is also multiplied by `kept`,
        so that old scores can be forgotten as fast as old messages.
        """
        kept_by_window = (1 - 1 / WINDOW) ** len(scores.score)
        older_weights = self.weights * (kept * kept_by_window)
        new_counts = []
        for values in scores:  # T², SPE, score
            bins, _ = _find_bins(values)
            new_counts.append(np.bincount(bins, minlength=BINS))
        return PastScores(older_weights + new_counts)

    def p_values(self, scores: Scores) -> Scores:
        """Return the p-value of each score: near 0 if the vector is unusual, 1 without past scores."""
        p = []
        for weights, weights_above, values in zip(self.weights, self._weights_above, scores, strict=True):
            # The weight of a bin is taken as spread evenly over its width.
            bins, fraction_above = _find_bins(values)
            # 1 is the weight of the new score itself, which is at least as high as itself.
            at_least_as_high = 1 + weights_above[bins] + fraction_above * weights[bins]
            all_scores = 1 + weights_above[0] + weights[0]  # index 0: the lowest bin, and all bins above it
            p.append(at_least_as_high / all_scores)
        return Scores(*p)

    @cached_property
    def _weights_above(self) -> F64:
        """The sum of the weights of all bins above each bin, (3, BINS)."""
        return np.cumsum(self.weights[:, ::-1], axis=1)[:, ::-1] - self.weights


def _find_bins(values: F64) -> tuple[NDArray[np.intp], F64]:
    """Find the bin of each value, and which fraction of the bin's width lies above the value, 0 … 1.

    The bins begin at 2^−32, and each octave 2^j … 2^(j+1) has 32 bins. A value beyond the histogram goes into the first
    or last bin. Its fraction is 1: all scores in this bin count as at least as high.
    """
    limited = np.clip(values, 2.0**_LOWEST, 2.0 ** (_LOWEST + _OCTAVES))
    half_mantissa, exponent = np.frexp(limited)  # value = half_mantissa · 2^exponent, half_mantissa from ½ to below 1
    mantissa = 2 * half_mantissa  # value = mantissa · 2^(exponent − 1), mantissa from 1 to below 2
    octave = exponent - 1 - _LOWEST  # 0 is the lowest octave
    bin_in_octave = np.searchsorted(_LOWER_ENDS, mantissa, side="right") - 1  # the last bin with an end ≤ mantissa
    # A value at the upper limit of the histogram would begin one more octave. `minimum` puts it into the last bin. Its
    # mantissa is 1, the lower end of a bin, so its fraction is 1.
    bins: NDArray[np.intp] = np.minimum(octave * _PER_OCTAVE + bin_in_octave, BINS - 1).astype(np.intp)
    edges = np.append(_LOWER_ENDS, 2.0)
    lower_end = edges[bin_in_octave]
    upper_end = edges[bin_in_octave + 1]
    return bins, (upper_end - mantissa) / (upper_end - lower_end)
