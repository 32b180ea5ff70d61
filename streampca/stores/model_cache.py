"""The model in use: the newest model in the store that can be read. When a newer model appears, it is replaced.

A request gets its model once, so no answer mixes two versions. The version in use only increases, with one exception:
if it is gone from the store, and the store has only lower versions, the newest of these is used.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence

import structlog

from streampca.errors import StoreError, StreampcaError
from streampca.fold.model_file import PublishedModel
from streampca.stores.base import describe_other_topics
from streampca.stores.models import Models
from streampca.stores.readable_models import ReadableModels

log = structlog.get_logger()

POLL_INTERVAL_S = 1.0  # each poll lists the store once; workers publish every 5 s by default
_MAX_OLDER_VERSIONS = 4  # in memory, beside the pinned versions, which are at most ten
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
    """Keeps models in memory: the model in use, `current`, the versions in `pinned`, and a few older versions.

    A thread polls: it lists the models in the store, and loads the newest one if it is not in use already.
    """

    def __init__(
        self,
        models: Models,
        clock: Callable[[], float] = time.monotonic,
        on_load: Callable[[PublishedModel], None] = lambda published: None,
        on_list: Callable[[Models], None] = lambda listed: None,
    ) -> None:
        """`on_load` is called with each model that was read, `on_list` with the models that a poll has listed.

        If `on_list` raises `StoreError`, the poll counts as failed.
        """
        self._models = models
        self._clock = clock
        self.loader = ReadableModels(models, clock)
        self._on_load = on_load
        self._on_list = on_list
        self.current: PublishedModel | None = None
        self.current_since = 0.0  # by the clock
        self.pinned: Collection[int] = ()
        # By version, the models in memory besides the one in use: pinned or requested. They are in the order of their
        # last requests: a new model is added at the end, and `get_loaded` moves a model to the end.
        self._other_versions: OrderedDict[int, PublishedModel] = OrderedDict()
        self._lock = threading.Lock()  # protects _other_versions
        self.failures: Counter[str] = self.loader.failures  # how many polls and loads have failed, by cause
        # What the last poll has found:
        self.store_error: str | None = None  # why the store could not be read; None if it was read
        self._location_of_missing_store: str | None = None  # None if the store exists
        self._other_topics_hint = ""  # added to the error "no model": names other topics that have models
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None

    def get_loaded(self, version: int | None) -> PublishedModel:
        """Return the model of a version; None stands for the version in use.

        Raises `NotLoadedError` if it is not in memory, and `NoModelError` if no version is in use.
        """
        current = self.current  # read once: another thread may replace it
        if version is None:
            if current is None:
                raise NoModelError(self.explain_no_model())
            return current
        if current is not None and version == current.version:
            return current
        with self._lock:
            if version not in self._other_versions:
                raise NotLoadedError(version)
            self._other_versions.move_to_end(version)  # it is the most recently requested one now
            return self._other_versions[version]

    def get(self, version: int | None) -> PublishedModel:
        """Return the model of a version; None stands for the version in use. If it is not in memory, read it.

        Raises `NoModelError`, `UnknownVersionError`, and what `Models.load` raises.
        """
        try:
            return self.get_loaded(version)
        except NotLoadedError as error:
            return self._read_and_keep(error.version)

    def get_if_readable(self, version: int) -> PublishedModel | None:
        """Return the model of a version, or None if it was deleted or cannot be read. Raises `StoreBusyError`."""
        try:
            return self.get_loaded(version)
        except NotLoadedError:
            model = self.loader.load(version)
        if model is not None:
            self._keep_in_memory(model)
        return model

    def versions(self) -> list[int]:
        """List the versions in the store, ascending."""
        return self._models.versions()

    def explain_no_model(self) -> str:
        """Explain why no model is in use."""
        location = self._location_of_missing_store  # read once: another thread may replace it
        if location is not None:
            return f"there is no store at {location} yet: no worker has written to it, or its volume is not mounted"
        unreadable = dict(self.loader.unreadable)  # a copy: another thread changes the original
        if unreadable:
            newest = max(unreadable)
            cause = unreadable[newest].cause
            return f"no model in {self._models.location} can be read; of the newest, version {newest}: {cause}"
        return f"no model has been published yet in {self._models.location}{self._other_topics_hint}"

    def poll(self) -> None:
        """List the store, and load the newest model unless it is in use already."""
        try:
            self._list_and_load()
        except StoreError as error:
            self.failures["store"] += 1
            if self.store_error is None:
                log.error("store unreadable", error=str(error))
            self.store_error = str(error)
            return
        finally:
            self.loader.log_unreadable(in_use=self.current.version if self.current else None)
        if self.store_error is not None:
            log.info("store readable again")
            self.store_error = None

    def _list_and_load(self) -> None:
        """List the store, use the newest model that can be read, and call `on_list`. Raises `StoreError`."""
        self._location_of_missing_store = self._models.store.missing()  # None if the store exists
        listed = self._models.snapshot()
        versions = listed.versions()
        self._forget_deleted(versions)
        self._use_first_readable(self._list_candidates(versions))
        self._on_list(listed)
        if self.current is None:
            self._other_topics_hint = describe_other_topics(self._models.store, self._models.topic)

    def start(self, interval_s: float) -> None:
        """Load the newest model now, and poll for newer ones in a thread."""
        self.poll()
        self._stop.clear()
        self._poller = threading.Thread(target=self._poll_forever, args=(interval_s,), name="model-poller", daemon=True)
        self._poller.start()

    def stop(self) -> None:
        """Stop the thread that polls. Wait for at most two seconds."""
        self._stop.set()
        if self._poller is not None:
            self._poller.join(_STOP_TIMEOUT_S)

    def _poll_forever(self, interval_s: float) -> None:
        """Poll again and again until `stop` is called."""
        while not self._stop.wait(interval_s):
            try:
                self.poll()
            except Exception:  # a bug must not end the thread unnoticed
                self.failures["bug"] += 1
                log.exception("polling for models failed")

    def _list_candidates(self, versions: Sequence[int]) -> list[int]:
        """Return the listed versions that may replace the model in use, the newest first."""
        newest_first = list(reversed(versions))
        current = self.current
        if current is None:
            return newest_first
        newer = [version for version in newest_first if version > current.version]
        if newer:
            return newer
        # The listing may be outdated, so look for the file, too.
        was_deleted = current.version not in versions and not self.loader.is_stored(current.version)
        return newest_first if was_deleted else []

    def _use_first_readable(self, candidates: Sequence[int]) -> None:
        """Load the first candidate that can be read, and use it from now on."""
        for version in candidates:
            model = self.loader.load(version)
            if model is None:
                continue
            if self.current is not None and version < self.current.version:
                log.warning("store has older models only", version=version, before=self.current.version)
            log.debug("model loaded", version=version)
            self.current_since = self._clock()
            self.current = model
            self._on_load(model)
            return

    def _forget_deleted(self, stored_versions: Sequence[int]) -> None:
        """Forget the models that the store has no more."""
        self.loader.forget_deleted(stored_versions)
        with self._lock:
            deleted_versions = self._other_versions.keys() - stored_versions
            for version in deleted_versions:
                del self._other_versions[version]

    def _read_and_keep(self, version: int) -> PublishedModel:
        """Read a version that is not in memory, and keep it.

        Raises `UnknownVersionError`, and what `Models.load` raises.
        """
        try:
            model = self._models.load(version)
        except FileNotFoundError:
            raise UnknownVersionError(
                f"there is no model version {version}: never published, or removed; `streampca inspect STORE` lists all"
            ) from None
        self._keep_in_memory(model)
        return model

    def _keep_in_memory(self, model: PublishedModel) -> None:
        """Keep in memory a model besides the one in use, and call `on_load` with it.

        Of the versions that are not pinned, only the most recently requested ones stay.
        """
        self._on_load(model)
        with self._lock:
            self._other_versions[model.version] = model
            unpinned = [version for version in self._other_versions if version not in self.pinned]
            least_recently_requested = unpinned[:-_MAX_OLDER_VERSIONS]
            for version in least_recently_requested:
                del self._other_versions[version]
