"""Published models in a store: `models/<topic>/<version, 20 digits>.npz`."""

import copy
from collections.abc import Collection, Iterable
from contextlib import suppress

import numpy as np
import structlog

from streampca.errors import RETRY_MAY_HELP, DamagedFileError, StaleListingError, StoreError
from streampca.fold import model_file
from streampca.fold.model_file import PublishedModel
from streampca.stores import numbered
from streampca.stores.base import Store
from streampca.stores.pins import Pins
from streampca.stores.process_status import ProcessStatuses

log = structlog.get_logger()

_NEWEST = 20  # models that are always kept


class Models:
    """The models of one topic, each version a file; an older version never replaces a newer one.

    History is thinned, not cut: the `keep` versions that are kept reach back to the first. Those that are pinned, or
    that a member of transform reports as its own, are kept as well.
    """

    def __init__(self, store: Store, topic: str, keep: int = 100) -> None:
        self.store, self.topic, self._folder, self._keep = store, topic, f"models/{topic}", max(keep, 1)
        self._undeletable: set[int] = set()
        self._pins, self._reports = Pins(store, topic), ProcessStatuses(store, topic)  # never of a snapshot
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
        """Write a version, and delete others beyond `keep`.

        False if the version exists undamaged, or if `keep` newer ones exist. Of several writers of a version that is
        not listed yet, one gets True.
        """
        versions, version = self.versions(), model.version
        if len(versions) >= self._keep and version < versions[-self._keep]:
            return False
        new = version not in versions
        if not new and self._intact(version):
            return False
        path, data = numbered.path(self._folder, version), model_file.encode(model)
        if not new:
            self.store.write(path, data)
        elif not self.store.create(path, data):
            return False
        try:
            self._thin({*versions, version})
        except StoreError as error:
            log.warning("old models not deleted", folder=self._folder, cause=str(error))
        return True

    def _thin(self, versions: set[int]) -> None:
        """Delete versions beyond `keep`; one that cannot be deleted is not tried again, and counts no more."""
        if len(versions) <= self._keep:
            return
        exempt = self._undeletable | self._reports.model_versions()
        history = versions - exempt
        while len(history) > self._keep:
            history.difference_update(self._pins.all().values())  # read just before each deletion
            version = next_to_go(history, self._keep)
            if version is None:
                break
            history.remove(version)
            self._undeletable.add(version)
            self.store.delete(numbered.path(self._folder, version))
            self._undeletable.discard(version)

    def containing(self, partition: int) -> list[int]:
        """The versions that contain a partition, the newest first."""
        newest_first = (model for version in reversed(self.versions()) if (model := self._intact(version)))
        return [model.version for model in newest_first if partition in model.positions]

    def delete(self, versions: Iterable[int]) -> None:
        """Delete versions, and the pins that name them."""
        gone, pins = set(versions), Pins(self.store, self.topic)
        for name, version in pins.all().items():
            if version in gone:
                pins.delete(name)
        for version in sorted(gone, reverse=True):
            self.store.delete(numbered.path(self._folder, version))

    def _intact(self, version: int) -> PublishedModel | None:
        """One version; None if it is gone or damaged, so that nobody uses it."""
        with suppress(FileNotFoundError, DamagedFileError):
            return self.load(version)
        return None


def next_to_go(versions: Collection[int], keep: int) -> int | None:
    """The version to delete first if there are more than `keep`; None if there are not.

    It is the one whose neighbours are relatively nearest in age, in messages, so that the kept ones lie the denser the
    younger they are: never one of the newest `min(20, keep)`, nor the oldest, unless that alone is left.
    """
    if len(versions) <= keep:
        return None
    newest_first = sorted(versions, reverse=True)
    ages = np.array([newest_first[0] - version for version in newest_first], np.float64)
    ages[0] = 1.0  # instead of 0, by which a ratio would be divided where one version is kept
    first = max(min(_NEWEST, keep), 1)
    candidates = newest_first[first:-1]
    if not candidates:
        return newest_first[-1]
    ratios = ages[first + 1 :] / ages[first - 1 : -2]  # of the ages of both neighbours
    return candidates[int(np.argmin(ratios))]
