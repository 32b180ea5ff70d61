"""The vectors projected most recently, in memory only, to show where they lie along the components of any model.

The vectors themselves are never returned: only two coordinates, a squared distance and a p-value of each, and what a
few dimensions contribute to the scores of the most unusual ones.
"""

import threading
import time
from typing import Any

import numpy as np

from streampca.fold.model_file import PublishedModel
from streampca.pca.arrays import F64, Array
from streampca.sidecar.errors import invalid

_MAX_VECTORS = 500
_WORST, _DIMENSIONS = 5, 3  # vectors that are described, and dimensions of each
_MAX_BYTES = 8 * 1024 * 1024  # of all vectors together


class RecentVectors:
    """The vectors of the last requests, of one length. Safe to use from any thread."""

    def __init__(self) -> None:
        self._rows: list[tuple[Array, float]] = []  # each vector, and the seconds since 1970 of its request
        self._lock = threading.Lock()

    def add(self, vectors: Array) -> None:
        """Add vectors (n, d), in place of the oldest. If d differs from theirs, all old ones are dropped."""
        now, (n, d) = time.time(), vectors.shape
        most = min(_MAX_VECTORS, _MAX_BYTES // (8 * d))
        new = [(row, now) for row in vectors[max(n - most, 0) :].copy()]
        with self._lock:
            rows = [*self._of_length(d), *new]
            self._rows = rows[max(len(rows) - most, 0) :]

    def project(self, published: PublishedModel, x: int, y: int) -> dict[str, Any]:
        """The vectors along components x and y, counted from 1, the oldest first. Raises `RequestError`."""
        model = published.model
        for name, component in (("x", x), ("y", y)):
            if not 1 <= component <= model.n_components:
                raise invalid(f"{name} must be a component of the model, 1 to {model.n_components}, not {component}")
        vectors, at = self._snapshot(model.dimensions)
        projected = published.project(vectors)
        finite = np.isfinite(projected.residual) & np.isfinite(projected.coordinates).all(axis=1)
        projected, at = projected.rows(finite), at[finite]
        score, p = projected.scores.score, projected.p
        worst = np.argsort(-score, kind="stable")[:_WORST]
        which, values = projected.rows(worst).contributions(_DIMENSIONS)
        return {
            "version": published.version,
            "coordinates": np.ascontiguousarray(projected.coordinates[:, [x - 1, y - 1]], np.float64),
            "at": at,
            "residual": np.asarray(projected.residual, np.float64),
            "p": p,
            "worst": [
                {"at": float(at[i]), "score": float(score[i]), "p": None if p is None else float(p[i]),
                 "dimensions": [published.names[j] for j in dimensions] if published.names else dimensions,
                 "shares": [each / (float(projected.residual[i]) or 1.0) for each in contributions]}
                for i, dimensions, contributions in zip(worst, which[1].tolist(), values.spe.tolist(), strict=True)
            ],
        }  # fmt: skip

    def _snapshot(self, dimensions: int) -> tuple[Array, F64]:
        """The vectors (n, d) and times (n,), the oldest first; empty if theirs is another length."""
        rows = self._of_length(dimensions)
        return np.array([row for row, _ in rows]).reshape(-1, dimensions), np.array([at for _, at in rows], np.float64)

    def _of_length(self, dimensions: int) -> list[tuple[Array, float]]:
        rows = self._rows
        return rows if rows and len(rows[0][0]) == dimensions else []
