"""scikit-learn's IncrementalPCA by a Gram matrix instead of an SVD, and the covariance itself, where that is cheap.

IncrementalPCA stacks the factor diag(σ)Vᵀ, the batch about its own mean, and a row for the step from the running mean
to the batch's; the leading singular vectors of these rows are the next factor. With RRᵀ = U diag(σ²) Uᵀ they are UᵀR,
and with fewer columns than rows the same comes from RᵀR. That is quicker, and loses what is below √ε of the largest.
"""

from collections.abc import Iterable

import numpy as np
from scipy.linalg import eigh

from streampca.pca.arrays import F64, Array
from streampca.pca.learning import LearningConfig


class GramIncrementalPCA:
    """`columns` leading components of a stream, batch by batch."""

    def __init__(self, d: int, columns: int, dtype: str = "float64") -> None:
        """Nothing seen."""
        self.count, self.columns = 0, columns
        self.mean, self.factor = np.zeros(d), np.zeros((0, d), dtype)

    def partial_fit(self, V: Array) -> None:
        """Learn a batch V (n, d)."""
        n, total, mean = len(V), self.count + len(V), V.mean(axis=0, dtype=np.float64)
        step = np.sqrt(self.count * n / total) * (self.mean - mean)
        R = np.vstack([self.factor, V - mean.astype(V.dtype), step.astype(V.dtype)])
        kept = min(self.columns, *R.shape)
        if len(R) <= R.shape[1]:
            self.factor = _leading(R @ R.T, kept)[1].T @ R
        else:
            variance, U = _leading(R.T @ R, kept)
            self.factor = np.sqrt(np.maximum(variance, 0))[:, None] * U.T
        self.mean, self.count = self.mean + n / total * (mean - self.mean), total

    def components(self, k: int) -> F64:
        """The k leading ones, orthonormal rows (k, d)."""
        rows: F64 = self.factor[:k].astype(np.float64)
        lengths: F64 = np.linalg.norm(rows, axis=1)
        return rows / lengths[:, None]


def _leading(A: Array, count: int) -> tuple[Array, Array]:
    """The largest eigenvalues, falling, and their vectors, by the quicker of two routines."""
    n = len(A)
    variance, U = np.linalg.eigh(A) if 4 * count > n else eigh(A, subset_by_index=(n - count, n - 1))
    return variance[::-1][:count], U[:, ::-1][:, :count]


def held(d: int, k: int) -> int:
    """Columns that our state holds where it keeps a factor, K + ℓ, and so those of rivals."""
    return LearningConfig(d, k, factor=True).columns


def incremental(batches: Iterable[F64], d: int, columns: int, k: int) -> tuple[F64, F64]:
    """Components (k, d) and mean of IncrementalPCA with so many columns."""
    pca = GramIncrementalPCA(d, columns)
    for batch in batches:
        pca.partial_fit(batch)
    return pca.components(k), pca.mean


class RunningCovariance:
    """The covariance of a stream, (d, d), batch by batch."""

    def __init__(self, d: int, dtype: str = "float64") -> None:
        """Nothing seen."""
        self.count, self.mean, self.scatter = 0, np.zeros(d), np.zeros((d, d), dtype)

    def partial_fit(self, V: Array) -> None:
        """Learn a batch V (n, d)."""
        n, total, mean = len(V), self.count + len(V), V.mean(axis=0, dtype=np.float64)
        step, Y = mean - self.mean, V - mean.astype(V.dtype)
        self.scatter += Y.T @ Y + (self.count * n / total * np.outer(step, step)).astype(V.dtype)
        self.mean, self.count = self.mean + n / total * step, total

    @property
    def covariance(self) -> Array:
        """The covariance (d, d) of all rows so far."""
        return self.scatter / self.count
