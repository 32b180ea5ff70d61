"""Standardised streams: z = D(v − m) is learned, where D is 1/standard deviation of each entry so far.

D is constant within a block. Before the next block, C is multiplied by D′/D, where D′ is the next D. Σ is kept in the
units of v, and multiplied to DΣD where it is used. docs/mathematics.md, section 15.
"""

from dataclasses import replace

import numpy as np

from streampca.pca.arrays import F64, Array
from streampca.pca.blocked.jit import compiled_without_lock
from streampca.pca.state import State

_EPS = float(np.finfo(np.float64).eps)
_SMALLEST = 2.0**8 * float(np.finfo(np.float64).tiny)  # smallest variance of which the square of D does not overflow
_MOST_ROUNDING = 2.0**20  # messages after which the rounding error of a running mean does not grow any more


def compute_scale(variance: F64, mean: F64, weight: float) -> F64:
    """Compute D from the variances and means of the entries, (d,) each; it is 1 for a constant entry.

    An entry is constant by the rule of scikit-learn's StandardScaler, so that the rounding of a large mean does not
    count as variance. An entry whose squares underflow is constant, too.
    """
    n = min(weight, _MOST_ROUNDING)
    rounding = n * _EPS * variance + (n * _EPS * mean) ** 2
    varies = variance > np.maximum(rounding, _SMALLEST)
    return np.asarray(1.0 / np.sqrt(np.where(varies, variance, 1.0)))


def choose_scale(state: State, V: Array) -> F64:
    """Return D for the block V (n, d): the D of the state, except for entries that were constant so far.

    The D of such an entry comes from those messages of the block in which it differs from its mean.
    """
    scale = np.ones(len(state.mean)) if state.scale is None else state.scale.copy()
    variances_in_units_of_d = np.square(scale) * state.entry_variances  # 1 of an entry that varies, otherwise 0
    is_constant = variances_in_units_of_d < 0.5
    if is_constant.any():
        W = V[:, is_constant].astype(np.float64)
        if state.count:
            mean = state.mean[is_constant]
        else:
            mean = np.nansum(W, axis=0) / np.maximum(np.isfinite(W).sum(axis=0), 1)
        squares = np.nan_to_num(np.square(W - mean))
        differing = np.maximum((squares > 0).sum(axis=0), 1)
        scale[is_constant] = compute_scale(squares.sum(axis=0) / differing, mean, len(V))
    return scale


def rescale(state: State) -> tuple[State, F64]:
    """Return the state with the D and the total variance that follow from the variances of its entries, and D (d,).

    The caller must multiply [C | F] by the ratio of the new D to the old.
    """
    variances = state.entry_variances
    scale = compute_scale(variances, state.mean, state.weight)
    total = float(np.maximum(scale**2 * variances, 0.0).sum())
    return replace(state, scale=scale, total_variance=total), scale


def change_of_variances(units: F64) -> float:
    """Return the factor by which the variance along a usual direction changes with the `units` D′/D (d,).

    It is the median over the entries, because a few entries that begin to vary could change the mean without limit.
    """
    return float(np.median(np.square(units)))


@compiled_without_lock
def sum_squares(Y: Array) -> F64:
    """Sum the squares of each column of Y (n, d), (d,)."""
    total = np.zeros(Y.shape[1])
    for s in range(Y.shape[0]):
        for j in range(Y.shape[1]):
            total[j] += np.float64(Y[s, j]) * Y[s, j]
    return total


@compiled_without_lock
def standardise(V: Array, mean: F64, scale: F64, Z: Array) -> Array:
    """Write D(v − m) of the messages V (n, d), which are made by `as_kernel_input`, to Z (n, d), and return Z."""
    for s in range(V.shape[0]):
        for j in range(V.shape[1]):
            Z[s, j] = (V[s, j] - mean[j]) * scale[j]
    return Z
