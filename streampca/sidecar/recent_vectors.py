"""Vectors projected or scored recently, in memory only, to show where they lie along the components of any model.

The vectors themselves are never returned: only two coordinates, a squared distance and a p-value of each, and what a
few dimensions contribute to the scores of the most unusual ones.
"""

import threading
import time
from collections import deque
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
        self._parts: deque[tuple[Array, float]] = deque()  # the vectors of a request, and its seconds since 1970
        self._count = 0  # of vectors
        self._lock = threading.Lock()

    def add(self, vectors: Array) -> None:
        """Add vectors (n, d), in place of the oldest. If d differs from theirs, all old ones are dropped."""
        n, d = vectors.shape
        limit = _limit(d)
        last = vectors[n - limit :].copy() if n > limit else vectors
        with self._lock:
            if self._parts and self._parts[0][0].shape[1] != d:
                self._parts.clear()
                self._count = 0
            self._parts.append((last, time.time()))
            self._count += len(last)
            while self._parts and self._count - len(self._parts[0][0]) >= limit:
                self._count -= len(self._parts.popleft()[0])

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
        with self._lock:
            parts = list(self._parts)
        if not parts or parts[0][0].shape[1] != dimensions:
            return np.empty((0, dimensions)), np.empty(0)
        times = np.repeat([at for _, at in parts], [len(vectors) for vectors, _ in parts])
        limit = _limit(dimensions)
        return np.concatenate([vectors for vectors, _ in parts])[-limit:], times[-limit:]


def _limit(dimensions: int) -> int:
    return min(_MAX_VECTORS, _MAX_BYTES // (8 * dimensions))
