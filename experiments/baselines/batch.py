"""Batch PCA of a whole stream, and by how much the loss of any components exceeds its loss.

    loss(P) = mean ‖(I − P)(x − m)‖² = tr((I − P) Σ)                                 eq. 1 and 2

The least loss of rank k is the sum of the d − k smallest eigenvalues of Σ.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from streampca.pca.arrays import F64


@dataclass(frozen=True, eq=False)
class Batch:
    """The batch solution of a stream."""

    covariance: F64  # (d, d)
    mean: F64  # (d,)
    variances: F64  # (d,), falling

    @classmethod
    def of(cls, pieces: Callable[[], Iterable[F64]], center: bool = True) -> "Batch":
        """From the rows, in pieces that are read twice; about zero, not the mean, if it is not to be centred."""
        n, total = 0, np.zeros(())
        for piece in pieces():
            n, total = n + len(piece), total + piece.sum(axis=0)
        mean = total / n * center
        covariance = sum(((piece - mean).T @ (piece - mean) for piece in pieces()), np.zeros(())) / n
        return cls(covariance, mean, np.linalg.eigvalsh(covariance)[::-1].astype(np.float64))

    def loss(self, k: int) -> float:
        """Mean squared residual of the best k components."""
        return float(self.variances[k:].sum())

    def excess(self, components: F64, mean: F64) -> float:
        """Percent by which the loss of orthonormal rows (k, d) about `mean` exceeds the least."""
        offset = mean - self.mean
        kept = np.trace(components @ self.covariance @ components.T) + np.sum((components @ offset) ** 2)
        loss = np.trace(self.covariance) + offset @ offset - kept
        return float(100 * (loss / self.loss(len(components)) - 1))
