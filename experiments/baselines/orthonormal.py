"""QR(C): an orthonormal basis (d, k) of the span of C, made unique by a positive diagonal of R."""

import numpy as np

from streampca.pca.arrays import Array


def orthonormal(C: Array) -> Array:
    """Q of C = QR, with R's diagonal not negative, so that a basis which is orthonormal already stays as it is."""
    Q, R = np.linalg.qr(C)
    basis: Array = Q * np.where(np.diagonal(R) < 0, -1, 1).astype(Q.dtype)
    return basis
