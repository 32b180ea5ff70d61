"""The vectors projected most recently, in memory only, to show where they lie along the components of any model.

The vectors themselves are never returned: only two coordinates, a squared distance and a p-value of each, and what a
few dimensions contribute to the scores of the most unusual ones.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.api.request import RequestError
from streampca.pca import scoring
from streampca.pca.arrays import F32, F64, Array
from streampca.pca.scoring import Scores
from streampca.stream.model_file import PublishedModel

Described = tuple[int, dict[str, Any]]  # a vector's place, and what is said of it

_MAX_VECTORS = 500
_WORST, _DIMENSIONS = 5, 3  # vectors that are described, and dimensions of each
_MAX_BYTES = 8 * 1024 * 1024  # of all vectors together
_FLUSH_EVERY, _MAX_PENDING_BYTES = 16, 32 * 1024  # additions per flush into the ring; a larger one is flushed at once


class RecentVectors:
    """A ring buffer of vectors of one length, in float32. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ring: F32 = np.empty((0, 0), np.float32)
        self._at = np.empty(0)  # seconds since 1970 of each
        self._count = 0  # of all vectors added; the next one goes to _count % len(_ring)
        self._pending: list[tuple[Array, float]] = []  # vectors and times that are not in the ring yet
        self._lock = threading.Lock()

    def add(self, vectors: Array) -> None:
        """Replace the oldest vectors by these (n, d). If d differs from the ring's, all old ones are dropped."""
        with self._lock:
            self._pending.append((vectors, self._clock()))
            if len(self._pending) == _FLUSH_EVERY or vectors.nbytes > _MAX_PENDING_BYTES:
                self._flush()

    def project(self, published: PublishedModel, x: int, y: int | None) -> dict[str, Any]:
        """The vectors along components x and y, counted from 1, the oldest first. Raises `RequestError`.

        Without y it is the second component, or the first if there is only one.
        """
        model = published.model
        if y is None:
            y = min(2, model.n_components)
        _check_component("x", x, model.n_components)
        _check_component("y", y, model.n_components)
        vectors, at = self._snapshot(model.dimensions)
        with np.errstate(all="ignore"):
            coordinates, residual = model.project(vectors.astype(np.float64))
            finite = np.isfinite(residual) & np.isfinite(coordinates).all(axis=1)
            vectors, at, coordinates, residual = vectors[finite], at[finite], coordinates[finite], residual[finite]
            p, worst = _unusual(published, vectors, scoring.score_projected(model, coordinates, residual))
        return {
            "version": published.version,
            "components": [x, y],
            "coordinates": np.ascontiguousarray(coordinates[:, [x - 1, y - 1]], np.float64),
            "residual": np.ascontiguousarray(residual, np.float64),
            "at": at,
            "p": p,
            "worst": [{"at": float(at[i]), **about} for i, about in worst],
        }

    def _flush(self) -> None:
        """Copy the pending vectors into the ring: in batches, since one copy costs more than a projection."""
        with np.errstate(over="ignore"):  # numbers above float32's range become infinite; `project` leaves them out
            for vectors, at in self._pending:
                self._put(vectors, at)
        self._pending.clear()

    def _put(self, vectors: Array, at: float) -> None:
        if vectors.shape[1] != self._ring.shape[1]:
            self._reset(vectors.shape[1])
        size = len(self._ring)
        last = vectors[max(len(vectors) - size, 0) :]
        if not len(last):
            return
        start = self._count % size
        end = start + len(last)
        places = slice(start, end) if end <= size else np.arange(start, end) % size
        self._ring[places] = last
        self._at[places] = at
        self._count += len(last)

    def _reset(self, dimensions: int) -> None:
        size = min(_MAX_VECTORS, _MAX_BYTES // (4 * dimensions))
        self._ring, self._at, self._count = np.empty((size, dimensions), np.float32), np.zeros(size), 0

    def _snapshot(self, dimensions: int) -> tuple[F32, F64]:
        """Copies of the vectors (n, d) and times (n,), the oldest first; empty if the ring's have another length."""
        with self._lock:
            self._flush()
            size = len(self._ring)
            if self._ring.shape[1] != dimensions or not size:
                return np.empty((0, dimensions), np.float32), np.empty(0)
            places = np.arange(max(self._count - size, 0), self._count) % size
            return self._ring[places], self._at[places]


def _unusual(published: PublishedModel, vectors: F32, scores: Scores) -> tuple[F64 | None, list[Described]]:
    """p of each vector (n, d), None without past scores; and the vectors with the highest scores, with their places."""
    model, p = published.model, None
    if published.calibration is not None:
        p = published.calibration.p_values(scores, model.noise_variance).score
    worst = np.argsort(-scores.score, kind="stable")[:_WORST]
    found, values = scoring.largest_contributions(model, vectors[worst].astype(np.float64), _DIMENSIONS)
    described = []
    for i, dimensions, contributions in zip(worst.tolist(), found[1].tolist(), values.spe.tolist(), strict=True):
        about = {"score": float(scores.score[i]), "p": None if p is None else float(p[i])}
        described.append((i, {**about, "dimensions": dimensions, "contributions": contributions}))
    return p, described


def _check_component(name: str, component: int, k: int) -> None:
    if not 1 <= component <= k:
        raise RequestError(422, f"{name} must be a component of the model, 1 to {k}, not {component}")
