"""EM for PCA without noise (Roweis 1998; the paper's batch EM).

    X = C†Y          E-step
    C = YX†          M-step

Fixed points are the C whose columns span eigenvectors of the covariance.
"""

import numpy as np

from streampca.pca.arrays import Array


def step(C: Array, Y: Array) -> Array:
    """One iteration on all messages Y (N, d): the next C (d, k). The loss of its span does not grow."""
    X = np.linalg.pinv(C) @ Y.T  # (k, N)
    following: Array = Y.T @ np.linalg.pinv(X)
    return following
