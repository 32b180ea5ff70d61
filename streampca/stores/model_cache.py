"""The model in use: the newest undamaged one in the store, replaced atomically when a newer one appears.

A request gets its model once, so no answer mixes two versions. The version in use only increases, with one exception:
if it is gone from the store, which has lower versions only, the newest of those is used. A pin is a name of a version.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import structlog

from streampca.errors import DamagedFileError, NewerFormatError, StoreError, StreampcaError
from streampca.fold.model_file import PublishedModel
from streampca.pca.drift import drift
from streampca.stores.base import other_topics
from streampca.stores.models import Models
from streampca.stores.pins import Pins, pinned_version

log = structlog.get_logger()

POLL_INTERVAL_S = 1.0  # a list request each; workers publish every 5 s by default
_PINS_READ_EVERY_S = 9.0  # a listing shows their names alone, and each request to a bucket costs money
_OLD_VERSIONS_LOADED = 4  # beside pinned ones, at most ten
_DAMAGED_RETRIED_AFTER_S = 60.0
_STOPPED_WITHIN_S = 2.0


class NoModelError(StreampcaError):
    """No model has been published yet."""


class UnknownVersionError(StreampcaError):
    """The version was never published, or it was pruned."""


class NotLoadedError(StreampcaError):
    """The version is not in memory; the store may have it."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version} is not loaded")
        self.version = version


