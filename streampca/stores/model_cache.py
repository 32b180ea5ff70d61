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
    """Keeps models in memory: the model in use, the versions in `pinned`, and a few older versions.

    A thread polls: it lists the models in the store, and loads the newest one if it is not in use already.
    """

    def __init__(
        self,
        models: Models,
        clock: Callable[[], float] = time.monotonic,
        on_load: Callable[[PublishedModel], None] = lambda published: None,
        after_poll: Callable[[Models], None] = lambda listed: None,
    ) -> None:
        """`on_load` is called with each model that was read, in the thread that read it.

        A poll lists the models in the store and loads the newest one. `after_poll` is called at the end of each poll,
        with the models as the poll has listed them. If it raises `StoreError`, the poll counts as failed.
        """
        self._models = models
        self._clock = clock
        self.loader = ReadableModels(models, clock)
        self._on_load = on_load
        self._after_poll = after_poll
        self.current: PublishedModel | None = None  # the model in use
        self.current_since = 0.0  # when the model in use was found, by the clock
        self.pinned: Collection[int] = ()  # versions that stay in memory once they are loaded
        self.store_error: str | None = None  # why the last poll failed; None if it did not
        # Models other than the one in use, by version; the most recently used last.
        self._beside_current: OrderedDict[int, PublishedModel] = OrderedDict()
        self._lock = threading.Lock()  # protects _beside_current
        # What the last poll has found, to explain why no model is in use.
        self._missing_store: str | None = None  # location of the store if it does not exist yet; None if it exists
        self._other_topics_text = ""  # "; the store has models of a, b", other topics; empty if it has none
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None
        # Failed loads and polls by cause. The counter is shared with `loader`; polls add the causes store and bug.
        self.failures: Counter[str] = self.loader.failures

    def get_loaded(self, version: int | None) -> PublishedModel:
        """Return the model of a version, if it is in memory; None stands for the version in use.

        Raises `NotLoadedError` if it is not in memory, and `NoModelError` if no model is in use.
        """
        current = self.current  # read once: another thread may replace it
        if current is not None and version in (None, current.version):
            return current
        if version is None:
            raise NoModelError(self.explain_no_model())
        with self._lock:
            if version not in self._beside_current:
                raise NotLoadedError(version)
            self._beside_current.move_to_end(version)
            return self._beside_current[version]

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
            self._keep_beside_current(model)  # not the model in use, which `get_loaded` would have returned
        return model

    def versions(self) -> list[int]:
        """List the versions in the store, ascending."""
        return self._models.versions()

    def explain_no_model(self) -> str:
        """Explain why no model is in use."""
        location = self._missing_store  # where the store does not exist yet; None if it exists
        if location is not None:
            return f"there is no store at {location} yet: no worker has written to it, or its volume is not mounted"
        unreadable = dict(self.loader.unreadable)
        if unreadable:
            newest = max(unreadable)
            cause = unreadable[newest].cause
            return f"no model in {self._models.location} can be read; of the newest, version {newest}: {cause}"
        # The text that is appended begins with a semicolon. It is empty if the store has no models of other topics.
        return f"no model has been published yet in {self._models.location}{self._other_topics_text}"

    def poll(self) -> None:
        """List the store, and load the newest model unless it is in use already.

        If the store cannot be read, that is logged once, until it can be read again.
        """
        try:
            self._missing_store = self._models.store.missing()  # its location if it does not exist yet, else None
            listed = self._models.snapshot()
            versions = listed.versions()
            self._drop_deleted(versions)
            self._use_first_readable(self._list_candidates(versions))
            self._after_poll(listed)  # a callback, in which the sidecar reads pins and reports
            if self.current is None:
                self._other_topics_text = describe_other_topics(self._models.store, self._models.topic)
        except StoreError as error:
            self.failures["store"] += 1
            if self.store_error is None:
                log.error("store unreadable", error=str(error))
            self.store_error = str(error)
            return
        finally:
            # Logs the versions that could not be read, together with the version that is used instead.
            self.loader.log_unreadable(in_use=self.current.version if self.current else None)
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
        """Stop the thread that polls. If it hangs in a read, wait for it only for two seconds."""
        self._stop.set()
        if self._poller is not None:
            self._poller.join(_STOP_TIMEOUT_S)

    def _poll_forever(self, interval_s: float) -> None:
        """Poll again and again until `stop` is called."""
        while not self._stop.wait(interval_s):
            try:
                self.poll()
            except Exception:  # a bug; if it ended the thread, an old model would be served without anybody noticing
                self.failures["bug"] += 1
                log.exception("polling for models failed")

    def _list_candidates(self, versions: Sequence[int]) -> list[int]:
        """Return the listed versions that may replace the model in use, the newest first."""
        newest_first = list(reversed(versions))
        current = self.current
        if current is None:  # none is in use yet, so any may be used
            return newest_first
        newer = [version for version in newest_first if version > current.version]
        if newer:
            return newer
        # The file is looked for, too, since a listing may be old.
        is_gone = current.version not in versions and not self.loader.is_stored(current.version)
        # Workers never delete the newest version. If it is gone, another store has taken the place of this one.
        return newest_first if is_gone else []

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

    def _drop_deleted(self, versions: Sequence[int]) -> None:
        """Forget the models that the store does not have any more. `versions` are those that it has."""
        self.loader.forget_deleted(versions)
        with self._lock:
            # `_beside_current` holds the models in memory other than the one in use.
            deleted = self._beside_current.keys() - versions
            for version in deleted:
                del self._beside_current[version]

    def _read_and_keep(self, version: int) -> PublishedModel:
        """Read a version that is not in memory, and keep it.

        Raises `UnknownVersionError` if the store does not have this version. Raises `StoreError`, `DamagedFileError` or
        `EarlierFormatError` if it cannot be read.
        """
        try:
            model = self._models.load(version)
        except FileNotFoundError:
            raise UnknownVersionError(
                f"there is no model version {version}: never published, or removed; `streampca inspect STORE` lists all"
            ) from None
        self._keep_beside_current(model)  # together with a few more models that were requested last
        return model

    def _keep_beside_current(self, model: PublishedModel) -> None:
        """Keep in memory a model other than the one in use, and call `on_load` with it.

        Of the versions that no user has pinned, only the four that were requested last stay in memory.
        """
        self._on_load(model)
        with self._lock:
            self._beside_current[model.version] = model  # at the end, where the most recently used versions are
            unpinned = [version for version in self._beside_current if version not in self.pinned]
            for version in unpinned[:-_MAX_OLDER_VERSIONS]:
                del self._beside_current[version]
