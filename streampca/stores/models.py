"""Published models in a store: `models/<topic>/<version, 20 digits>.npz`."""

import copy
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise

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

_CLOSE_S = 3.0  # models are published further apart by default
_NEWEST = 20  # models that are always kept


class Models:
    """The models of one topic, each version a file; an older version never replaces a newer one.

    History is thinned, not cut: the `keep` versions that are kept reach back to the first. Those that are pinned, or
    that a member of transform reports as its own, are kept as well.
    """

    def __init__(self, store: Store, topic: str, keep: int = 100) -> None:
        self.store, self.topic, self._folder, self._keep = store, topic, f"models/{topic}", max(keep, 1)
        self._times: dict[int, float] = {}  # version → seconds since 1970
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
        self._times[version] = model.published_at
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
        history = {version: at for version, at in self._times_of(versions).items() if version not in exempt}
        while len(history) > self._keep:
            for pinned in self._pins.all().values():  # read just before each deletion
                history.pop(pinned, None)
            if (version := next_to_go(history, self._keep)) is not None:
                del history[version]
                self._undeletable.add(version)
                self.store.delete(numbered.path(self._folder, version))
                self._undeletable.discard(version)

    def _times_of(self, versions: set[int]) -> dict[int, float]:
        """The time of each version that is still there: as remembered, else as the store lists it.

        Where files lie closer together than models are published, or in another order, as in a copy, the models' own
        times are read, once.
        """
        if unknown := versions - self._times.keys():
            listed = {numbered.number_of(name): at for name, at in self.store.times(self._folder).items()}
            found = {version: listed[version] for version in sorted(unknown & listed.keys())}
            if any(later - earlier < _CLOSE_S for earlier, later in pairwise(found.values())):
                found |= {v: model.published_at for v in found if (model := self._intact(v))}
            self._times |= found
        for version in self._times.keys() - versions:
            del self._times[version]
        self._times.update(rising(self._times))
        return self._times

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


def next_to_go(times: Mapping[int, float], keep: int) -> int | None:
    """The version to delete first if there are more than `keep`; None if there are not. Times rise with the version.

    It is the one whose neighbours are relatively nearest in age, so that the kept ones lie the denser the younger they
    are: never one of the newest `min(20, keep)`, nor the oldest, unless that alone is left.
    """
    if len(times) <= keep:
        return None
    versions = sorted(times, reverse=True)
    ages = np.maximum([times[versions[0]] - times[version] for version in versions], 1e-3)
    first = max(min(_NEWEST, keep), 1)
    ratios = ages[first + 1 :] / ages[first - 1 : -2]
    return versions[first + int(np.argmin(ratios)) if len(ratios) else -1]


def rising(times: Mapping[int, float]) -> dict[int, float]:
    """Times that rise with the version: where a clock was set back, all before is moved back by as much."""
    versions = sorted(times)
    at = np.array([times[version] for version in versions])
    set_back = np.maximum(at[:-1] - at[1:], 0.0)
    at[:-1] -= set_back[::-1].cumsum()[::-1]
    return dict(zip(versions, at.tolist(), strict=True))
