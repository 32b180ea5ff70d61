"""Loads the models of a store that can be read, and remembers those that cannot, so that they do not stop the rest."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

import structlog

from streampca.errors import DamagedFileError, EarlierFormatError, NewerFormatError, StoreBusyError, StoreError
from streampca.fold.model_file import PublishedModel
from streampca.stores.models import Models

log = structlog.get_logger()

_REREAD_AFTER_S = 60.0  # for a file that could not be read


class UnreadableModel(NamedTuple):
    """A version whose file is damaged, of another release, or cannot be read."""

    cause: str
    reread_at: float  # by the clock


class ReadableModels:
    """The models of one topic, without those that cannot be read. A file that could not be read is read again later."""

    def __init__(self, models: Models, clock: Callable[[], float]) -> None:
        self._models = models
        self._clock = clock
        self._logged: set[int] = set()  # unreadable versions that were logged
        self.unreadable: dict[int, UnreadableModel] = {}  # by version; another thread must copy it before it iterates
        self.failures: Counter[str] = Counter()  # failed loads by cause: damaged or unreadable

    def load(self, version: int) -> PublishedModel | None:
        """Load a version; None if it was deleted or cannot be read.

        A version that could not be read is not read again for a minute. Raises `StoreBusyError`.
        """
        unreadable = self.unreadable.get(version)
        has_just_failed = unreadable is not None and self._clock() < unreadable.reread_at
        if has_just_failed:
            return None
        try:
            model = self._models.load(version)
        except FileNotFoundError:
            return None
        except StoreBusyError:
            raise
        except (DamagedFileError, EarlierFormatError, StoreError) as error:
            self._count(error)
            self.unreadable[version] = UnreadableModel(str(error), reread_at=self._clock() + _REREAD_AFTER_S)
            return None
        self.unreadable.pop(version, None)
        return model

    def is_stored(self, version: int) -> bool:
        """Return whether the file of a version exists, even if it cannot be read. Raises `StoreBusyError`."""
        return self.load(version) is not None or version in self.unreadable

    def forget_deleted(self, stored_versions: Collection[int]) -> None:
        """Forget the versions that the store has no more."""
        for version in self.unreadable.keys() - stored_versions:
            del self.unreadable[version]

    def log_unreadable(self, in_use: int | None) -> None:
        """Log the unreadable versions that were not logged yet, with the cause of the newest one."""
        unlogged = sorted(self.unreadable.keys() - self._logged)
        if unlogged:
            cause = self.unreadable[unlogged[-1]].cause
            log.error("models cannot be read", versions=unlogged, in_use=in_use, cause=cause)
        # A version that can be read now is forgotten here, so that it is logged if it becomes unreadable again.
        self._logged = set(self.unreadable)

    def _count(self, error: Exception) -> None:
        """Count a file that cannot be read, unless another release has written it."""
        if isinstance(error, NewerFormatError | EarlierFormatError):
            return
        cause = "damaged" if isinstance(error, DamagedFileError) else "unreadable"
        self.failures[cause] += 1
