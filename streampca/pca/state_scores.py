"""Losses of messages by the state of a stream, before they are learned: as by its model, from C and N alone."""

import numpy as np

from streampca.pca import axes, conditional
from streampca.pca.anomaly import AnomalyScores, rounding
from streampca.pca.arrays import F64, Array
from streampca.pca.conditional import Completed, has_gaps
from streampca.pca.state import State

TILE = 64  # messages that are scored at once


class StateScorer:
    """Losses messages by the k leading axes of a state that has learned some."""

    def __init__(self, state: State, k: int) -> None:
        """`k` axes, or as many as the state has."""
        self._mean, (variance, V) = state.mean, axes.of_gram(state.N, k)
        rest, others = state.total_variance - float(variance.sum()), len(state.mean) - len(variance)
        self.sigma2 = max(rest / others if others else 0.0, rounding(state.total_variance, state.C.dtype))
        self._variance = variance
        self._W = state.C @ (V / variance)  # (d, k): T² = ‖Wᵀy‖²

    def scores(self, V: Array, first: int) -> AnomalyScores:
        """T², SPE and score of messages (n, d), the first of which is message `first` since the state was learned.

        Messages are scored in tiles of 64 that are counted since then, so no bit depends on how many arrive together.
        With gaps, which are NaN, scores are those to be expected, given the other entries.
        """
        if has_gaps(V):
            V, t2, spe = self._complete(V)
            found = self.scores(V, first)
            return AnomalyScores(found.t2 + t2, found.spe + spe, found.score + t2 + spe / self.sigma2)
        start, n = first % TILE, len(V)
        squares, norm = np.empty((n, len(self._variance))), np.empty(n)
        with np.errstate(over="ignore", invalid="ignore"):
            for i in range(-start, n, TILE):
                rows = slice(max(i, 0), i + TILE)
                squares[rows], norm[rows] = self._of_tile(V[rows], max(-i, 0))
            squares **= 2
            spe = norm - np.vecdot(squares, self._variance)
            t2, spe = (np.where(np.isnan(part), np.inf, part) for part in (squares.sum(axis=1), spe))
            spe = np.maximum(spe, 0.0)
            return AnomalyScores(t2, spe, t2 + spe / self.sigma2)

    def _complete(self, V: Array) -> Completed:
        """Messages (n, d) without their gaps."""
        return conditional.complete(V, self._mean, self._W * self._variance**0.5, self._variance, self.sigma2)

    def _of_tile(self, rows: Array, place: int) -> tuple[F64, F64]:
        """yᵀW (n, k) and ‖y‖² (n,) of rows at this place of a tile, the rest of which is zeros."""
        if len(rows) == TILE:
            Y = rows - self._mean
        else:
            Y = np.zeros((TILE, rows.shape[1]))
            np.subtract(rows, self._mean, out=Y[place : place + len(rows)])
        return (Y @ self._W)[place : place + len(rows)], np.vecdot(Y, Y)[place : place + len(rows)]
