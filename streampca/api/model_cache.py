"""Which model answers: the newest whole one of the store, replaced in one step as newer ones appear.

A request takes a model once and keeps it to its end, so no answer mixes two. Versions only rise, with one exception:
when someone has put another store in the place of this one, holding only lower versions, its newest is served.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import structlog

from streampca.errors import DamagedFileError, StoreError, StreampcaError
from streampca.stores.models import Models
from streampca.stream.model_file import PublishedModel

log = structlog.get_logger()

_OLD_VERSIONS_LOADED = 4
_DAMAGED_RETRIED_AFTER_S = 60.0
_STOPPED_WITHIN_S = 2.0


class NoModelError(StreampcaError):
    """Nothing has been published yet."""


class UnknownVersionError(StreampcaError):
    """There is no such version: never published, or pruned."""


class NotLoadedError(StreampcaError):
    """The version is not in memory; whether it is on disk was not asked."""


class ModelCache:
    """The model in use, a few older ones, and the thread that watches for newer ones."""

    def __init__(
        self,
        models: Models,
        clock: Callable[[], float] = time.time,
        loaded: Callable[[PublishedModel], None] = lambda model: None,
    ) -> None:
        """`loaded` is told of every model that was read, in the thread that read it."""
        self._models, self._clock, self._tell_loaded = models, clock, loaded
        self._current: PublishedModel | None = None
        self._older: OrderedDict[int, PublishedModel] = OrderedDict()  # by last use
        self._lock = threading.Lock()  # of _older
        self._damaged: dict[int, float] = {}  # version → when to try it again
        self._store_trouble: str | None = None
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        self.failures: Counter[str] = Counter()  # loads that failed, by cause: damaged, store

    @property
    def current(self) -> PublishedModel | None:
        """The newest whole model, None until there is one."""
        return self._current

    def age_s(self) -> float | None:
        """Seconds since the model in use was published."""
        return None if self._current is None else max(0.0, self._clock() - self._current.published_at)

    def loaded(self, version: int | None) -> PublishedModel:
        """The model of a version (None: the newest) if that takes no reading; else `NotLoadedError`."""
        current = self._current
        if current is not None and version in (None, current.version):
            return current
        if version is None:
            raise NoModelError(self._nothing_yet())
        with self._lock:
            if version not in self._older:
                raise NotLoadedError(f"version {version}")
            self._older.move_to_end(version)
            return self._older[version]

    def at(self, version: int | None) -> PublishedModel:
        """The model of a version (None: the newest), read from the store if need be.

        Raises `NoModelError`, `UnknownVersionError`, and what `Models.load` raises.
        """
        try:
            return self.loaded(version)
        except NotLoadedError:
            return self._load_older(version or 0)

    def versions(self) -> list[int]:
        """Versions in the store, rising."""
        return self._models.versions()

    def reasons_not_ready(self, max_age_s: float | None) -> list[str]:
        """Why no one should be sent here; empty when all is well."""
        age = self.age_s()
        reasons = [f"the store cannot be read: {self._store_trouble}"] if self._store_trouble else []
        if age is None:
            reasons.append(self._nothing_yet())
        elif max_age_s is not None and age > max_age_s:
            reasons.append(f"the newest model was published {age:.0f} s ago, more than {max_age_s:g} s")
        return reasons

    def poll(self) -> None:
        """Ask the store once, and take what is newer. Trouble is told once, and again when it is over."""
        try:
            versions = self._models.versions()
            self._forget_pruned(versions)
            self._take_newest(self._candidates(versions))
        except StoreError as error:
            self.failures["store"] += 1
            if self._store_trouble is None:
                log.error("store cannot be read, serving what is loaded", error=str(error))
            self._store_trouble = str(error)
            return
        if self._store_trouble is not None:
            log.info("store can be read again")
            self._store_trouble = None

    def start(self, interval_s: float) -> None:
        """Take the newest model now, and watch for newer ones in a thread."""
        self.poll()
        self._stop.clear()
        self._watcher = threading.Thread(target=self._watch, args=(interval_s,), name="model-watcher", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """End the thread. A read that hangs is left to its fate."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join(_STOPPED_WITHIN_S)

    def _watch(self, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            try:
                self.poll()
            except Exception:  # a bug must not end the watch unseen while old answers go on
                self.failures["bug"] += 1
                log.exception("looking for a newer model failed")

    def _candidates(self, versions: Sequence[int]) -> list[int]:
        """Versions worth loading, the newest first."""
        current = self._current
        if current is None or not versions:
            return list(reversed(versions))
        if versions[-1] < current.version:
            return list(reversed(versions))  # another store lies here now: publishing never removes the newest
        return [version for version in reversed(versions) if version > current.version]

    def _take_newest(self, candidates: Sequence[int]) -> None:
        for version in candidates:
            if self._clock() < self._damaged.get(version, 0.0):
                continue
            try:
                model = self._models.load(version)
            except FileNotFoundError:  # pruned since it was listed
                continue
            except DamagedFileError as error:
                self._note_damage(version, error)
                continue
            self._switch(model)
            return

    def _switch(self, model: PublishedModel) -> None:
        before = self._current
        if before is not None and model.version < before.version:
            log.warning("store holds only older models now", version=model.version, before=before.version)
        log.debug("model loaded", version=model.version)
        self._current = model
        self._tell_loaded(model)

    def _note_damage(self, version: int, error: DamagedFileError) -> None:
        self.failures["damaged"] += 1
        if version not in self._damaged:
            serving = self._current.version if self._current else None
            log.error("model damaged, not served", version=version, serving=serving, error=str(error))
        self._damaged[version] = self._clock() + _DAMAGED_RETRIED_AFTER_S

    def _forget_pruned(self, versions: Sequence[int]) -> None:
        there = set(versions)
        self._damaged = {version: again for version, again in self._damaged.items() if version in there}
        with self._lock:
            for version in [version for version in self._older if version not in there]:
                del self._older[version]

    def _load_older(self, version: int) -> PublishedModel:
        try:
            model = self._models.load(version)
        except FileNotFoundError:
            raise UnknownVersionError(
                f"there is no model version {version}: never published, or removed since; GET /v1/models lists them"
            ) from None
        self._tell_loaded(model)
        with self._lock:
            self._older[version] = model
            while len(self._older) > _OLD_VERSIONS_LOADED:
                self._older.popitem(last=False)
        return model

    def _nothing_yet(self) -> str:
        damaged = f"; all there are, are damaged: {sorted(self._damaged)}" if self._damaged else ""
        return f"no model has been published yet in {self._models.folder}{damaged}"
