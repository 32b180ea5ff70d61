"""The latest vectors that were projected, kept in memory only, so that any model can be asked where they lie.

The vectors themselves are never given out: only what `look` makes of them, two coordinates and a distance of each.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.api.request import RequestError
from streampca.pca.arrays import Array
from streampca.stream.model_file import PublishedModel

_MOST = 500
_MOST_BYTES = 8 * 1024 * 1024  # of all vectors together
_TOGETHER, _MOST_WAITING_BYTES = 16, 32 * 1024  # notes that are put into the ring at once, and the longest that waits


@dataclass(frozen=True, slots=True)
class RecentProjection:
    """Which version's model to look through (None: the newest), along which two components, counted from 1."""

    version: int | None = None
    x: int = 1
    y: int | None = None  # None: the second component, where there is one

    def components(self, k: int) -> tuple[int, int]:
        """Both, of k. Raises `RequestError` for one that is not among them."""
        x, y = self.x, min(2, k) if self.y is None else self.y
        for name, component in (("x", x), ("y", y)):
            if not 1 <= component <= k:
                raise RequestError(422, f"{name} must be a component of the model, 1 to {k}, not {component}")
        return x, y


class RecentVectors:
    """A ring of vectors of one length, in float32. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ring: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._at = np.empty(0)  # seconds since 1970 of each
        self._count = 0  # of all that came; the next one goes to _count % len(_ring)
        self._waiting: list[tuple[Array, float]] = []  # what came since, and when; not yet in the ring
        self._lock = threading.Lock()

    def note(self, vectors: Array) -> None:
        """Keep vectors (n, d), or the last of them, in place of the oldest. Others of another length are dropped."""
        with self._lock:
            self._waiting.append((vectors, self._clock()))
            if len(self._waiting) == _TOGETHER or vectors.nbytes > _MOST_WAITING_BYTES:
                self._settle()

    def look(self, served: PublishedModel, look: RecentProjection) -> dict[str, Any]:
        """Where the vectors lie, the oldest first. Raises `RequestError`."""
        x, y = look.components(served.model.n_components)
        vectors, at = self._kept(served.model.dimensions)
        with np.errstate(all="ignore"):
            coordinates, residual = served.model.project(vectors.astype(np.float64))
        finite = np.isfinite(residual) & np.isfinite(coordinates).all(axis=1)
        return {
            "version": served.version,
            "components": [x, y],
            "coordinates": np.ascontiguousarray(coordinates[finite][:, [x - 1, y - 1]], np.float64),
            "residual": np.ascontiguousarray(residual[finite], np.float64),
            "at": at[finite],
        }

    def _settle(self) -> None:
        """Put what waits into the ring. One vector alone would take longer than its projection, with cold caches."""
        with np.errstate(over="ignore"):  # of what exceeds float32, which `look` leaves out
            for vectors, at in self._waiting:
                self._put(vectors, at)
        self._waiting.clear()

    def _put(self, vectors: Array, at: float) -> None:
        if vectors.shape[1] != self._ring.shape[1]:
            self._start(vectors.shape[1])
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

    def _start(self, dimensions: int) -> None:
        size = min(_MOST, _MOST_BYTES // (4 * dimensions))
        self._ring, self._at, self._count = np.empty((size, dimensions), np.float32), np.zeros(size), 0

    def _kept(self, dimensions: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Copies of vectors (n, d) and times (n,), the oldest first; none when they have another length."""
        with self._lock:
            self._settle()
            size = len(self._ring)
            if self._ring.shape[1] != dimensions or not size:
                return np.empty((0, dimensions), np.float32), np.empty(0)
            places = np.arange(max(self._count - size, 0), self._count) % size
            return self._ring[places], self._at[places]
