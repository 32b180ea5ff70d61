"""Published models in a store: `models/<topic>/<version, 20 digits>.npz`."""

import copy
from contextlib import suppress

import structlog

from streampca.errors import RETRY_MAY_HELP, DamagedFileError, StaleListingError
from streampca.fold import model_file
from streampca.fold.model_file import PublishedModel
from streampca.stores import numbered
from streampca.stores.base import Store

log = structlog.get_logger()


class Models:
    """The models of one topic, each version a file; an older version never replaces a newer one."""

    def __init__(self, store: Store, topic: str, keep: int = 100) -> None:
        self.store, self._folder, self._keep = store, f"models/{topic}", max(keep, 1)
        self.location = f"{store.location.rstrip('/')}/{self._folder}"

    def snapshot(self) -> "Models":
        """A short-lived view with one cached listing."""
        same = copy.copy(self)
        same.store = self.store.snapshot(self._folder)
        return same

    def versions(self) -> list[int]:
        """All versions, ascending."""
        return numbered.numbers(self.store, self._folder)

    def load(self, version: int) -> PublishedModel:
        """One version. Raises `FileNotFoundError` or `DamagedFileError`."""
        model = model_file.decode(self.store.read(numbered.path(self._folder, version)))
        if model.version != version:
            raise DamagedFileError(f"the file of version {version} holds version {model.version}")
        return model

    def newest(self) -> PublishedModel | None:
        """The newest undamaged version; None if there is none. A damaged file is skipped and logged.

        Raises `StaleListingError` if versions are listed, but all files are gone.
        """
        gone: list[int] = []
        for version in reversed(versions := self.versions()):
            try:
                return self.load(version)
            except FileNotFoundError:  # pruned since it was listed
                gone.append(version)
            except DamagedFileError as error:
                log.error("model damaged, falling back", version=version, error=str(error))
        if gone and len(gone) == len(versions):
            raise StaleListingError(f"every model that the store lists in {self._folder} is gone; {RETRY_MAY_HELP}")
        return None

    def save(self, model: PublishedModel) -> bool:
        """Write a version and delete the oldest beyond `keep`.

        False if the version exists undamaged, or if `keep` newer ones exist. Of several writers of a version that is
        not listed yet, one gets True.
        """
        versions, version = self.versions(), model.version
        if len(versions) >= self._keep and version < versions[-self._keep]:
            return False
        new = version not in versions
        if not new and self._intact(version):
            return False
        data = model_file.encode(model)
        return numbered.write(self.store, self._folder, version, data, versions, self._keep, new=new)

    def delete_with(self, partition: int) -> int:
        """Delete the versions that contain a partition, the newest first, and return their number."""
        newest_first = (model for version in reversed(self.versions()) if (model := self._intact(version)))
        versions = [model.version for model in newest_first if partition in model.positions]
        for version in versions:
            self.store.delete(numbered.path(self._folder, version))
        return len(versions)

    def _intact(self, version: int) -> PublishedModel | None:
        """One version; None if it is gone or damaged, so that nobody uses it."""
        with suppress(FileNotFoundError, DamagedFileError):
            return self.load(version)
        return None
