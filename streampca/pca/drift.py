"""How far a model has moved from an earlier one of the same stream; docs/mathematics.md, section 16.

With the newest model's y = D(v − m), and an orthonormal basis Q of the earlier model's axes in these units, DDₚ⁻¹Uₚ:
the stream's covariance is that of noise σ² with variance σ²(1 + t) along axes of its own, from each of which the
learned axis u is the angle arccos c away (projection.Spikes). So Q explains of it

    Σᵢ σ²tᵢ min(1, ‖Qᵀuᵢ‖²/cᵢ²) + kₚσ²

of all kₚ axes of the earlier model. The learned variances Λ would not do: axes fit the messages that they were learned
from, so the earlier axes would explain less of Λ even in a stream that has not changed. No matrix (d, d) is formed: it
costs d·k².
"""

from typing import NamedTuple

import numpy as np

from streampca.pca.angles import principal_angles
from streampca.pca.model import Model


class Drift(NamedTuple):
    """How far the newest model has moved from an earlier one."""

    angle_radians: float  # radians; the largest principal angle, without the newest axes of no variance
    explained_variance_ratio: float  # expected share of new messages' variance along the earlier axes; 0 if none varies
    newest_explained_variance_ratio: float  # the same along the newest axes
    mean_shift_ratio: float  # squared shift of the mean, by the earlier total variance; not finite if that is 0


@np.errstate(all="ignore")
def drift(earlier: Model, newest: Model) -> Drift:
    """The drift between two models of the same dimensions, in the units of the newest."""
    units = newest.D / earlier.D
    U, Q = (np.asarray(model.components.T, np.float64) for model in (newest, earlier))
    if (units != 1).any():
        Q = np.linalg.qr(Q * units[:, None])[0]
    spikes = newest.spikes
    is_spike = spikes.overlap > 0  # other axes only fit noise
    U_spikes = U[:, : len(is_spike)][:, is_spike]
    # A learned axis is at an angle to the stream's own axis, so an earlier axis seems to explain less of it by the
    # factor `overlap`.
    share = np.minimum(np.square(U_spikes.T @ Q).sum(axis=1) / spikes.overlap[is_spike], 1.0)
    explained = spikes.sigma2 * (spikes.strength[is_spike] @ share + earlier.n_components)
    with_variance = U[:, newest.explained_variance >= newest.floored_variance]
    varies = newest.total_variance > 0
    shifts = np.square(newest.D * (newest.mean - earlier.mean))
    for model in (newest, earlier):
        if model.seen is not None:  # the mean of a dimension is 0 until it is seen, which is not where it shifts from
            shifts = np.where(model.seen, shifts, 0.0)
    earlier_total = earlier.total_variance
    if earlier.scale is not None:  # an entry that varied had variance 1 in its own units, a constant one had D = 1
        earlier_total = float(np.square(units)[earlier.scale != 1].sum())
    return Drift(
        angle_radians=float(principal_angles(with_variance.T, Q.T).max(initial=0.0)),
        explained_variance_ratio=float(explained / newest.total_variance) if varies else 0.0,
        newest_explained_variance_ratio=float(spikes.of_new.sum() / newest.total_variance) if varies else 0.0,
        mean_shift_ratio=float(shifts.sum() / np.float64(earlier_total)),
    )
