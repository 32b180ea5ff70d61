"""The pages at `/` and `/docs`: their files, and what the first needs besides the model: history, vectors, workers."""

import heapq
import threading
import time
from functools import lru_cache, partial
from itertools import pairwise
from os import PathLike, stat_result
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
import structlog
from fastapi import FastAPI, Query, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from streampca.errors import DamagedFileError
from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import partition_name
from streampca.settings.kafka import TOPIC_NAME
from streampca.sidecar import compute
from streampca.sidecar.engine import Engine, answer_response, json_response, version_header
from streampca.sidecar.schemas import VersionNumber
from streampca.sidecar.v1 import VersionQuery
from streampca.stores.base import Store, topics_in
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stores.process_status import OUTDATED_AFTER_S, ProcessStatuses

log = structlog.get_logger()

Figures = dict[str, Any]  # of a version, to plot them over time

AfterQuery = Annotated[VersionNumber | None, Query()]  # only versions above this one; all if absent
TopicQuery = Annotated[str | None, Query(pattern=TOPIC_NAME)]  # any topic in the store; the served one if absent

_HISTORIES = 3  # of topics that are not served
_MAX_PARTITIONS = 64  # of each version in a history, those with the greatest losses

FOLDER = Path(__file__).parent / "static"
HEADERS = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated by ETag each time, so that the page is never older than its sidecar
}


class PageFiles(StaticFiles):
    async def page(self, name: str, request: Request) -> Response:
        """A page. Its links are relative (`page/…`), so it also works behind a path prefix."""
        return await self.get_response(name, request.scope)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """One file, or 304 if the client has it already."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


class HistoryReader:
    """Reads the file of each version at most once, and caches its metrics."""

    def __init__(self, models: Models, closed: threading.Event | None = None) -> None:
        """`closed` ends a call of `after` once the current file is read; readers may share it."""
        self._models, self.closed = models, closed or threading.Event()
        self._figures: dict[int, Figures | None] = {}  # None: its file is damaged

    def add(self, published: PublishedModel) -> None:
        """Cache the metrics of a model that was loaded for another purpose. From any thread."""
        losses = published.partition_losses
        greatest = heapq.nlargest(_MAX_PARTITIONS, losses, key=losses.__getitem__)
        self._figures[published.version] = {
            "version": published.version,
            "published_at": published.published_at,
            "last_timestamp_ms": published.stats.last_timestamp_ms,
            "loss_ewma": published.stats.loss_ewma,
            "loss_ratio": published.stats.loss_ratio,
            "partition_losses": {partition_name(p): losses[p] for p in greatest},
            "explained_variance_ratio": float(published.model.explained_variance_ratio.sum()),
            "settings": published.settings,
        }

    def after(self, version: int) -> list[Figures]:
        """The metrics of the versions above this one, in ascending order; damaged files are left out.

        `settings` is None where the version before has the same: a long history does not repeat them.
        It may read many files: call it from one thread at a time, and not from the event loop.
        Raises `StoreError`; what was read before that stays cached.
        """
        listed = self._models.versions()
        for pruned in set(self._figures).difference(listed):
            del self._figures[pruned]
        for missing in listed:
            if missing > version and missing not in self._figures and not self.closed.is_set():
                self._read(missing)
        readable = [figures for other in listed if (figures := self._figures.get(other)) is not None]
        return [
            figures | {"settings": None} if figures["settings"] == before.get("settings") else figures
            for before, figures in pairwise([Figures(), *readable])
            if figures["version"] > version
        ]

    def _read(self, version: int) -> None:
        try:
            self.add(self._models.load(version))
        except FileNotFoundError:  # pruned since it was listed
            return
        except DamagedFileError as error:  # the model cache logs it as an error
            log.debug("damaged model not in history", version=version, error=str(error))
            self._figures.setdefault(version, None)


class PageEndpoints:
    def __init__(self, engine: Engine, history: HistoryReader, store: Store) -> None:
        self._engine, self._history, self._store = engine, history, store
        self._history_of = lru_cache(_HISTORIES)(lambda topic: HistoryReader(Models(store, topic), history.closed))
        self._history_thread = anyio.CapacityLimiter(1)  # further requests wait without a thread
        self._recent_thread = anyio.CapacityLimiter(1)  # each needs a copy of all recent vectors
        self._statuses_thread = anyio.CapacityLimiter(1)  # a slow store blocks no other thread than this one

    def add_to(self, app: FastAPI) -> None:
        for endpoint in (self.angles, self.history, self.model, self.recent, self.workers):
            app.get(f"/v1/page/{endpoint.__name__}", include_in_schema=False)(endpoint)
        files = PageFiles(directory=FOLDER)
        for path, name in (("/", "index.html"), ("/docs", "docs.html")):
            app.add_api_route(path, partial(files.page, name), include_in_schema=False)
        app.mount("/page", files)

    async def history(self, after: AfterQuery = None, topic: TopicQuery = None) -> Response:
        """Figures of every version in the store, to plot them over time, and the pins of the served topic."""
        served = self._engine.topic
        history = self._history if topic in (None, served) else self._history_of(topic)
        models = await anyio.to_thread.run_sync(
            history.after, -1 if after is None else after, limiter=self._history_thread
        )
        version, not_ready = self._engine.current_version, list(self._engine.reasons_not_ready().values())
        pins = self._engine.models.pins if history is self._history else {}
        content = {"now": time.time(), "version": version, "not_ready": not_ready, "models": models, "pins": pins}
        if after is None:  # to begin with, the topics to choose from
            topics = await anyio.to_thread.run_sync(topics_in, self._store, "models", limiter=self._history_thread)
            content["topics"] = list(dict.fromkeys([served, *topics]))
        return json_response(content, headers=version_header(version))

    async def recent(self, version: VersionQuery = None, x: int = 1, y: int = 1) -> Response:
        """The vectors projected most recently (at most 500, in memory only) along two components, with p-values."""
        published, recent = await self._engine.find(version), self._engine.recent
        content = await anyio.to_thread.run_sync(recent.project, published, x, y, limiter=self._recent_thread)
        return json_response(content, headers=version_header(content["version"]))

    async def model(self, topic: Annotated[str, Query(pattern=TOPIC_NAME)], version: VersionNumber) -> Response:
        """`/v1/model` of any topic in the store; read each time."""
        published = await anyio.to_thread.run_sync(
            ModelCache(Models(self._store, topic)).get, version, limiter=self._history_thread
        )
        return answer_response(compute.model_info(published, drift={}))

    async def angles(self, version: VersionQuery = None, other: VersionQuery = None) -> Response:
        """Angles between the components of two versions, and between their subspaces."""
        shown = await self._engine.find(version)
        compared = await self._engine.find(other)
        work = partial(compute.angles, shown.model, compared.model)
        return json_response(await self._engine.in_thread(work), headers=version_header(shown.version))

    async def workers(self, topic: TopicQuery = None) -> Response:
        """Workers and members of transform that reported within the last hour: state, throughput, and partitions."""
        statuses = await anyio.to_thread.run_sync(
            ProcessStatuses(self._store, topic or self._engine.topic).all, limiter=self._statuses_thread
        )
        now = time.time()
        reports = [
            {**status.model_dump(), "silent_s": max(0.0, now - status.updated_at)}
            for status in statuses
            if now - status.updated_at <= OUTDATED_AFTER_S
        ]
        return json_response({"now": now, "workers": reports})
