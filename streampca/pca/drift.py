"""How far a model has moved from an earlier one of the same stream; docs/mathematics.md, section 16.

The units are those of the newest model, y = D(v − m). In these units, Q is an orthonormal basis of the kₚ axes DDₚ⁻¹Uₚ
of the earlier model. The stream has the variance σ²(1 + t) along its true axes, and σ² in all other directions. Each
learned axis u is at an angle of arccos c to a true axis (projection.Spikes). So Q explains the variance

    Σᵢ σ²tᵢ min(1, ‖Qᵀuᵢ‖²/cᵢ²) + kₚσ²

The learned variances Λ would be wrong here: learned axes fit the messages from which they were learned, so the earlier
axes would explain less of Λ even in a stream that has not changed. No matrix (d, d) is formed; the cost is d·k².
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.angles import principal_angles
from streampca.pca.model import Model


class Drift(NamedTuple):
    """How far the newest model has moved from an earlier one."""

    angle_radians: float  # the largest principal angle between the axes; newest axes without variance do not count
    explained_variance_ratio: (
        float  # expected share of new messages' variance along the earlier axes; 0 without variance
    )
    newest_explained_variance_ratio: float  # expected share of new messages' variance along the newest axes
    mean_shift_ratio: float  # squared shift of the mean, divided by the earlier total variance; not finite if that is 0


@np.errstate(all="ignore")
def drift(earlier: Model, newest: Model) -> Drift:
    """Measure the drift between two models of the same dimensions, in the units of the newest."""
    units = newest.D / earlier.D
    U = np.asarray(newest.components.T, np.float64)
    Q = np.asarray(earlier.components.T, np.float64)
    if (units != 1).any():
        Q = np.linalg.qr(Q * units[:, None])[0]
    spikes = newest.spikes
    is_spike = spikes.overlap > 0  # an axis without overlap only fits noise
    U_spikes = U[:, : len(is_spike)][:, is_spike]
    # A learned axis is at an angle to the true axis of the stream. So the earlier axes explain more of the true axis
    # than of the learned axis, by the factor 1/overlap.
    share = np.minimum(np.square(U_spikes.T @ Q).sum(axis=1) / spikes.overlap[is_spike], 1.0)
    explained = spikes.sigma2 * (spikes.strength[is_spike] @ share + earlier.n_components)
    with_variance = U[:, newest.explained_variance >= newest.floored_variance]
    varies = newest.total_variance > 0
    shifts = np.square(newest.D * (newest.mean - earlier.mean))
    for model in (newest, earlier):
        if model.seen is not None:  # the mean of a dimension is 0 until it is seen, and its first value is not a shift
            shifts = np.where(model.seen, shifts, 0.0)
    earlier_total = earlier.total_variance
    if earlier.scale is not None:  # an entry had variance 1 in the earlier units if it varied; if constant, its D was 1
        earlier_total = float(np.square(units)[earlier.scale != 1].sum())
    return Drift(
        angle_radians=float(principal_angles(with_variance.T, Q.T).max(initial=0.0)),
        explained_variance_ratio=float(explained / newest.total_variance) if varies else 0.0,
        newest_explained_variance_ratio=float(spikes.of_new.sum() / newest.total_variance) if varies else 0.0,
        mean_shift_ratio=float(shifts.sum() / np.float64(earlier_total)),
    )
