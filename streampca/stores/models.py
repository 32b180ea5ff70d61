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

_NEWEST_KEPT = 20  # models that are always kept, if `keep` is not less


class Models:
    """The models of one topic, each version a file.

    If there are more than `keep` versions, some are deleted, but not simply the oldest: those that are kept reach back
    to the first one. Versions that are pinned, or that a member of transform reports to use, are kept as well.
    """

    def __init__(self, store: Store, topic: str, keep: int = 100) -> None:
        self.store = store
        self.topic = topic
        self._folder = f"models/{topic}"
        self.location = f"{store.location.rstrip('/')}/{self._folder}"
        self._keep = max(keep, 1)
        self._undeletable: set[int] = set()  # versions whose deletion has failed
        # Of the store itself, also in a view: a version may be pinned or used after the view was made.
        self._pins = Pins(store, topic)
        self._reports = ProcessStatuses(store, topic)

    def snapshot(self) -> "Models":
        """Return a short-lived view that lists the store once, now."""
        view = copy.copy(self)
        view.store = self.store.snapshot(self._folder)
        return view

    def versions(self) -> list[int]:
        """List all versions, ascending."""
        return numbered.numbers(self.store, self._folder)

    def load(self, version: int) -> PublishedModel:
        """Load one version. Raises `FileNotFoundError` or `DamagedFileError`."""
        model = model_file.decode(self.store.read(numbered.path(self._folder, version)))
        if model.version != version:
            raise DamagedFileError(f"the file of version {version} holds version {model.version}")
        return model

    def newest(self) -> PublishedModel | None:
        """Load the newest undamaged version; None if there is none. A damaged file is skipped and logged.

        Raises `StaleListingError` if versions are listed, but all files are gone.
        """
        versions = self.versions()
        gone = 0
        for version in reversed(versions):
            try:
                return self.load(version)
            except FileNotFoundError:  # deleted since it was listed
                gone += 1
            except DamagedFileError as error:
                log.error("model damaged, falling back", version=version, error=str(error))
        if versions and gone == len(versions):
            raise StaleListingError(f"every model that the store lists in {self._folder} is gone; {RETRY_MAY_HELP}")
        return None

    def save(self, model: PublishedModel) -> bool:
        """Write a version, then delete versions beyond `keep`.

        If the version exists undamaged, or `keep` newer ones exist, nothing is written, and the result is False. Of
        several writers of a version that is not listed yet, one gets True.
        """
        version = model.version
        versions = self.versions()
        is_too_old = len(versions) >= self._keep and version < versions[-self._keep]
        if is_too_old:
            return False
        path = numbered.path(self._folder, version)
        if version not in versions:
            if not self.store.create(path, model_file.encode(model)):
                return False
        elif self._load_if_intact(version):
            return False
        else:  # damaged
            self.store.write(path, model_file.encode(model))
        try:
            self._delete_beyond_keep({*versions, version})
        except StoreError as error:
            log.warning("old models not deleted", folder=self._folder, cause=str(error))
        return True

    def _delete_beyond_keep(self, versions: set[int]) -> None:
        """Delete versions until `keep` are left, not counting those that are pinned or in use.

        If a version cannot be deleted, it is not tried again, and does not count any more.
        """
        if len(versions) <= self._keep:
            return
        deletable = versions - self._undeletable - self._reports.model_versions()
        while len(deletable) > self._keep:
            deletable -= set(self._pins.all().values())  # read just before each deletion
            version = choose_version_to_delete(deletable, self._keep)
            if version is None:
                break
            deletable.remove(version)
            self._undeletable.add(version)  # until it is deleted: the next line may raise
            self.store.delete(numbered.path(self._folder, version))
            self._undeletable.discard(version)

    def containing(self, partition: int) -> list[int]:
        """Find the versions that contain a partition, the newest first."""
        found = []
        for version in reversed(self.versions()):
            model = self._load_if_intact(version)
            if model and partition in model.positions:
                found.append(version)
        return found

    def delete(self, versions: Iterable[int]) -> None:
        """Delete versions, and the pins that name them."""
        to_delete = set(versions)
        pins = Pins(self.store, self.topic)
        for name, version in pins.all().items():
            if version in to_delete:
                pins.delete(name)
        for version in sorted(to_delete, reverse=True):
            self.store.delete(numbered.path(self._folder, version))

    def _load_if_intact(self, version: int) -> PublishedModel | None:
        """Load one version; None if it is gone or damaged, so that nobody can use it."""
        with suppress(FileNotFoundError, DamagedFileError):
            return self.load(version)
        return None


def choose_version_to_delete(versions: Collection[int], keep: int) -> int | None:
    """If there are more than `keep` versions, choose the one to delete first; else return None.

    The age of a version is how many messages it is behind the newest. A version is chosen if its older neighbour is the
    fewest times as old as its younger one. So the distances between kept versions grow with their age. The newest
    `min(20, keep)` versions are never chosen, and the oldest only if nothing else is left.
    """
    if len(versions) <= keep:
        return None
    newest_first = sorted(versions, reverse=True)
    first = max(min(_NEWEST_KEPT, keep), 1)  # index of the first version that may be chosen
    candidates = newest_first[first:-1]
    if not candidates:
        return newest_first[-1]
    ages = np.array([newest_first[0] - version for version in newest_first], np.float64)
    ages[0] = 1.0  # instead of 0, by which a ratio would be divided if `keep` is 1
    ages_of_older = ages[first + 1 :]  # for each candidate, of the neighbour that is older
    ages_of_younger = ages[first - 1 : -2]
    return candidates[int(np.argmin(ages_of_older / ages_of_younger))]
