"""The page at `/`: its files, and what it needs besides the model: metrics over time, recent vectors, workers."""

import time
from functools import lru_cache
from os import PathLike, stat_result
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import FastAPI, Query, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from streampca.settings.commands import ServeSettings
from streampca.settings.kafka import TOPIC_NAME
from streampca.sidecar import compute
from streampca.sidecar.engine import Engine
from streampca.sidecar.page.history import HistoryReader
from streampca.sidecar.page.recent_vectors import RecentVectors
from streampca.sidecar.responses import answer_response, json_response, version_header
from streampca.sidecar.v1.endpoints import VersionQuery
from streampca.sidecar.v1.schemas import VersionNumber
from streampca.stores.base import Store
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stores.process_status import OUTDATED_AFTER_S, ProcessStatuses

AfterQuery = Annotated[VersionNumber | None, Query()]  # only versions above this one; all if absent
TopicQuery = Annotated[str | None, Query(pattern=TOPIC_NAME)]  # any topic in the store; the served one if absent

_HISTORIES = 3  # of topics that are not served

FOLDER = Path(__file__).parent / "static"
HEADERS = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated by ETag each time, so that the page is never older than its sidecar
}


class PageFiles(StaticFiles):
    async def index(self, request: Request) -> Response:
        """The page itself. Its links are relative (`page/…`), so it also works behind a path prefix."""
        return await self.get_response("index.html", request.scope)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """One file, or 304 if the client has it already."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


class PageEndpoints:
    def __init__(
        self,
        cache: ModelCache,
        engine: Engine,
        history: HistoryReader,
        recent: RecentVectors,
        store: Store,
        settings: ServeSettings,
    ) -> None:
        self._cache, self._engine, self._history, self._recent = cache, engine, history, recent
        self._store, self._settings = store, settings
        self._history_of = lru_cache(_HISTORIES)(lambda topic: HistoryReader(Models(store, topic), history.closed))
        self._history_thread = anyio.CapacityLimiter(1)  # further requests wait without a thread
        self._recent_thread = anyio.CapacityLimiter(1)  # each needs a copy of all recent vectors
        self._statuses_thread = anyio.CapacityLimiter(1)  # a slow store blocks no other thread than this one

    def add_to(self, app: FastAPI) -> None:
        for endpoint in (self.history, self.model, self.recent, self.workers):
            app.get(f"/v1/page/{endpoint.__name__}", include_in_schema=False)(endpoint)
        files = PageFiles(directory=FOLDER)
        app.add_api_route("/", files.index, include_in_schema=False)
        app.mount("/page", files)

    async def history(self, after: AfterQuery = None, topic: TopicQuery = None) -> Response:
        """Losses and explained variance of every version in the store, to plot them over time."""
        served = self._settings.topic
        history = self._history if topic in (None, served) else self._history_of(topic)
        models = await anyio.to_thread.run_sync(
            history.after, -1 if after is None else after, limiter=self._history_thread
        )
        version = self._engine.current_version
        content = {
            "now": time.time(),
            "version": version,
            "not_ready": self._cache.reasons_not_ready(self._settings.model_max_age_s),
            "models": models,
        }
        if after is None:  # to begin with, the topics to choose from
            paths = await anyio.to_thread.run_sync(self._store.names, "models", limiter=self._history_thread)
            content["topics"] = list(dict.fromkeys([served, *(path.rsplit("/", 1)[-1] for path in paths)]))
        return json_response(content, headers=version_header(version))

    async def recent(self, version: VersionQuery = None, x: int = 1, y: int = 1) -> Response:
        """The vectors projected most recently (at most 500, in memory only) along two components, with p-values."""
        published = await self._engine.find(version)
        content = await anyio.to_thread.run_sync(self._recent.project, published, x, y, limiter=self._recent_thread)
        return json_response(content, headers=version_header(content["version"]))

    async def model(self, topic: Annotated[str, Query(pattern=TOPIC_NAME)], version: VersionNumber) -> Response:
        """`/v1/model` of any topic in the store; read each time."""
        models = ModelCache(Models(self._store, topic))
        published = await anyio.to_thread.run_sync(models.get, version, limiter=self._history_thread)
        return answer_response(compute.model_info(published))

    async def workers(self, topic: TopicQuery = None) -> Response:
        """Workers and members of transform that reported within the last hour: state, throughput, and partitions."""
        reports_of = ProcessStatuses(self._store, topic or self._settings.topic)
        statuses = await anyio.to_thread.run_sync(reports_of.all, limiter=self._statuses_thread)
        now = time.time()
        reports = [
            {**status.model_dump(), "silent_s": max(0.0, now - status.updated_at)}
            for status in statuses
            if now - status.updated_at <= OUTDATED_AFTER_S
        ]
        return json_response({"now": now, "workers": reports})
