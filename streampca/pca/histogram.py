"""Histograms of positive numbers over 96 octaves, with weights that can be forgotten; a bin is 1/32 octave.

Several of them are the rows of an array of weights (rows, BINS). They are merged by addition.
"""

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64, Array

Indices = NDArray[np.intp]

_PER_OCTAVE = 32  # the number at one end of a bin is 2 % above that at the other
_LEAST, _OCTAVES = -32, 96
BINS = _PER_OCTAVE * _OCTAVES
_EDGES = 2.0 ** (np.arange(_PER_OCTAVE) / _PER_OCTAVE)


def bins_of(values: F64) -> Indices:
    """The bin of each value; the first and the last hold all beyond them. Exact: no logarithm is rounded."""
    mantissa, exponent = np.frexp(np.clip(values, 2.0**_LEAST, 2.0 ** (_LEAST + _OCTAVES)))
    within = np.searchsorted(_EDGES, 2 * mantissa, side="right") - 1
    bins: Indices = np.minimum((exponent - 1 - _LEAST) * _PER_OCTAVE + within, BINS - 1).astype(np.intp)
    return bins


def at_least(weights: F64) -> F64:
    """The weight of each bin and of those above it, of the same shape as `weights`."""
    return np.cumsum(weights[..., ::-1], axis=-1)[..., ::-1]


def p_values(at_least: F64, bins: Indices) -> F64:
    """(1 + weight of values in this bin or above)/(1 + weight) for each bin, from the `at_least` of one histogram."""
    p: F64 = (1 + at_least[bins]) / (1 + at_least[0])
    return p


def table(weights: F64) -> F64:
    """The bins that are not empty, (m, 3): the row, the bin, its weight."""
    which = np.nonzero(weights)
    return np.column_stack([*which, weights[which]])


def from_table(table: Array, rows: int) -> F64:
    """The weights (rows, BINS) that `table` gave. Raises `ValueError` if it is no such table."""
    weights = np.zeros((rows, BINS))
    if table.dtype != np.float64 or table.ndim != 2 or table.shape[1] != 3 or not np.isfinite(table).all():
        raise ValueError("not rows of a histogram, a bin and a weight")
    which, found = table[:, :2], table[:, 2]
    inside = (which == np.floor(which)) & (which >= 0) & (which < weights.shape)
    if not (inside.all() and (found > 0).all() and len(np.unique(which, axis=0)) == len(which)):
        raise ValueError("a histogram, bin or weight is out of range")
    which = which.astype(np.intp)
    weights[which[:, 0], which[:, 1]] = found
    return weights
