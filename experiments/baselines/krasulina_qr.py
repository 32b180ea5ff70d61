"""Krasulina's update for k components (Tang 2019): projected gradient descent on the Stiefel manifold.

    X = CᵀY          C ← QR(C − η/N (CX − Y)Xᵀ)                                      eq. 9

It differs from Oja's update by the gradient, which is projected onto the tangent space before the step.
"""

import numpy as np

from experiments.baselines.orthonormal import orthonormal
from streampca.pca.arrays import Array


def step(C: Array, Y: Array, eta: float) -> Array:
    """The next orthonormal C (d, k) after messages Y (N, d), or one message (d,), with step size η."""
    Y = np.atleast_2d(Y)
    X = C.T @ Y.T  # (k, N)
    return orthonormal(C - eta / len(Y) * ((C @ X - Y.T) @ X.T))
