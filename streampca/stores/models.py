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
        self._keep = max(keep, 1)  # number of versions
        self._undeletable: set[int] = set()  # versions whose deletion has failed
        # `snapshot` returns a copy of this object in which only `store` is replaced, by a list of files. The copy, too,
        # reads pins and reports from the store itself: a version may be pinned or used after the list was made.
        self._pins = Pins(store, topic)
        self._reports = ProcessStatuses(store, topic)

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

        Newer versions that are damaged or cannot be read are skipped and logged. Raises `StaleListingError` if versions
        are listed, but all their files are gone. Also raises `StoreBusyError` and `NewerFormatError`.
        """
        versions = self.versions()
        gone_count = 0
        for version in reversed(versions):
            try:
                return self.load(version)
            except FileNotFoundError:  # deleted since it was listed
                gone_count += 1
            except DamagedFileError as error:
                log.error("model damaged, falling back", version=version, error=str(error))
            except (StoreBusyError, NewerFormatError):
                raise
            # For example, a bucket has moved the object to an archive, from which it must be restored first.
            except (StoreError, EarlierFormatError) as error:
                log.error("model unreadable, falling back", version=version, error=str(error))
        if versions and gone_count == len(versions):
            raise StaleListingError(f"every model that the store lists in {self._folder} is gone; {RETRY_MAY_HELP}")
        return None

    def save(self, model: PublishedModel) -> bool:
        """Write a version, then delete versions until `keep` are left. Return whether the version was written.

        It is not written if its file can be read already, or if `keep` newer versions exist.
        """
        version = model.version
        versions = self.versions()
        is_too_old = len(versions) >= self._keep and version < versions[-self._keep]
        if is_too_old:
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
        """Write the file of a model, and return whether it was written.

        A file that was listed is replaced only if it cannot be read. If the file was not listed, several processes may
        write it at once: at most one gets True.
        """
        path = numbered.path(self._folder, model.version)
        if not is_listed:
            # Writes only if there is no file, and returns whether it has written.
            return self.store.create(path, model_file.encode(model))
        if self._load_if_readable(model.version):
            return False
        self.store.write(path, model_file.encode(model))
        return True

    def _delete_beyond_keep(self, versions: set[int]) -> None:
        """Delete versions until `keep` are left. Versions that are pinned or in use are neither deleted nor counted.

        If a version cannot be deleted, `StoreError` is raised, and later calls neither delete nor count this version.
        """
        if len(versions) <= self._keep:  # an optimisation: the files of pins and reports are not read
            return
        # In their status reports, members of transform say which versions they use.
        deletable = versions - self._undeletable - self._reports.find_used_versions()
        while len(deletable) > self._keep:
            deletable -= set(self._pins.all().values())  # read each time: a version may have been pinned meanwhile
            version = choose_version_to_delete(deletable, self._keep)
            if version is None:  # without the pinned versions, no more than `keep` are left
                break
            deletable.remove(version)
            try:
                self.store.delete(numbered.path(self._folder, version))
            except StoreError:
                self._undeletable.add(version)
                raise

    def find_containing(self, partition: int) -> list[int]:
        """Return the versions that contain a partition, the newest first.

        Versions that are damaged, or written by a release that is too old, are left out: no process uses them.
        """
        found = []
        for version in reversed(self.versions()):
            model = self._load_if_readable(version)
            if model and partition in model.positions:
                found.append(version)
        return found

    def delete(self, versions: Iterable[int]) -> None:
        """Delete versions, and their pins, which are names that users have given to them."""
        to_delete = set(versions)
        for name, version in self._pins.all().items():
            if version in to_delete:
                self._pins.delete(name)
        # The newest first, as it is in use: if a deletion fails, at least this model is gone.
        for version in sorted(to_delete, reverse=True):
            self.store.delete(numbered.path(self._folder, version))

    def _load_if_readable(self, version: int) -> PublishedModel | None:
        """Load one version. Return None if it is gone, damaged, or written by a release that is too old.

        Raises `StoreError` if the file cannot be read now, or if a newer release has written it (`NewerFormatError`).
        """
        with suppress(FileNotFoundError, DamagedFileError, EarlierFormatError):
            return self.load(version)
        return None


def choose_version_to_delete(versions: Collection[int], keep: int) -> int | None:
    """Return the version to delete first, or None if there are at most `keep` versions.

    The age of a version is the number of messages that were learned since. The versions have the ages a[0] = 0 (the
    newest version), a[1], a[2] and so on, ascending. The version i whose neighbours are closest in age is chosen, since
    it is missed least: the ratio of their ages, a[i+1] / a[i−1], is the smallest. For example, of the ages 100, 110,
    120, 240 and 480, the version of age 110 is chosen: 120/100 is less than 240/110 and 480/120. So the distances
    between the versions that are left grow with their age.

    The newest `min(20, keep)` versions are never chosen, and the oldest only if there is no other choice.
    """
    if len(versions) <= keep:
        return None
    newest_first = sorted(versions, reverse=True)
    first = max(min(_NEWEST_KEPT, keep), 1)  # the newest version that may be chosen
    last = len(newest_first) - 1  # the oldest version
    if first >= last:
        return newest_first[last]
    a = [newest_first[0] - version for version in newest_first]
    a[0] = 1  # not 0: if `keep` is 1, the version 1 may be chosen, and its ratio is divided by a[0]
    chosen = min(range(first, last), key=lambda i: a[i + 1] / a[i - 1])
    return newest_first[chosen]
