"""Standardised streams: D = 1/standard deviation of each entry so far, so that z = D(v − m) is what is learned.

D is constant within a block. Before the next one the state is carried to the next D: C by D′/D; Σ is kept in the units
of v, and only read as DΣD. docs/mathematics.md, section 15.
"""

from dataclasses import replace

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled_without_lock
from streampca.pca.state import State

_EPS = float(np.finfo(np.float64).eps)
_SMALLEST = 2.0**8 * float(np.finfo(np.float64).tiny)  # of variances: the squares of their D must not overflow
_MOST_ROUNDING = 2.0**20  # messages: the rounding of a running mean does not grow with an endless stream


def scale_of(variance: F64, mean: F64, weight: float) -> F64:
    """D by these variances and means of the entries (d,); 1 for a constant entry.

    scikit-learn's StandardScaler decides what is constant: the rounding of a large mean is no variance. An entry whose
    squares underflow is constant, too.
    """
    n = min(weight, _MOST_ROUNDING)
    rounding = n * _EPS * variance + (n * _EPS * mean) ** 2
    varies = variance > np.maximum(rounding, _SMALLEST)
    return np.asarray(1.0 / np.sqrt(np.where(varies, variance, 1.0)))


def scale_for(state: State, V: Array) -> F64:
    """D for the block V (n, d): the state's; of an entry that was constant so far, by the messages that change it."""
    scale = np.ones(len(state.mean)) if state.scale is None else state.scale.copy()
    constant = np.square(scale) * state.entry_variances < 0.5  # 1 where an entry varies
    if constant.any():
        W = V[:, constant].astype(np.float64)
        mean = state.mean[constant] if state.count else np.nansum(W, axis=0) / np.maximum(np.isfinite(W).sum(axis=0), 1)
        squares = np.nan_to_num(np.square(W - mean))
        scale[constant] = scale_of(squares.sum(axis=0) / np.maximum((squares > 0).sum(axis=0), 1), mean, len(V))
    return scale


def rescaled(state: State) -> tuple[State, F64]:
    """The state with D and the total variance by its entries' variances, and D (d,); [C | F] must follow."""
    variances = state.entry_variances
    scale = scale_of(variances, state.mean, state.weight)
    total = float(np.maximum(scale**2 * variances, 0.0).sum())
    return replace(state, scale=scale, total_variance=total), scale


def change_of_variances(units: F64) -> float:
    """By which factor the variance along a usual direction changes with the `units` D′/D (d,).

    This is the median of the entries. The mean could be anything where a few entries begin to vary.
    """
    return float(np.median(np.square(units)))


@compiled_without_lock
def squares(Y: Array) -> F64:
    """The sum of the squares of each column of Y (n, d), (d,)."""
    total = np.zeros(Y.shape[1])
    for s in range(Y.shape[0]):
        for j in range(Y.shape[1]):
            total[j] += np.float64(Y[s, j]) * Y[s, j]
    return total


@compiled_without_lock
def standardised(V: Array, mean: F64, scale: F64, Z: Array) -> Array:
    """D(v − m) of messages V (n, d) `of_one_type`, in their precision, in Z (n, d)."""
    for s in range(V.shape[0]):
        for j in range(V.shape[1]):
            Z[s, j] = (V[s, j] - mean[j]) * scale[j]
    return Z
