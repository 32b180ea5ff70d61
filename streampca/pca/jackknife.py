"""The sampling error of a merged model, estimated by a jackknife over groups of its streams.

The streams are dealt into G groups of weights w_j, W = Σ w_j. The model is compared with those of all groups but one:

    error² = 1/G Σ_j (W/w_j − 1) sin²(model without group j, model),

which for equal weights is (G − 1)/G Σ_j sin². The covariance without group j is Σ_−j = Σ_{i≠j} w_i/(W − w_j)
(Σ_i + δ_i δ_iᵀ) − ε εᵀ, with the distances δ_i of the groups' means from m, and ε = δ_j w_j/(W − w_j). Its axes are
near the model's: Rayleigh–Ritz finds them in the span of the model's axes and Σ_−j times them. Sources, and where the
estimate is wrong: docs/mathematics.md, section 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streampca.pca.arrays import F64, power_of_two
from streampca.pca.blocked import ritz, triangle
from streampca.pca.state import State

FEWEST = 4  # streams, and groups; fewer say little about an error


@dataclass(frozen=True, eq=False)
class SamplingError:
    """Estimated errors of a model's axes: their distance from the axes of the distribution of its messages."""

    subspace: float  # expected Σ sin² of the principal angles between the two subspaces, at most k
    axes: F64  # (k,) standard error of each axis: an angle in radians, at most π/2


def sampling_error(groups: Sequence[State], merged: State, components: int) -> SamplingError | None:
    """The error of the leading axes of the merged groups of a `StateMerger`; `merged` has `GUARD` more, if there are.

    None with fewer than four groups or without variance. Axes without variance are arbitrary: their error is π/2, and
    the subspace is that of the others.
    """
    rank = min(components, merged.rank)
    if len(groups) < FEWEST or not rank:
        return None
    weights = np.array([group.weight for group in groups])
    weights /= weights.sum()
    U, unit = np.asarray(ritz.orthonormal(merged.C.astype(np.float64)), np.float64), power_of_two(merged.total_variance)
    covariances = [_Covariance(group, merged, unit) for group in groups]
    subspace, squares = 0.0, np.zeros(rank)
    for j, w in enumerate(weights):
        cosines = U[:, :rank].T @ _axes_without(j, covariances, weights, U, rank)
        factor = (1 / w - 1) / len(weights)
        subspace += factor * max(rank - float((cosines**2).sum()), 0.0)
        squares += factor * (1 - cosines.diagonal() ** 2).clip(0)
    angles = np.arcsin(np.sqrt(squares.clip(0, 1)))
    return SamplingError(min(subspace, float(rank)), np.append(angles, np.full(components - rank, np.pi / 2)))


class _Covariance:
    """The covariance of a group about the mean of all, in units of the total variance, and of the entries of all."""

    def __init__(self, group: State, merged: State, unit: float) -> None:
        scale = 1.0 if merged.scale is None else merged.scale
        self.step = scale * (group.mean - merged.mean) / np.sqrt(unit)
        root = group.C if group.scale is None else group.C * (scale / group.scale)[:, None]
        self._root = root.astype(np.float64, copy=False) / np.sqrt(unit)
        self._square = None
        if group.covariance is not None:
            self._square = triangle.square(group.covariance, len(merged.mean), merged.scale) / unit

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
        return np.asarray(np.sum(others, axis=0) / rest - moved[:, None] * (moved @ X))

    small = 2 * U.shape[1] < len(U)
    basis = np.asarray(ritz.orthonormal(np.hstack([U, times(U)])) if small else np.eye(len(U)), np.float64)
    vectors = np.linalg.eigh(basis.T @ times(basis))[1]
    return np.asarray(basis @ vectors[:, ::-1][:, :rank])
