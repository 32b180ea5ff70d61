"""Oja's update: stochastic gradient ascent on the variance, and back to orthonormal columns.

    C ← QR(C + η/N YYᵀC)

The step size has the unit of one over a variance.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.baselines.orthonormal import orthonormal

Array = NDArray[np.floating[Any]]


def step(C: Array, Y: Array, eta: float) -> Array:
    """The next orthonormal C (d, k) after messages Y (N, d), or one message (d,), with step size η."""
    Y = np.atleast_2d(Y)
    return orthonormal(C + eta / len(Y) * (Y.T @ (Y @ C)))
