"""The figures of every version that the store keeps: how the model came to be what it is."""

import threading
from typing import Any

import structlog

from streampca.errors import DamagedFileError
from streampca.stores.models import Models
from streampca.stream.model_file import PublishedModel

log = structlog.get_logger()

Figures = dict[str, Any]


class History:
    """Remembers the figures of each version, so that each file is read once at most."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._figures: dict[int, Figures | None] = {}  # None: its file is damaged
        self._lock = threading.Lock()  # of _figures
        self._closed = threading.Event()

    def note(self, served: PublishedModel) -> None:
        """A version was loaded for another purpose: its file need not be read again. From any thread."""
        with self._lock:
            self._figures[served.version] = _figures(served)

    def after(self, version: int) -> list[Figures]:
        """Figures of the versions in the store beyond this one, rising; damaged ones are passed over.

        Reads the files that are not known yet, which takes its time: for one thread at a time, not the event loop's.
        Raises `StoreError`; what was read until then is kept.
        """
        with self._lock:
            known = set(self._figures)  # before the listing, so that what comes after it is not taken for pruned
        there = self._models.versions()
        with self._lock:
            for pruned in known.difference(there):
                self._figures.pop(pruned, None)
        wanted = [other for other in there if other > version]
        for missing in wanted:
            if missing not in self._figures and not self._closed.is_set():
                self._read(missing)
        return [figures for wished in wanted if (figures := self._figures.get(wished)) is not None]

    def close(self) -> None:
        """Let a reading that is under way end after the file at hand."""
        self._closed.set()

    def _read(self, version: int) -> None:
        try:
            self.note(self._models.load(version))
        except FileNotFoundError:  # pruned since it was listed
            return
        except DamagedFileError as error:  # told aloud by who wants to serve it
            log.debug("model damaged, left out of the history", version=version, error=str(error))
            with self._lock:
                self._figures.setdefault(version, None)


def _figures(served: PublishedModel) -> Figures:
    return {
        "version": served.version,
        "published_at": served.published_at,
        "last_timestamp_ms": served.last_timestamp_ms,
        "loss_ewma": served.loss_ewma,
        "loss_ratio": served.loss_ratio,
        "explained_variance_ratio": float(served.model.explained_variance_ratio.sum()),
    }
