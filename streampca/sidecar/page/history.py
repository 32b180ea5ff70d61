"""The metrics of every version in the store, to plot them over time."""

import heapq
import threading
from typing import Any

import structlog

from streampca.errors import DamagedFileError
from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import partition_name
from streampca.stores.models import Models

log = structlog.get_logger()

Figures = dict[str, Any]

_PARTITIONS = 64  # of each version, those with the greatest losses


class HistoryReader:
    """Reads the file of each version at most once, and caches its metrics."""

    def __init__(self, models: Models, closed: threading.Event | None = None) -> None:
        """`closed` may be that of another reader, so that both are closed at once."""
        self._models, self.closed = models, closed or threading.Event()
        self._figures: dict[int, Figures | None] = {}  # None: its file is damaged

    def add(self, published: PublishedModel) -> None:
        """Cache the metrics of a model that was loaded for another purpose. From any thread."""
        self._figures[published.version] = _figures(published)

    def after(self, version: int) -> list[Figures]:
        """The metrics of the versions above this one, in ascending order, without those of damaged files.

        It may read many files: call it from one thread at a time, and not from the event loop.
        Raises `StoreError`; what was read before that stays cached.
        """
        listed = self._models.versions()
        for pruned in set(self._figures).difference(listed):
            del self._figures[pruned]
        later = [other for other in listed if other > version]
        for missing in later:
            if missing not in self._figures and not self.closed.is_set():
                self._read(missing)
        return [figures for version in later if (figures := self._figures.get(version)) is not None]

    def close(self) -> None:
        """Stop a call of `after` in another thread once the current file is read."""
        self.closed.set()

    def _read(self, version: int) -> None:
        try:
            self.add(self._models.load(version))
        except FileNotFoundError:  # pruned since it was listed
            return
        except DamagedFileError as error:  # the model cache logs it as an error
            log.debug("damaged model not in history", version=version, error=str(error))
            self._figures.setdefault(version, None)


def _figures(published: PublishedModel) -> Figures:
    losses = published.partition_losses
    return {
        "version": published.version,
        "published_at": published.published_at,
        "last_timestamp_ms": published.last_timestamp_ms,
        "loss_ewma": published.loss_ewma,
        "loss_ratio": published.loss_ratio,
        "partition_losses": {
            partition_name(p): losses[p] for p in heapq.nlargest(_PARTITIONS, losses, key=lambda p: losses[p])
        },
        "explained_variance_ratio": float(published.model.explained_variance_ratio.sum()),
    }