class ModelCache:
    """Caches the model in use, pinned ones and a few older ones; a thread polls the store for newer ones."""

    def __init__(
        self,
        models: Models,
        clock: Callable[[], float] = time.time,
        on_load: Callable[[PublishedModel], None] = lambda published: None,
        *,
        reads_pins: bool = False,
    ) -> None:
        """`on_load` gets every model that was read, in the thread that read it. Names are known if it `reads_pins`."""
        self._models, self._clock, self._on_load = models, clock, on_load
        self.current: PublishedModel | None = None  # the newest undamaged one
        self.pins: dict[str, int] = {}  # name → version
        self.drifts: dict[str, dict[str, float]] = {}  # name → version, and fields of `Drift` to `compared`
        self.compared: PublishedModel | None = None
        self._reads_pins, self._pin_names, self._pins_due = reads_pins, list[str](), 0.0
        self._older: OrderedDict[int, PublishedModel] = OrderedDict()  # by last use
        self._lock = threading.Lock()  # of _older
        self._damaged: dict[int, float] = {}  # version → when to retry it
        self._store_error: str | None = None
        self._missing_store: str | None = None  # where it should be
        self._other_topics = ""  # that have models, while ours has none
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None
        self.failures: Counter[str] = Counter()  # failed loads by cause: damaged, store, bug

    def age_s(self) -> float | None:
        """Seconds since the model in use was published."""
        current = self.current
        return None if current is None else max(0.0, self._clock() - current.published_at)

    def get_loaded(self, version: int | str | None) -> PublishedModel:
        """The model of a version or of a pin (None: the newest) if it is in memory; else `NotLoadedError`."""
        current = self.current
        if isinstance(version, str):
            version = pinned_version(version, self.pins)
        if current is not None and version in (None, current.version):
            return current
        if version is None:
            raise NoModelError(self._no_model_text())
        with self._lock:
            if version not in self._older:
                raise NotLoadedError(version)
            self._older.move_to_end(version)
            return self._older[version]

    def get(self, version: int | str | None) -> PublishedModel:
        """The model of a version or of a pin (None: the newest), read from the store if it is not in memory.

        Raises `NoModelError`, `UnknownVersionError`, and what `Models.load` raises.
        """
        try:
            return self.get_loaded(version)
        except NotLoadedError as error:
            return self._load_older(error.version)

    def versions(self) -> list[int]:
        """Versions in the store, in ascending order."""
        return self._models.versions()

    def reasons_not_ready(self, max_age_s: float | None) -> dict[str, str]:
        """The reasons why this sidecar should get no requests, by the kind of failure; empty if it is ready."""
        age = self.age_s()
        reasons = {"store": f"the store cannot be read: {self._store_error}"} if self._store_error else {}
        if age is None:
            reasons["no model"] = self._no_model_text()
        elif max_age_s is not None and age > max_age_s:
            reasons["old model"] = f"the newest model was published {age:.0f} s ago, more than {max_age_s:g} s"
        return reasons

    def poll(self) -> None:
        """List the store once and load what is newer. Log an unreadable store once, and its recovery once."""
        try:
            self._missing_store = self._models.store.missing()
            listed = self._models.snapshot()
            versions = listed.versions()
            self._drop_pruned(versions)
            self._load_newest(self._candidates(versions))
            if self._reads_pins:
                self._refresh_pins(Pins(listed.store, listed.topic))
            self._other_topics = "" if self.current else other_topics(self._models.store, self._models.topic)
        except StoreError as error:
            self.failures["store"] += 1
            if self._store_error is None:
                log.error("store unreadable", error=str(error))
            self._store_error = str(error)
            return
        if self._store_error is not None:
            log.info("store readable again")
            self._store_error = None

    def start(self, interval_s: float) -> None:
        """Load the newest model now, and poll for newer ones in a thread."""
        self.poll()
        self._stop.clear()
        self._poller = threading.Thread(target=self._poll_forever, args=(interval_s,), name="model-poller", daemon=True)
        self._poller.start()

    def stop(self) -> None:
        """Stop the thread; do not wait long for a read that hangs."""
        self._stop.set()
        if self._poller is not None:
            self._poller.join(_STOPPED_WITHIN_S)

    def _poll_forever(self, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            try:
                self.poll()
            except Exception:  # a bug must not stop the polling unnoticed while the old model is served
                self.failures["bug"] += 1
                log.exception("polling for models failed")

    def _candidates(self, versions: Sequence[int]) -> list[int]:
        """Versions worth loading, the newest first."""
        current = self.current
        newer = [version for version in reversed(versions) if current is None or version > current.version]
        if newer or current is None or current.version in versions or self._is_stored(current.version):
            return newer
        return list(reversed(versions))  # the store was replaced: publishing never removes the newest

    def _is_stored(self, version: int) -> bool:
        """Return whether an unlisted version exists: a network file system may list an older state."""
        try:
            self._models.load(version)
        except FileNotFoundError:
            return False
        except DamagedFileError:
            pass
        return True

    def _load_newest(self, candidates: Sequence[int]) -> None:
        for version in candidates:
            if self._clock() < self._damaged.get(version, 0.0):
                continue
            model = self._readable(version, self._models.load)
            if model is None:
                continue
            if self.current is not None and version < self.current.version:
                log.warning("store has older models only", version=version, before=self.current.version)
            log.debug("model loaded", version=version)
            self.current = model
            self._on_load(model)
            return

    def _readable(self, version: int, read: Callable[[int], PublishedModel]) -> PublishedModel | None:
        """What `read` returns; None if the version is gone since it was listed, or unreadable, which is logged."""
        try:
            return read(version)
        except (FileNotFoundError, UnknownVersionError):
            return None
        except (DamagedFileError, NewerFormatError) as error:
            is_newer = isinstance(error, NewerFormatError)
            self.failures["damaged"] += not is_newer
            if version not in self._damaged:
                event = "model of a newer release, not served" if is_newer else "model damaged, not served"
                in_use = self.current.version if self.current else None
                log.error(event, version=version, in_use=in_use, error=str(error))
            self._damaged[version] = self._clock() + _DAMAGED_RETRIED_AFTER_S
            return None

    def _drop_pruned(self, versions: Sequence[int]) -> None:
        self._damaged = {version: retry_at for version, retry_at in self._damaged.items() if version in versions}
        with self._lock:
            for version in self._older.keys() - versions:
                del self._older[version]

    def _refresh_pins(self, pins: Pins) -> None:
        """Read the pins if one came or went, if there is a newer model, or if it is time; compare if any differs."""
        names, newest, before = pins.names(), self.current, self.pins
        is_due = newest is not self.compared or self._clock() >= self._pins_due
        if newest is None or (names == self._pin_names and not (names and is_due)):
            return
        self.pins = pins.all() if names else {}
        if newest is not self.compared or self.pins != before:
            self.compared = None  # if reading fails, the next poll compares
            self.drifts = {
                name: {"version": version, **drift(old.model, newest.model)._asdict()}
                for name, version in self.pins.items()
                if (old := self._readable(version, self.get)) and old.model.dimensions == newest.model.dimensions
            }
        self.compared, self._pin_names, self._pins_due = newest, names, self._clock() + _PINS_READ_EVERY_S

    def _load_older(self, version: int) -> PublishedModel:
        try:
            model = self._models.load(version)
        except FileNotFoundError:
            raise UnknownVersionError(
                f"there is no model version {version}: never published, or removed; `streampca inspect STORE` lists all"
            ) from None
        self._on_load(model)
        with self._lock:
            self._older[version] = model
            for old in [old for old in self._older if old not in self.pins.values()][:-_OLD_VERSIONS_LOADED]:
                del self._older[old]
        return model

    def _no_model_text(self) -> str:
        if missing := self._missing_store:
            return f"there is no store at {missing} yet: no worker has written to it, or its volume is not mounted"
        damaged = f"; all models in the store are damaged: {sorted(self._damaged)}" if self._damaged else ""
        return f"no model has been published yet in {self._models.location}{damaged}{self._other_topics}"
