"""Batch PCA: the k leading eigenvectors of the covariance, and the compression loss of any span.

    loss(P) = mean ‖(I − P)(x − m)‖² = tr((I − P) Σ)                                 eq. 1 and 2

The least loss of rank k is the sum of the d − k smallest eigenvalues of Σ.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.baselines.orthonormal import orthonormal
from streampca.pca.arrays import F64, Array

_ROWS = 4096  # converted to float64 and centred at a time: pictures are bytes, and their copy need not fit twice


def covariance(X: NDArray[Any]) -> F64:
    """Σ (d, d) of vectors X (n, d) of any number type about their mean, with n in the denominator."""
    mean = X.mean(axis=0, dtype=np.float64)
    total = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), _ROWS):
        centred = X[start : start + _ROWS] - mean
        total += centred.T @ centred
    return total / len(X)


def components(X: NDArray[Any], k: int) -> F64:
    """Orthonormal rows (k, d) by falling variance of vectors X (n, d)."""
    return components_of(covariance(X), k)


def components_of(covariance: F64, k: int) -> F64:
    """The same from a covariance (d, d) that is known already."""
    _, vectors = np.linalg.eigh(covariance)
    return np.ascontiguousarray(vectors[:, ::-1][:, :k].T)


def loss(X: NDArray[Any], C: Array) -> float:
    """Compression loss on vectors X (n, d), as eq. 1 has it, of the span of C (d, k) with any independent columns."""
    Q = orthonormal(C.astype(np.float64))
    mean = X.mean(axis=0, dtype=np.float64)
    total = 0.0
    for start in range(0, len(X), _ROWS):
        centred = X[start : start + _ROWS] - mean
        total += float(np.sum((centred - centred @ Q @ Q.T) ** 2))
    return total / len(X)


def loss_of(covariance: F64, C: Array) -> float:
    """The same from the covariance (d, d): O(d²k) whatever the number of vectors; eq. 2."""
    Q = orthonormal(C.astype(np.float64))
    return float(np.trace(covariance) - np.sum(Q * (covariance @ Q)))


def least_loss(covariance: F64, k: int) -> float:
    """The loss of batch PCA itself."""
    eigenvalues = np.linalg.eigvalsh(covariance)
    return float(eigenvalues[: len(eigenvalues) - k].sum())
