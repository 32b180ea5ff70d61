"""Finds the model of a version for a request; loads from the store are shared, few at a time, and few in the queue."""

import asyncio

import anyio
import anyio.to_thread

from streampca.fold.model_file import PublishedModel
from streampca.sidecar.request import RequestError
from streampca.stores.model_cache import ModelCache, NotLoadedError

_LOADS_AT_A_TIME = 2  # each needs memory for a file and its model
_MAX_LOADS = 16  # loading or in the queue


class ModelLoader:
    """Requests for one version share one load. Only for use on the event loop."""

    def __init__(self, cache: ModelCache) -> None:
        self._cache = cache
        self._loads: dict[int | None, asyncio.Task[PublishedModel]] = {}
        self._threads = anyio.CapacityLimiter(_LOADS_AT_A_TIME)

    async def find(self, version: int | None) -> PublishedModel:
        """The model of a version (None: the newest).

        Raises what `ModelCache.get` raises, and `RequestError` if too many versions are being loaded.
        """
        try:
            return self._cache.get_loaded(version)
        except NotLoadedError:
            return await asyncio.shield(self._loads.get(version) or self._start(version))

    def _start(self, version: int | None) -> asyncio.Task[PublishedModel]:
        if len(self._loads) >= _MAX_LOADS:
            text = "too many old versions requested at once: try again"
            raise RequestError(503, text, limit="loads", headers={"Retry-After": "1"})
        task = self._loads[version] = asyncio.ensure_future(self._load(version))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the waiters may be gone
        return task

    async def _load(self, version: int | None) -> PublishedModel:
        try:
            return await anyio.to_thread.run_sync(self._cache.get, version, limiter=self._threads)
        finally:
            del self._loads[version]
