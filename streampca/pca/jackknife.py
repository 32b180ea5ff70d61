"""The sampling error of a merged model, estimated by a jackknife over groups of its streams.

The streams are dealt into G groups of weights w_j, W = Σ w_j. The model is compared with those of all groups but one:

    error² = 1/G Σ_j (W/w_j − 1) sin²(model without group j, model),

which for equal weights is (G − 1)/G Σ_j sin² (J. W. Tukey 1958, B. Efron 1982). The factors for unequal groups are
those of Busing, Meijer and van der Leeden (1999). docs/mathematics.md, section 7, says where the estimate is wrong.

With the covariances Σ_i and the distances δ_i of the groups' means from m, it is without group j

    Σ_−j = Σ_{i≠j} w_i/(W − w_j) (Σ_i + δ_i δ_iᵀ) − ε εᵀ,    ε = δ_j w_j/(W − w_j).

Its axes are near the model's, so they are found by Rayleigh–Ritz in the span of the model's axes and Σ_−j times them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.pca.arrays import F64, power_of_two
from streampca.pca.blocked import ritz, triangle
from streampca.pca.merge import grouped, pooled
from streampca.pca.state import State

FEWEST = 4  # streams, and groups; fewer say little about an error
GUARD = 10  # axes beyond the model's, with which its own may mix


@dataclass(frozen=True, eq=False)
class SamplingError:
    """How far the axes of a model are from those of the distribution that its messages were drawn from."""

    subspace: float  # expected Σ sin² of the principal angles between the two subspaces, at most k
    axes: F64  # (k,) standard error of each axis: an angle in radians, at most π/2


def jackknife(
    states: Sequence[State], components: int, columns: int, decay: Sequence[float] | None = None
) -> SamplingError | None:
    """The error of the `components` leading axes of `merge(states, columns, decay)`; None as `sampling_error`."""
    groups = grouped(states, columns, decay)
    merged = pooled(groups, columns, components + GUARD, np.float64) if groups else states[0]
    return sampling_error(groups, merged, components)


def sampling_error(groups: Sequence[State], merged: State, components: int) -> SamplingError | None:
    """The error of the leading axes of the merged groups of a `Merger`; `merged` has `GUARD` more, if there are.

    None with fewer than four groups, as there are fewer than four states with messages, or without variance. Axes
    without variance are arbitrary: their error is π/2, and the subspace is that of the others.
    """
    rank = min(components, merged.rank)
    if len(groups) < FEWEST or not rank:
        return None
    weights = np.array([group.weight for group in groups])
    weights /= weights.sum()
    U, unit = np.asarray(ritz.orthonormal(merged.C.astype(np.float64)), np.float64), power_of_two(merged.total_variance)
    covariances = [_Covariance(group, merged.mean, unit) for group in groups]
    subspace, squares = 0.0, np.zeros(rank)
    for j, w in enumerate(weights):
        cosines = U[:, :rank].T @ _axes_without(j, covariances, weights, U, rank)
        factor = (1 / w - 1) / len(weights)
        subspace += factor * max(rank - float((cosines**2).sum()), 0.0)
        squares += factor * (1 - cosines.diagonal() ** 2).clip(0)
    angles = np.arcsin(np.sqrt(squares.clip(0, 1)))
    unknown = np.full(components - rank, np.pi / 2)
    return SamplingError(min(subspace, float(rank)), np.append(angles, unknown))


class _Covariance:
    """The covariance of a group about the mean of all, in units of the total variance."""

    def __init__(self, group: State, mean: F64, unit: float) -> None:
        self.step = (group.mean - mean) / np.sqrt(unit)
        d, covariance = len(mean), group.covariance
        self._root = group.C.astype(np.float64, copy=False) / np.sqrt(unit)
        self._square = None if covariance is None else triangle.square(covariance, d) / unit

    def times(self, X: F64) -> F64:
        """(Σ_j + δ_j δ_jᵀ) X."""
        of_group = self._root @ (self._root.T @ X) if self._square is None else self._square @ X
        return np.asarray(of_group + self.step[:, None] * (self.step @ X))


def _axes_without(j: int, covariances: Sequence[_Covariance], weights: F64, U: F64, rank: int) -> F64:
    """The leading axes (d, rank) of all groups but one; U (d, m) are those of all."""
    rest = 1 - weights[j]
    moved = covariances[j].step * weights[j] / rest

    def times(X: F64) -> F64:
        others = [w * c.times(X) for i, (w, c) in enumerate(zip(weights, covariances, strict=True)) if i != j]
        product: F64 = np.sum(others, axis=0) / rest - moved[:, None] * (moved @ X)
        return product

    basis: Any = ritz.orthonormal(np.hstack([U, times(U)])) if 2 * U.shape[1] < len(U) else np.eye(len(U))
    _, vectors = np.linalg.eigh(basis.T @ times(basis))
    axes: F64 = basis @ vectors[:, ::-1][:, :rank]
    return axes
