"""Oja's update: stochastic gradient ascent on the variance, and back to orthonormal columns.

    C ← QR(C + η/N YYᵀC)

The step size has the unit of one over a variance.
"""

import numpy as np

from experiments.baselines.orthonormal import orthonormal
from streampca.pca.arrays import Array


def step(C: Array, Y: Array, eta: float) -> Array:
    """The next orthonormal C (d, k) after messages Y (N, d), or one message (d,), with step size η."""
    Y = np.atleast_2d(Y)
    return orthonormal(C + eta / len(Y) * (Y.T @ (Y @ C)))
