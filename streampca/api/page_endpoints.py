"""The endpoints that the page at `/` needs besides the model: metrics over time, recent vectors, workers."""

import time
from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import Query, Response

from streampca.api.endpoints import VersionQuery
from streampca.api.history import HistoryReader
from streampca.api.model_loader import ModelLoader
from streampca.api.recent_vectors import RecentVectors
from streampca.api.responses import json_response, version_header
from streampca.api.schemas import VersionNumber
from streampca.settings import ServeSettings
from streampca.stores.model_cache import ModelCache
from streampca.stores.process_status import OUTDATED_AFTER_S, ProcessStatuses

AfterQuery = Annotated[VersionNumber | None, Query()]  # only versions above this one; all if absent


class PageEndpoints:
    """The endpoints, one method each."""

    def __init__(
        self,
        cache: ModelCache,
        loader: ModelLoader,
        history: HistoryReader,
        recent: RecentVectors,
        statuses: ProcessStatuses,
        settings: ServeSettings,
    ) -> None:
        self._cache, self._loader, self._history, self._recent = cache, loader, history, recent
        self._statuses, self._settings = statuses, settings
        self._history_thread = anyio.CapacityLimiter(1)  # further requests wait without a thread
        self._recent_thread = anyio.CapacityLimiter(1)  # each needs a copy of all recent vectors
        self._statuses_thread = anyio.CapacityLimiter(1)  # a slow store blocks no other thread than this one

    async def history(self, after: AfterQuery = None) -> Response:
        """Losses and explained variance of every version in the store, to plot them over time."""
        models = await anyio.to_thread.run_sync(
            self._history.after, -1 if after is None else after, limiter=self._history_thread
        )
        current = self._cache.current
        content = {
            "now": time.time(),
            "version": current and current.version,
            "not_ready": self._cache.reasons_not_ready(self._settings.model_max_age_s),
            "models": models,
        }
        return json_response(content, headers=version_header(current.version) if current else None)

    async def recent(self, version: VersionQuery = None, x: int = 1, y: int = 1) -> Response:
        """The vectors projected most recently (at most 500, in memory only) along two components, with p-values."""
        published = await self._loader.find(version)
        content = await anyio.to_thread.run_sync(self._recent.project, published, x, y, limiter=self._recent_thread)
        return json_response(content, headers=version_header(content["version"]))

    async def workers(self) -> Response:
        """Workers and members of transform that reported within the last hour: state, throughput, and partitions."""
        statuses = await anyio.to_thread.run_sync(self._statuses.all, limiter=self._statuses_thread)
        now = time.time()
        reports = [
            {**status.model_dump(), "silent_s": max(0.0, now - status.updated_at)}
            for status in statuses
            if now - status.updated_at <= OUTDATED_AFTER_S
        ]
        return json_response({"now": now, "workers": reports})
