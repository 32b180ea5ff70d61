"""Measures how far a model has moved from an earlier model of the same stream; docs/mathematics.md, section 14.

The units are those of the newest model, y = D(v − m). In these units, Q is an orthonormal basis of the kₚ axes DDₚ⁻¹Uₚ
of the earlier model. The stream has the variance σ²(1 + t) along its true axes, and σ² in all other directions. Each
learned axis u is at an angle of arccos c to a true axis (spiked_covariance.Spikes). So Q explains the variance

    Σᵢ σ²tᵢ min(1, ‖Qᵀuᵢ‖²/cᵢ²) + kₚσ²

The learned variances Λ would be wrong here: learned axes fit the messages from which they were learned, so the earlier
axes would explain less of Λ even in a stream that has not changed. No matrix (d, d) is formed; the cost is d·k².
"""

from typing import Literal, NamedTuple

import numpy as np

from streampca.pca.angles import principal_angles
from streampca.pca.arrays import F64
from streampca.pca.model import Model

_LEAST_SHARE = 0.9  # of what the newest axes explain, that the earlier axes must explain
_MAX_MEAN_SHIFT_RATIO = 0.25  # a shift of half a standard deviation

Cause = Literal["axes", "mean"]
"""What has moved, so that a model is outdated."""


class Drift(NamedTuple):
    """How far the newest model has moved from an earlier one. New variance is the variance of new messages."""

    angle_radians: float  # the largest principal angle between the axes; newest axes without variance do not count
    explained_variance_ratio: float  # expected share of new variance along the earlier axes; 0 without variance
    newest_explained_variance_ratio: float  # expected share of new variance along the newest axes
    mean_shift_ratio: float  # squared shift of the mean, divided by the earlier total variance; not finite if that is 0

    @property
    def why_outdated(self) -> list[Cause]:
        """Which parts have moved so much that the earlier model is outdated; none if the earlier model still fits."""
        causes: list[Cause] = []
        along_earlier_axes = self.explained_variance_ratio
        along_newest_axes = self.newest_explained_variance_ratio
        if along_earlier_axes < _LEAST_SHARE * along_newest_axes:
            causes.append("axes")
        if self.mean_shift_ratio > _MAX_MEAN_SHIFT_RATIO:
            causes.append("mean")
        return causes


@np.errstate(all="ignore")
def measure_drift(earlier: Model, newest: Model) -> Drift:
    """Measure the drift between two models of the same dimensions, in the units of the newest.

    `Model.D` (d,) is 1/standard deviation of each entry if the stream is standardised, and 1 otherwise.
    """
    to_newest_units = newest.D / earlier.D
    newest_axes = np.asarray(newest.components.T, np.float64)  # (d, k)
    earlier_axes = np.asarray(earlier.components.T, np.float64)  # (d, number of axes of the earlier model)
    have_same_units = (to_newest_units == 1).all()
    if not have_same_units:  # converted axes are not orthonormal
        earlier_axes = np.linalg.qr(earlier_axes * to_newest_units[:, None])[0]
    # An axis with less variance than `floored_variance` may be only rounding. It is left out, because its angle means
    # nothing.
    is_above_rounding = newest.explained_variance >= newest.floored_variance
    axes_above_rounding = newest_axes[:, is_above_rounding]
    # New messages have less variance along the newest axes than the messages from which these axes were learned.
    # `spikes` estimates the variance of new messages along each axis.
    new_variance_along_newest = float(newest.spikes.variance_of_new_messages.sum())
    new_variance_along_earlier = _compute_explained_variance(newest, U=newest_axes, Q=earlier_axes)
    total_variance = newest.total_variance if newest.total_variance > 0 else np.inf
    return Drift(
        angle_radians=float(principal_angles(axes_above_rounding.T, earlier_axes.T).max(initial=0.0)),
        explained_variance_ratio=new_variance_along_earlier / total_variance,
        newest_explained_variance_ratio=new_variance_along_newest / total_variance,
        mean_shift_ratio=_compute_mean_shift_ratio(earlier, newest, to_newest_units),
    )


def _compute_explained_variance(newest: Model, U: F64, Q: F64) -> float:
    """Compute the variance that new messages have along the orthonormal axes of an earlier model, Q (d, kₚ).

    U (d, k) are the newest axes. A newest axis that fits more than noise is called a spike: it is near a true axis of
    the stream. New messages have the variance σ²(1 + strength) along the true axis, and σ² in all other directions. So
    the variance along the kₚ axes of Q is

        (sum over spikes of σ² · strength · true_share_in_Q) + kₚσ²

    `true_share_in_Q` is the squared length of the true axis's projection onto the span of Q. Only the projection of the
    newest axis is known: its squared length is about `overlap` · `true_share_in_Q`, where `overlap` is the squared
    cosine between the newest axis and the true axis.
    """
    spikes = newest.spikes
    is_spike = spikes.overlap > 0  # 0 for an axis that fits only noise
    # `spikes` leaves out the last axes if fewer than k entries were ever observed: these axes are arbitrary.
    axis_count = len(is_spike)
    U_spikes = U[:, :axis_count][:, is_spike]
    share_in_Q = np.square(U_spikes.T @ Q).sum(axis=1)  # squared lengths of the projections of the newest axes
    true_share_in_Q = np.minimum(share_in_Q / spikes.overlap[is_spike], 1.0)
    earlier_count = Q.shape[1]  # kₚ
    return float(spikes.sigma2 * (spikes.strength[is_spike] @ true_share_in_Q + earlier_count))


def _compute_mean_shift_ratio(earlier: Model, newest: Model, to_newest_units: F64) -> float:
    """Compute the squared shift of the mean, divided by the earlier total variance, in the newest units.

    In the units of a model, each entry is multiplied by `Model.D` (d,). `to_newest_units` (d,) converts entries from
    the earlier units.
    """
    squared_shifts = np.square(newest.D * (newest.mean - earlier.mean))
    for model in (newest, earlier):
        if model.seen is not None:  # an entry that one of the models has not seen has no mean there, so no shift
            squared_shifts = np.where(model.seen, squared_shifts, 0.0)
    earlier_total_in_newest_units = earlier.total_variance  # the units are equal if the stream is not standardised
    if earlier.scale is not None:
        # A standardised entry has the variance 1 in the earlier units, and `to_newest_units`² in the newest. A constant
        # entry has no variance, and exactly the scale 1, which an entry that varies practically never has.
        is_constant = earlier.scale == 1
        earlier_total_in_newest_units = float(np.square(to_newest_units)[~is_constant].sum())
    # A float64 of NumPy, because division by 0 must give ∞ or NaN, and not raise.
    return float(squared_shifts.sum() / np.float64(earlier_total_in_newest_units))
