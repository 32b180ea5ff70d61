"""The model in use: the newest undamaged one in the store, replaced atomically when a newer one appears.

A request gets its model once, so no answer mixes two versions. The version in use only increases, with one exception:
if it is gone from the store, which has lower versions only, the newest of those is used.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence

import structlog

from streampca.errors import DamagedFileError, NewerFormatError, StoreError, StreampcaError
from streampca.fold.model_file import PublishedModel
from streampca.stores.base import other_topics
from streampca.stores.models import Models

log = structlog.get_logger()

POLL_INTERVAL_S = 1.0  # a list request each; workers publish every 5 s by default
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
    """Caches the model in use, those in `pinned` and a few older ones; a thread polls the store for newer ones."""

    def __init__(
        self,
        models: Models,
        clock: Callable[[], float] = time.time,
        on_load: Callable[[PublishedModel], None] = lambda published: None,
        after_poll: Callable[[Models], None] = lambda listed: None,
    ) -> None:
        """`on_load` gets every model that was read, in the thread that read it.

        `after_poll` gets the listing of each poll; its `StoreError` counts as the poll's.
        """
        self._models = models
        self._clock = clock
        self._on_load = on_load
        self._after_poll = after_poll
        self.current: PublishedModel | None = None  # the newest undamaged one
        self.pinned: Collection[int] = ()  # versions that are never evicted
        self.store_error: str | None = None  # why the last poll failed
        self._older: OrderedDict[int, PublishedModel] = OrderedDict()  # by last use
        self._lock = threading.Lock()  # of _older
        self._damaged: dict[int, float] = {}  # version → when to retry it
        self._missing_store: str | None = None  # where it should be
        self._other_topics = ""  # that have models, while ours has none
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None
        self.failures: Counter[str] = Counter()  # failed loads by cause: damaged, store, bug

    def get_loaded(self, version: int | None) -> PublishedModel:
        """The model of a version (None: the newest) if it is in memory; else `NotLoadedError`."""
        current = self.current
        if current is not None and version in (None, current.version):
            return current
        if version is None:
            raise NoModelError(self.why_none())
        with self._lock:
            if version not in self._older:
                raise NotLoadedError(version)
            self._older.move_to_end(version)
            return self._older[version]

    def get(self, version: int | None) -> PublishedModel:
        """The model of a version (None: the newest), read from the store if it is not in memory.

        Raises `NoModelError`, `UnknownVersionError`, and what `Models.load` raises.
        """
        try:
            return self.get_loaded(version)
        except NotLoadedError as error:
            return self._load_older(error.version)

    def versions(self) -> list[int]:
        """Versions in the store, in ascending order."""
        return self._models.versions()

    def why_none(self) -> str:
        """Explain why no model is in use."""
        if missing := self._missing_store:
            return f"there is no store at {missing} yet: no worker has written to it, or its volume is not mounted"
        damaged = f"; all models in the store are damaged: {sorted(self._damaged)}" if self._damaged else ""
        return f"no model has been published yet in {self._models.location}{damaged}{self._other_topics}"

    def poll(self) -> None:
        """List the store once and load what is newer. Log an unreadable store once, and its recovery once."""
        try:
            self._missing_store = self._models.store.missing()
            listed = self._models.snapshot()
            versions = listed.versions()
            self._drop_pruned(versions)
            self._load_newest(self._candidates(versions))
            self._after_poll(listed)
            self._other_topics = "" if self.current else other_topics(self._models.store, self._models.topic)
        except StoreError as error:
            self.failures["store"] += 1
            if self.store_error is None:
                log.error("store unreadable", error=str(error))
            self.store_error = str(error)
            return
        if self.store_error is not None:
            log.info("store readable again")
            self.store_error = None

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
            model = self.readable(version, self._models.load)
            if model is None:
                continue
            if self.current is not None and version < self.current.version:
                log.warning("store has older models only", version=version, before=self.current.version)
            log.debug("model loaded", version=version)
            self.current = model
            self._on_load(model)
            return

    def readable(self, version: int, read: Callable[[int], PublishedModel]) -> PublishedModel | None:
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
            evictable = [old for old in self._older if old not in self.pinned]
            for old in evictable[:-_OLD_VERSIONS_LOADED]:
                del self._older[old]
        return model
