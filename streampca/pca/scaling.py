"""Standardises streams: z = D(v − m) is learned, where D is 1/standard deviation of each entry so far.

D is constant within a block. Before the next block, C is multiplied by D′/D, where D′ is the next D. Σ is kept in the
units of v, and turned into DΣD where it is used. docs/mathematics.md, section 13.
"""

from dataclasses import replace

import numpy as np

from streampca.pca.arrays import F64, Array, compute_observed_mean
from streampca.pca.blocked.jit import compiled_without_lock
from streampca.pca.state import State

_EPS = float(np.finfo(np.float64).eps)
_SMALLEST = 2.0**8 * float(np.finfo(np.float64).tiny)  # with a smaller variance, the square of D would overflow
_MOST_ROUNDING_MESSAGES = 2.0**20  # the rounding error of a running mean grows with the messages, up to this number


def compute_scale(variance: F64, mean: F64, weight: float) -> F64:
    """Compute D = 1/standard deviation of each entry, (d,); 1 for a constant entry.

    A variance that may be only a rounding error counts as 0:

        rounding error of the variance = nε · variance + (nε · mean)²

    Each of n messages may add ε to the relative error of the variance, and to the relative error of the mean. The error
    of the mean enters the variance squared.
    """
    # n is limited, because otherwise every entry with a large mean would count as constant after enough messages.
    messages = min(weight, _MOST_ROUNDING_MESSAGES)  # n
    rounding = messages * _EPS * variance + (messages * _EPS * mean) ** 2
    varies = variance > np.maximum(rounding, _SMALLEST)
    return np.asarray(1.0 / np.sqrt(np.where(varies, variance, 1.0)))


def choose_scale(state: State, V: Array) -> F64:
    """Return the scale D of each entry (1/standard deviation) for the block V (n, d).

    For an entry that was constant so far, D comes from the values of the block that differ from the mean of the entry.
    Values equal to the mean are left out: many of them would make the standard deviation small, so that a single
    differing value would become large when it is scaled.
    """
    scale = np.ones(len(state.mean)) if state.scale is None else state.scale.copy()
    # About 1 for an entry that varies; 0 for a constant entry, and for all entries before the first block.
    standardised_variances = np.square(scale) * state.entry_variances
    is_constant = standardised_variances < 0.5
    if not is_constant.any():
        return scale
    values = V[:, is_constant].astype(np.float64)
    mean = state.mean[is_constant] if state.count else compute_observed_mean(values)
    squares = np.nan_to_num(np.square(values - mean))
    differing_count = np.maximum((squares > 0).sum(axis=0), 1)  # values that differ from the mean
    mean_square = squares.sum(axis=0) / differing_count
    # A variance that may be only rounding counts as 0. The rounding errors of the block's messages may have added up.
    scale[is_constant] = compute_scale(variance=mean_square, mean=mean, weight=len(V))
    return scale


def rescale(state: State, variances: F64) -> tuple[State, F64]:
    """Compute the scale D from the `variances` of the entries (d,); return the state with this scale, and the scale.

    [C | F] of the state stays in the old scale: the caller must multiply it by new scale/old scale.
    """
    scale = compute_scale(variances, state.mean, state.weight)
    total = float(np.maximum(scale**2 * variances, 0.0).sum())
    return replace(state, scale=scale, total_variance=total), scale


def compute_variance_factor(ratio: F64) -> float:
    """Return the factor by which the variance of a typical entry changes with the `ratio` D′/D (d,)."""
    return float(np.median(np.square(ratio)))


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
    """Write (v − mean) · scale of the messages v in V (n, d) to Z (n, d), and return Z.

    V must come from `as_kernel_input`, which makes it contiguous and read-only: for any other kind of array, numba
    would compile this function again.
    """
    for s in range(V.shape[0]):
        for j in range(V.shape[1]):
            Z[s, j] = (V[s, j] - mean[j]) * scale[j]
    return Z
