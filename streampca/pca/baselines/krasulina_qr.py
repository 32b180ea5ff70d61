"""Krasulina's update for k components (Tang 2019): projected gradient descent on the Stiefel manifold.

    X = CᵀY          C ← QR(C − η/N (CX − Y)Xᵀ)                                      eq. 6

It differs from Oja's update by the gradient, which is projected onto the tangent space before the step.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.baselines.orthonormal import orthonormal

Array = NDArray[np.floating[Any]]


def step(C: Array, Y: Array, eta: float) -> Array:
    """The next orthonormal C (d, k) after messages Y (N, d), or one message (d,), with step size η."""
    Y = np.atleast_2d(Y)
    X = C.T @ Y.T  # (k, N)
    return orthonormal(C - eta / len(Y) * ((C @ X - Y.T) @ X.T))
