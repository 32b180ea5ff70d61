"""Keeps the vectors of recent requests in memory, so that the page can display them along the components of a model.

The vectors themselves are never returned. Of each vector the page gets two coordinates, a squared distance and a
p-value, and of the most unusual vectors the dimensions that contribute most to their scores, and the label.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.fold.model_file import PublishedModel
from streampca.formats.labels import NO_LABEL
from streampca.pca.arrays import F64, Array
from streampca.pca.model import Projected
from streampca.sidecar.errors import invalid

_MAX_VECTORS = 500
_MAX_BYTES = 8 * 1024 * 1024  # of all vectors together
_DESCRIBED_VECTORS = 5  # the most unusual ones
_DESCRIBED_DIMENSIONS = 3  # of each of these vectors, those that contribute most


class _Request(NamedTuple):
    """The vectors of one request."""

    vectors: Array  # (n, d)
    labels: Sequence[str]  # of the vectors
    time_s: float  # since 1970


class _Snapshot(NamedTuple):
    """The kept vectors at one moment."""

    vectors: Array  # (n, d)
    labels: NDArray[Any]  # (n,), texts
    times_s: F64  # (n,), since 1970


class RecentVectors:
    """The vectors of the last requests, all with the same number of dimensions. Safe to use from any thread."""

    def __init__(self) -> None:
        self._requests: deque[_Request] = deque()  # the oldest first; all have the same d
        self._count = 0  # of vectors
        self._lock = threading.Lock()

    def add(self, vectors: Array, labels: Sequence[str] | None = None) -> None:
        """Add the vectors (n, d) of a request. If the earlier vectors have another d, drop all of them.

        Drop the oldest request as long as the newer requests hold the maximum number of vectors.
        """
        n, d = vectors.shape
        max_count = _max_vector_count(d)
        labels = [NO_LABEL] * n if labels is None else labels
        if n > max_count:
            labels = labels[n - max_count :]
            vectors = vectors[n - max_count :].copy()  # a view would keep the whole array in memory
        with self._lock:
            if self._requests and self._requests[0].vectors.shape[1] != d:
                self._requests.clear()
                self._count = 0
            self._requests.append(_Request(vectors=vectors, labels=labels, time_s=time.time()))
            self._count += len(vectors)
            while self._requests:
                count_without_oldest = self._count - len(self._requests[0].vectors)
                if count_without_oldest < max_count:
                    break
                self._requests.popleft()
                self._count = count_without_oldest

    def project(self, published: PublishedModel, x: int, y: int) -> dict[str, Any]:
        """Return the coordinates of the vectors along components x and y, counted from 1, the oldest first.

        Raises `RequestError` if the model does not have one of the components.
        """
        model = published.model
        for axis, component in (("x", x), ("y", y)):
            if not 1 <= component <= model.n_components:
                raise invalid(f"{axis} must be a component of the model, 1 to {model.n_components}, not {component}")
        vectors, labels, times_s = self._snapshot(model.dimensions)
        projected = published.project(vectors)
        is_finite = np.isfinite(projected.residual) & np.isfinite(projected.coordinates).all(axis=1)
        projected = projected.rows(is_finite)
        labels = labels[is_finite]
        times_s = times_s[is_finite]
        return {
            "version": published.version,
            "coordinates": np.ascontiguousarray(projected.coordinates[:, [x - 1, y - 1]], np.float64),
            "at": times_s,
            "residual": np.asarray(projected.residual, np.float64),
            "p": projected.p,
            "worst": _describe_most_unusual(projected, labels, times_s, published.names),
        }

    def _snapshot(self, dimensions: int) -> _Snapshot:
        """Return the kept vectors, the oldest first; none if they have other dimensions."""
        with self._lock:
            requests = list(self._requests)
        if not requests or requests[0].vectors.shape[1] != dimensions:  # all kept vectors have the same dimensions
            return _Snapshot(vectors=np.empty((0, dimensions)), labels=np.empty(0, object), times_s=np.empty(0))
        vectors = np.concatenate([request.vectors for request in requests])
        counts = [len(request.vectors) for request in requests]
        times_s = np.repeat([request.time_s for request in requests], counts)
        # There may be too many vectors, since requests are dropped as a whole.
        max_count = _max_vector_count(dimensions)
        labels = np.array([label for request in requests for label in request.labels], object)
        return _Snapshot(vectors=vectors[-max_count:], labels=labels[-max_count:], times_s=times_s[-max_count:])


def _describe_most_unusual(
    projected: Projected, labels: NDArray[Any], times_s: F64, names: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Describe the vectors with the highest scores by the dimensions that contribute most to SPE."""
    score = projected.scores.score
    p = projected.p
    most_unusual = np.argsort(-score, kind="stable")[:_DESCRIBED_VECTORS]  # indices of vectors, the highest score first
    t2_and_spe_dimensions, contributions = projected.rows(most_unusual).contributions(_DESCRIBED_DIMENSIONS)
    _t2_dimensions, spe_dimensions = t2_and_spe_dimensions
    described = []
    for rank, vector_index in enumerate(most_unusual):
        dimensions = spe_dimensions[rank].tolist()
        spe = float(projected.residual[vector_index])  # SPE is another name of the residual
        divisor = spe or 1.0  # if the SPE is 0, all contributions are 0
        described.append(
            {
                "at": float(times_s[vector_index]),
                "label": labels[vector_index],
                "score": float(score[vector_index]),
                "p": None if p is None else float(p[vector_index]),
                "dimensions": [names[j] for j in dimensions] if names else dimensions,
                "shares": [contribution / divisor for contribution in contributions.spe[rank].tolist()],
            }
        )
    return described


def _max_vector_count(dimensions: int) -> int:
    """Return how many vectors are kept: at most 500, and fewer if these would take too much memory."""
    return min(_MAX_VECTORS, _MAX_BYTES // (8 * dimensions))
