"""Models of several machines combined into one.

    C = Σ αᵢ Cᵢ / Σ αᵢ                                                               eq. 17

`merge` in streampca.pca pools covariances instead, and is far closer to one pass over everything.
"""

from collections.abc import Sequence

import numpy as np

from experiments.baselines.orthonormal import orthonormal
from streampca.pca.arrays import Array


def average(factors: Sequence[Array], weights: Sequence[float] | None = None) -> Array:
    """Eq. 17 of factors (d, k): weighted by αᵢ ≥ 0, such as each one's number of messages; None: all alike.

    Raises `ValueError` for no factors, and for weights that are negative, all zero or not one each.
    """
    alpha = np.ones(len(factors)) if weights is None else np.asarray(weights, np.float64)
    if alpha.shape != (len(factors),):
        raise ValueError(f"{alpha.size} weights for {len(factors)} factors")
    if not len(factors) or alpha.min() < 0 or alpha.sum() <= 0:
        raise ValueError("weights must not be negative, and some factor must have a weight")
    combined: Array = np.tensordot(alpha / alpha.sum(), np.stack(factors), axes=1)
    return combined


def average_orthonormal(factors: Sequence[Array], weights: Sequence[float] | None = None) -> Array:
    """What the paper does with Oja's and Krasulina's orthonormal factors: the average, then QR."""
    return orthonormal(average(factors, weights))
