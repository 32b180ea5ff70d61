"""Published models in a store: `models/<topic>/<version, 20 digits>.npz`."""

import copy
from collections.abc import Collection, Iterable
from contextlib import suppress

import structlog

from streampca.errors import (
    RETRY_MAY_HELP,
    DamagedFileError,
    EarlierFormatError,
    NewerFormatError,
    StaleListingError,
    StoreBusyError,
    StoreError,
)
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
        # `snapshot` copies this object and replaces only `store`, by a view that lists the models once. These two still
        # read from the store itself, so the copy sees new pins and statuses.
        self._pins = Pins(store, topic)
        self._process_statuses = ProcessStatuses(store, topic)

    def snapshot(self) -> "Models":
        """Return a short-lived view that lists the store once, now."""
        view = copy.copy(self)
        view.store = self.store.snapshot(self._folder)
        return view

    def versions(self) -> list[int]:
        """List all versions, ascending."""
        return numbered.list_numbers(self.store, self._folder)

    def load(self, version: int) -> PublishedModel:
        """Load one version.

        Raises `FileNotFoundError`, `StoreError`, `DamagedFileError`, `EarlierFormatError` or `NewerFormatError`.
        """
        model = model_file.decode(self.store.read(numbered.path(self._folder, version)))
        if model.version != version:
            raise DamagedFileError(f"the file of version {version} holds version {model.version}")
        return model

    def newest(self) -> PublishedModel | None:
        """Load the newest version that can be read; None if there is none.

        Raises `StaleListingError` if all listed files are gone; also `StoreBusyError` and `NewerFormatError`.
        """
        versions = self.versions()
        gone_count = 0
        for version in reversed(versions):
            try:
                return self.load(version)
            except FileNotFoundError:
                gone_count += 1
            except DamagedFileError as error:
                log.error("model damaged, falling back", version=version, error=str(error))
            except (StoreBusyError, NewerFormatError):  # a retry helps, or an upgrade of this process
                raise
            except (StoreError, EarlierFormatError) as error:  # for example, the object was moved to an archive
                log.error("model unreadable, falling back", version=version, error=str(error))
        if versions and gone_count == len(versions):
            raise StaleListingError(f"every model that the store lists in {self._folder} is gone; {RETRY_MAY_HELP}")
        return None

    def save(self, model: PublishedModel) -> bool:
        """Write a version, then delete versions until `keep` are left. Return whether it was written.

        A version is not written if its file can be read already, or if `keep` newer versions exist.
        """
        version = model.version
        versions = self.versions()
        newer_versions = [listed for listed in versions if listed > version]
        if len(newer_versions) >= self._keep:
            return False
        was_written = self._write_unless_readable(model, is_listed=version in versions)
        if not was_written:
            return False
        try:
            self._delete_beyond_keep({*versions, version})
        except StoreError as error:
            log.warning("old models not deleted", folder=self._folder, cause=str(error))
        return True

    def _write_unless_readable(self, model: PublishedModel, *, is_listed: bool) -> bool:
        """Write the file of a model unless it can be read already. Return whether it was written.

        `is_listed` says whether the store's listing has the version already. If it has not, and several processes write
        the version at once, at most one gets True.
        """
        path = numbered.path(self._folder, model.version)
        if not is_listed:
            return self.store.create(path, model_file.encode(model))
        if self._load_if_readable(model.version):
            return False
        self.store.write(path, model_file.encode(model))
        return True

    def _delete_beyond_keep(self, versions: set[int]) -> None:
        """Delete versions until `keep` are left, not counting those that are pinned, in use or undeletable.

        Raises `StoreError` if a version cannot be deleted.
        """
        if len(versions) <= self._keep:
            return
        deletable = versions - self._undeletable - self._process_statuses.find_used_versions()
        while len(deletable) > self._keep:
            deletable -= set(self._pins.all().values())  # read again: a version may have been pinned meanwhile
            version = choose_version_to_delete(deletable, self._keep)
            if version is None:  # there were pinned versions, and without them at most `keep` are left
                break
            deletable.remove(version)
            try:
                self.store.delete(numbered.path(self._folder, version))
            except StoreError:
                self._undeletable.add(version)
                raise

    def find_containing(self, partition: int) -> list[int]:
        """Return the versions that contain a partition, the newest first.

        Versions that are damaged, or written by a release that is too old, are left out.
        """
        found = []
        for version in reversed(self.versions()):
            model = self._load_if_readable(version)
            if model and partition in model.positions:
                found.append(version)
        return found

    def delete(self, versions: Iterable[int]) -> None:
        """Delete versions and their pins."""
        to_delete = set(versions)
        for name, version in self._pins.all().items():
            if version in to_delete:
                self._pins.delete(name)
        # Sidecars serve the newest version, so it is deleted first: even if a later deletion fails, sidecars stop
        # serving it.
        for version in sorted(to_delete, reverse=True):
            self.store.delete(numbered.path(self._folder, version))

    def _load_if_readable(self, version: int) -> PublishedModel | None:
        """Load one version; None if it is gone, damaged, or written by a release that is too old.

        Raises `StoreError` if it may become readable later.
        """
        with suppress(FileNotFoundError, DamagedFileError, EarlierFormatError):
            return self.load(version)
        return None


def choose_version_to_delete(versions: Collection[int], keep: int) -> int | None:
    """Return the version to delete first; None if there are at most `keep` versions.

    The age of a version is how many messages it is behind the newest. For each version, the age of its older neighbour
    is divided by the age of its newer neighbour, and the version with the smallest ratio is chosen. So the gaps between
    the remaining versions grow with their age. The newest `min(20, keep)` versions are never chosen.
    """
    if len(versions) <= keep:
        return None
    newest_first = sorted(versions, reverse=True)
    newest_kept = min(_NEWEST_KEPT, keep)
    # Versions with two neighbours: not the newest, also if `keep` is 0, and not the oldest.
    indices_between = range(max(newest_kept, 1), len(newest_first) - 1)
    if not indices_between:
        return newest_first[-1]  # only the oldest version may be chosen
    ages = [newest_first[0] - version for version in newest_first]  # in messages
    ages[0] = 1  # not 0, since it may be a divisor

    def divide_ages_of_neighbours(index: int) -> float:
        return ages[index + 1] / ages[index - 1]  # older neighbour / newer neighbour

    return newest_first[min(indices_between, key=divide_ages_of_neighbours)]
