"""Keeps the vectors of recent requests in memory, so that the page can display them along the components of a model.

The vectors themselves are never returned. Of each vector the page gets two coordinates, a squared distance and a
p-value, and of the most unusual vectors the dimensions that contribute most to their scores.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from streampca.fold.model_file import PublishedModel
from streampca.pca.arrays import F64, Array
from streampca.pca.model import Projected
from streampca.sidecar.errors import invalid

_MAX_VECTORS = 500
_MAX_BYTES = 8 * 1024 * 1024  # of all vectors together
_MOST_UNUSUAL = 5  # vectors whose contributions are listed
_CONTRIBUTIONS = 3  # of each of these vectors


class RecentVectors:
    """The vectors of the last requests, all with the same number of dimensions. Safe to use from any thread."""

    def __init__(self) -> None:
        self._requests: deque[tuple[Array, float]] = deque()  # vectors of each request, and its seconds since 1970
        self._count = 0  # of vectors
        self._lock = threading.Lock()

    def add(self, vectors: Array) -> None:
        """Add vectors (n, d) and drop the oldest. If the earlier vectors have another d, all of them are dropped."""
        n, d = vectors.shape
        limit = _max_vectors(d)
        last = vectors
        if n > limit:
            last = vectors[n - limit :].copy()  # without the copy, the whole array would stay in memory
        with self._lock:
            if self._requests and self._requests[0][0].shape[1] != d:
                self._requests.clear()
                self._count = 0
            self._requests.append((last, time.time()))
            self._count += len(last)
            # Drop the oldest request as long as the later ones have enough vectors. The last one is dropped, too, if a
            # single vector is too long, so that the limit is 0.
            while self._requests and self._count - len(self._requests[0][0]) >= limit:
                oldest, _ = self._requests.popleft()
                self._count -= len(oldest)

    def project(self, published: PublishedModel, x: int, y: int) -> dict[str, Any]:
        """Return the vectors along components x and y, which are counted from 1, the oldest first.

        Raises `RequestError` if the model does not have one of the components.
        """
        model = published.model
        for name, component in (("x", x), ("y", y)):
            if not 1 <= component <= model.n_components:
                raise invalid(f"{name} must be a component of the model, 1 to {model.n_components}, not {component}")
        vectors, times_s = self._snapshot(model.dimensions)
        projected = published.project(vectors)
        is_finite = np.isfinite(projected.residual) & np.isfinite(projected.coordinates).all(axis=1)
        projected = projected.rows(is_finite)
        times_s = times_s[is_finite]
        return {
            "version": published.version,
            "coordinates": np.ascontiguousarray(projected.coordinates[:, [x - 1, y - 1]], np.float64),
            "at": times_s,
            "residual": np.asarray(projected.residual, np.float64),
            "p": projected.p,
            "worst": _describe_most_unusual(projected, times_s, published.names),
        }

    def _snapshot(self, dimensions: int) -> tuple[Array, F64]:
        """Return the vectors (n, d) and their times (n,), the oldest first; none if they have another d."""
        with self._lock:
            requests = list(self._requests)
        if not requests or requests[0][0].shape[1] != dimensions:
            return np.empty((0, dimensions)), np.empty(0)
        vectors = np.concatenate([vectors for vectors, _ in requests])
        times_s = np.repeat([time_s for _, time_s in requests], [len(vectors) for vectors, _ in requests])
        limit = _max_vectors(dimensions)
        return vectors[-limit:], times_s[-limit:]


def _describe_most_unusual(projected: Projected, times_s: F64, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Describe the vectors with the highest scores, with the dimensions that contribute most to their distance."""
    score = projected.scores.score
    p = projected.p
    most_unusual = np.argsort(-score, kind="stable")[:_MOST_UNUSUAL]
    dimensions_by_score, contributions_by_score = projected.rows(most_unusual).contributions(_CONTRIBUTIONS)
    _, spe_dimensions = dimensions_by_score
    spe_contributions = contributions_by_score.spe
    described = []
    for i, dimensions, contributions in zip(
        most_unusual, spe_dimensions.tolist(), spe_contributions.tolist(), strict=True
    ):
        squared_distance = float(projected.residual[i]) or 1.0  # at a distance of 0, the contributions are 0, too
        described.append(
            {
                "at": float(times_s[i]),
                "score": float(score[i]),
                "p": None if p is None else float(p[i]),
                "dimensions": [names[j] for j in dimensions] if names else dimensions,
                "shares": [contribution / squared_distance for contribution in contributions],
            }
        )
    return described


def _max_vectors(dimensions: int) -> int:
    return min(_MAX_VECTORS, _MAX_BYTES // (8 * dimensions))
