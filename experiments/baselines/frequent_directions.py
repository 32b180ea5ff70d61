"""Frequent Directions (Liberty 2013; Ghashami, Liberty, Phillips & Woodruff 2016): a sketch that shrinks when full.

The sketch B holds at most 2l rows. When it is full, its singular values are shrunk and l rows stay:

    B = U diag(s) Wᵀ,    B ← diag(√max(s² − s²_{l+1}, 0)) Wᵀ

Then ‖AᵀA − BᵀB‖ ≤ ‖A − A_k‖²_F / (l − k) for the rows A that were seen, whatever their order. There is no step size.
"""

import numpy as np

from streampca.pca.arrays import F64


class FrequentDirections:
    """The sketch of a stream of rows in d dimensions."""

    def __init__(self, d: int, rows: int) -> None:
        """An empty sketch, of which `rows` rows stay when it is shrunk."""
        self.rows = min(rows, d)
        self._B = np.zeros((2 * self.rows, d))
        self._filled = 0

    def add(self, Y: F64) -> None:
        """Learn the rows Y (n, d)."""
        while len(Y):
            taken = min(len(Y), len(self._B) - self._filled)
            self._B[self._filled : self._filled + taken] = Y[:taken]
            self._filled, Y = self._filled + taken, Y[taken:]
            if self._filled == len(self._B):
                self._shrink()

    def _shrink(self) -> None:
        squares, U = np.linalg.eigh(self._B @ self._B.T)  # s² and U, in a fifth of an SVD's time
        squares, U = np.maximum(squares[::-1], np.finfo(np.float64).tiny), U[:, ::-1]
        share = np.sqrt(np.maximum(1 - squares[self.rows] / squares[: self.rows], 0.0))
        kept = share[:, None] * (U[:, : self.rows].T @ self._B)
        self._B[:] = 0.0
        self._B[: self.rows] = kept
        self._filled = self.rows

    @property
    def sketch(self) -> F64:
        """B (at most 2l, d), with BᵀB near the sum of the squares of all rows."""
        return self._B[: self._filled].copy()
