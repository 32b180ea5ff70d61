"""The model in use: the newest undamaged model in the store. When a newer one appears, it is replaced atomically.

A request gets its model once, so no answer mixes two versions. The version in use only increases, with one exception:
if it is gone from the store, and the store has only lower versions, the newest of these is used.
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

POLL_INTERVAL_S = 1.0  # each poll lists the store once; workers publish every 5 s by default
_MOST_OLDER_VERSIONS = 4  # in memory, beside the pinned versions, which are at most ten
_DAMAGED_RETRIED_AFTER_S = 60.0
_STOP_TIMEOUT_S = 2.0


class NoModelError(StreampcaError):
    """No model has been published yet."""


class UnknownVersionError(StreampcaError):
    """The version was never published, or it was deleted."""


class NotLoadedError(StreampcaError):
    """The version is not in memory; the store may have it."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version} is not loaded")
        self.version = version


class ModelCache:
    """Keeps models in memory: the one in use, those of the versions in `pinned`, and a few older ones.

    A thread polls the store for newer models.
    """

    def __init__(
        self,
        models: Models,
        clock: Callable[[], float] = time.time,
        on_load: Callable[[PublishedModel], None] = lambda published: None,
        after_poll: Callable[[Models], None] = lambda listed: None,
    ) -> None:
        """`on_load` is called with every model that was read, in the thread that read it.

        `after_poll` is called after each poll with the models as they were listed. If it raises `StoreError`, the poll
        has failed.
        """
        self._models = models
        self._clock = clock
        self._on_load = on_load
        self._after_poll = after_poll
        self.current: PublishedModel | None = None  # the model in use
        self.pinned: Collection[int] = ()  # versions that stay in memory once they are loaded
        self.store_error: str | None = None  # why the last poll failed; None if it did not
        self._older: OrderedDict[int, PublishedModel] = OrderedDict()  # the most recently used last
        self._lock = threading.Lock()  # of _older
        self._damaged: dict[int, float] = {}  # version → when to retry it
        self._missing_store: str | None = None  # its location, if it does not exist yet
        self._other_topics = ""  # end of a sentence: topics with models, while ours has none
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None
        self.failures: Counter[str] = Counter()  # failed loads by cause: damaged, store, bug

    def get_loaded(self, version: int | None) -> PublishedModel:
        """Return the model of a version from memory; None stands for the version in use.

        Raises `NotLoadedError`, and `NoModelError` if no model is in use.
        """
        current = self.current  # read once: another thread may replace it
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
        """Return the model of a version; None stands for the version in use. If it is not in memory, read it.

        Raises `NoModelError`, `UnknownVersionError`, and what `Models.load` raises.
        """
        try:
            return self.get_loaded(version)
        except NotLoadedError as error:
            return self._load_older(error.version)

    def versions(self) -> list[int]:
        """List the versions in the store, ascending."""
        return self._models.versions()

    def why_none(self) -> str:
        """Explain why no model is in use."""
        location = self._missing_store
        if location is not None:
            return f"there is no store at {location} yet: no worker has written to it, or its volume is not mounted"
        damaged = f"; all models in the store are damaged: {sorted(self._damaged)}" if self._damaged else ""
        return f"no model has been published yet in {self._models.location}{damaged}{self._other_topics}"

    def poll(self) -> None:
        """List the store once, and load the newest model. If the store cannot be read, log that once.

        When it can be read again, that is logged, too.
        """
        try:
            self._missing_store = self._models.store.missing()  # for `why_none`
            listed = self._models.snapshot()
            versions = listed.versions()
            self._drop_deleted(versions)
            self._load_newest(self._candidates(versions))
            self._after_poll(listed)
            if self.current is None:
                self._other_topics = other_topics(self._models.store, self._models.topic)  # for `why_none`
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
        """Stop the thread. If a read hangs, do not wait for it longer than some seconds."""
        self._stop.set()
        if self._poller is not None:
            self._poller.join(_STOP_TIMEOUT_S)

    def _poll_forever(self, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            try:
                self.poll()
            except Exception:  # a bug; if it ended the thread, an old model would be served without anybody noticing
                self.failures["bug"] += 1
                log.exception("polling for models failed")

    def _candidates(self, versions: Sequence[int]) -> list[int]:
        """Return the versions that may replace the model in use, the newest first."""
        newest_first = list(reversed(versions))
        current = self.current
        if current is None:
            return newest_first
        newer = [version for version in newest_first if version > current.version]
        if newer or current.version in versions or self._is_stored(current.version):
            return newer
        return newest_first  # the store was replaced: publishing never deletes the newest version

    def _is_stored(self, version: int) -> bool:
        """Return whether a version that is not listed exists: a network file system may list an older state."""
        try:
            self._models.load(version)
        except FileNotFoundError:
            return False
        except DamagedFileError:
            pass
        return True

    def _load_newest(self, candidates: Sequence[int]) -> None:
        """Use the first of the candidates that can be read."""
        for version in candidates:
            retry_at = self._damaged.get(version, 0.0)
            if self._clock() < retry_at:
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
        """Read a version with `read`. Return None if it was deleted after it was listed, or cannot be decoded.

        The latter is logged.
        """
        try:
            return read(version)
        except (FileNotFoundError, UnknownVersionError):
            return None
        except (DamagedFileError, NewerFormatError) as error:
            is_of_newer_release = isinstance(error, NewerFormatError)
            if not is_of_newer_release:
                self.failures["damaged"] += 1
            if version not in self._damaged:
                event = "model of a newer release, not served" if is_of_newer_release else "model damaged, not served"
                in_use = self.current.version if self.current else None
                log.error(event, version=version, in_use=in_use, error=str(error))
            self._damaged[version] = self._clock() + _DAMAGED_RETRIED_AFTER_S
            return None

    def _drop_deleted(self, versions: Sequence[int]) -> None:
        """Forget what is not among the versions of the store any more."""
        self._damaged = {version: retry_at for version, retry_at in self._damaged.items() if version in versions}
        with self._lock:
            for version in self._older.keys() - versions:
                del self._older[version]

    def _load_older(self, version: int) -> PublishedModel:
        """Read a version that is not in memory, and keep it; the least recently used ones may be dropped for it."""
        try:
            model = self._models.load(version)
        except FileNotFoundError:
            raise UnknownVersionError(
                f"there is no model version {version}: never published, or removed; `streampca inspect STORE` lists all"
            ) from None
        self._on_load(model)
        with self._lock:
            self._older[version] = model
            unpinned = [older for older in self._older if older not in self.pinned]
            for least_recently_used in unpinned[:-_MOST_OLDER_VERSIONS]:
                del self._older[least_recently_used]
        return model
