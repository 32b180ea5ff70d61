"""Published models in a store: `models/<topic>/<version, 20 digits>.npz`."""

import structlog

from streampca.errors import DamagedFileError
from streampca.stores import numbered
from streampca.stores.base import Store
from streampca.stream import model_file
from streampca.stream.model_file import PublishedModel

log = structlog.get_logger()


class Models:
    """The models of one topic. An older version never replaces a newer one: versions only sit side by side."""

    def __init__(self, store: Store, topic: str, keep: int = 100) -> None:
        self._store, self._folder, self._keep = store, f"models/{topic}", max(keep, 1)

    @property
    def folder(self) -> str:
        """Where the models lie in the store."""
        return self._folder

    def versions(self) -> list[int]:
        """Versions there are, rising."""
        return numbered.numbers(self._store, self._folder)

    def load(self, version: int) -> PublishedModel:
        """One version. Raises `FileNotFoundError` or `DamagedFileError`."""
        model = model_file.decode(self._store.read(numbered.path(self._folder, version)))
        if model.version != version:
            raise DamagedFileError(f"the file of version {version} holds version {model.version}")
        return model

    def newest(self) -> PublishedModel | None:
        """The newest version that is whole; None when there is none. A damaged file is passed over, loudly."""
        for version in reversed(self.versions()):
            try:
                return self.load(version)
            except FileNotFoundError:  # pruned since it was listed
                continue
            except DamagedFileError as error:
                log.error("model damaged, falling back to the one before", version=version, error=str(error))
        return None

    def save(self, model: PublishedModel) -> bool:
        """Write a version, unless it is there whole; remove the oldest beyond those kept. Whether it was written."""
        if model.version in self.versions() and self._is_whole(model.version):
            return False
        numbered.write(self._store, self._folder, model.version, model_file.encode(model), self._keep)
        return True

    def _is_whole(self, version: int) -> bool:
        try:
            self.load(version)
        except (FileNotFoundError, DamagedFileError):
            return False
        return True
