"""Estimates the sampling error of a merged model by a jackknife (docs/mathematics.md, section 7).

A `StateMerger` deals the streams into G groups of weights w_j, whose sum is W. The model of all groups is compared with
the models of all groups but one:

    error² = 1/G Σ_j (W/w_j − 1) sin²(model without group j, model),

which for equal weights is (G − 1)/G Σ_j sin². Groups are pooled as for the model itself, so a model without a group has
its own means, standard deviations and shares of what was known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.merge import FEWEST_GROUPS
from streampca.pca.pooling import pool_groups
from streampca.pca.state import State


@dataclass(frozen=True, eq=False)
class SamplingError:
    """Estimated errors of a model's axes: their distance from the axes of the distribution of its messages."""

    subspace_square: float  # expected Σ sin² of the principal angles between the two subspaces, at most k
    axis_angles: F64  # (k,) standard error of each axis: an angle in radians, at most π/2


def estimate_sampling_error(groups: Sequence[State], merged: State, components: int) -> SamplingError | None:
    """Estimate the errors of the leading axes of `merged` by a jackknife.

    With G groups of weights w_j, whose sum is W:

        sin² of the error = Σ_j (W/w_j − 1)/G · sin²(axes without group j, axes of all groups)

    The sum is computed for each axis alone, and for the subspace of all axes: the sum of sin² of its principal angles.
    Returns None with fewer than four groups, or if `merged` has no axes. If `merged` has fewer axes than `components`,
    the remaining axes are arbitrary, so their error is a right angle.
    """
    rank = min(components, merged.rank)
    if len(groups) < FEWEST_GROUPS or not rank:
        return None
    weights = np.array([group.weight for group in groups])
    factors = (weights.sum() / weights - 1) / len(groups)  # (W/w_j − 1)/G
    merged_axes, _ = axes.find_principal_axes(merged, rank)
    subspace_square = 0.0
    axis_squares = np.zeros(rank)
    for j, factor in enumerate(factors):
        other_groups = [*groups[:j], *groups[j + 1 :]]
        most_axes_of_a_group = max(group.rank for group in other_groups)
        pooled_without_group = pool_groups(other_groups, columns=most_axes_of_a_group).state(rank)
        axes_without_group, _ = axes.find_principal_axes(pooled_without_group, rank)
        cosines = merged_axes @ axes_without_group.T
        # The sum of sin² of the principal angles between both subspaces is rank − Σ cosines².
        subspace_square += factor * max(rank - float((cosines**2).sum()), 0.0)
        axis_squares += factor * (1 - cosines.diagonal() ** 2).clip(0)
    axis_angles = np.arcsin(np.sqrt(axis_squares.clip(0, 1)))
    right_angles = np.full(components - rank, np.pi / 2)
    return SamplingError(
        subspace_square=min(subspace_square, float(rank)), axis_angles=np.append(axis_angles, right_angles)
    )
