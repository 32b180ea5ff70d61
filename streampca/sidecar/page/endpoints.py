"""The pages at `/` and `/docs`: their files, and the data that only the page at `/` asks for."""

import heapq
import threading
import time
from functools import lru_cache, partial
from os import PathLike, stat_result
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
import numpy as np
import structlog
from fastapi import FastAPI, Query, Request, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from streampca.errors import DamagedFileError, EarlierFormatError, StoreBusyError, StoreError
from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import partition_name
from streampca.settings.kafka import TOPIC_NAME
from streampca.sidecar import compute
from streampca.sidecar.engine import Engine, answer_response, json_response, version_header
from streampca.sidecar.schemas import VersionNumber
from streampca.sidecar.v1 import VersionQuery
from streampca.stores.base import Store, list_topics
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stores.process_status import OUTDATED_AFTER_S, ProcessStatuses

log = structlog.get_logger()

Metrics = dict[str, Any]  # of a version, which the page plots over time

AfterQuery = Annotated[VersionNumber | None, Query()]  # only versions above this one; all if absent
TopicQuery = Annotated[str | None, Query(pattern=TOPIC_NAME)]  # any topic in the store; the served one if absent

_MAX_OTHER_HISTORIES = 3  # in memory, of topics that this sidecar does not serve
_MAX_PARTITIONS = 64  # of each version in a history: the partitions with the greatest losses

FOLDER = Path(__file__).parent / "static"
PAGE_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated by ETag each time, so that the page is never older than its sidecar
}


class PageFiles(StaticFiles):
    """The files of the pages, with headers for browsers."""

    async def page(self, name: str, request: Request) -> Response:
        """Return a page. Its relative links (`page/…`) also work behind a path prefix."""
        return await self.get_response(name, request.scope)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Return a file with the headers of the pages, or 304 if the client has it already."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(PAGE_HEADERS)
        return response


class HistoryReader:
    """Reads the metrics of every version of a topic, and the file of each version at most once."""

    def __init__(self, models: Models, closed_event: threading.Event | None = None) -> None:
        """When `closed_event` is set, the reader stops reading files."""
        self.closed_event = closed_event or threading.Event()
        self._models = models
        self._metrics: dict[int, Metrics | None] = {}  # by version; None if its file cannot be read

    def add(self, published: PublishedModel) -> None:
        """Cache the metrics of a model that was loaded for another purpose. Safe to call from any thread."""
        losses = published.partition_losses
        worst_partitions = heapq.nlargest(_MAX_PARTITIONS, losses, key=lambda partition: losses[partition])
        self._metrics[published.version] = {
            "version": published.version,
            "published_at": published.published_at,
            "last_timestamp_ms": published.stats.last_timestamp_ms,
            "loss_ewma": published.stats.loss_ewma,
            "loss_ratio": published.stats.loss_ratio,
            "partition_losses": {partition_name(p): losses[p] for p in worst_partitions},
            "explained_variance_ratio": float(published.model.explained_variance_ratio.sum()),
            "settings": published.settings,
        }

    def read_after(self, after: int) -> list[Metrics]:
        """Return the metrics of each readable version above `after`, in ascending order.

        `settings` that repeat those of the version before are None. Call it from one thread at a time.
        """
        versions = self._models.versions()
        for deleted in set(self._metrics).difference(versions):
            del self._metrics[deleted]
        for version in versions:
            is_missing = version > after and version not in self._metrics
            if is_missing and not self.closed_event.is_set():  # at shutdown, missing versions are left out
                self._read(version)
        history: list[Metrics] = []
        settings_before = None
        for version in versions:
            metrics = self._metrics.get(version)
            if metrics is None:
                continue
            if version > after:
                is_repeated = metrics["settings"] == settings_before
                history.append({**metrics, "settings": None} if is_repeated else metrics)
            settings_before = metrics["settings"]
        return history

    def _read(self, version: int) -> None:
        """Read a version and cache its metrics, or None if its file cannot be read."""
        try:
            self.add(self._models.load(version))
        except FileNotFoundError:  # deleted since the listing
            return
        except StoreBusyError:  # the store fails, not only this file
            raise
        except (DamagedFileError, EarlierFormatError, StoreError) as error:
            log.debug("model not in history", version=version, error=str(error))
            self._metrics.setdefault(version, None)  # another thread may have added it


class PageEndpoints:
    """The endpoints that only the pages use."""

    def __init__(self, engine: Engine, history: HistoryReader, store: Store) -> None:
        """`history` reads the models of the served topic."""
        self._engine = engine
        self._history = history
        self._store = store

        @lru_cache(_MAX_OTHER_HISTORIES)
        def open_history(topic: str) -> HistoryReader:
            """Return a reader for another topic, which stops reading when `history` does."""
            return HistoryReader(Models(store, topic), closed_event=history.closed_event)

        self._open_history = open_history
        # Each kind of request takes one thread at most, even if the store is slow.
        self._history_limiter = anyio.CapacityLimiter(1)
        self._recent_limiter = anyio.CapacityLimiter(1)
        self._statuses_limiter = anyio.CapacityLimiter(1)

    def add_to(self, app: FastAPI) -> None:
        """Add the endpoints and the files of the pages to the application."""
        for endpoint in (self.angles, self.example, self.history, self.model, self.recent, self.workers):
            app.get(f"/v1/page/{endpoint.__name__}", include_in_schema=False)(endpoint)
        files = PageFiles(directory=FOLDER)
        for path, name in (("/", "index.html"), ("/docs", "docs.html")):
            app.add_api_route(path, partial(files.page, name), include_in_schema=False)
        app.mount("/page", files)

    async def history(self, after: AfterQuery = None, topic: TopicQuery = None) -> Response:
        """Figures of every version in the store, to plot them over time, and pins and drifts of the served topic."""
        served_topic = self._engine.topic
        topic = topic or served_topic
        is_served = topic == served_topic
        history = self._history if is_served else self._open_history(topic)
        after_version = -1 if after is None else after  # -1 is below every version
        figures = await anyio.to_thread.run_sync(history.read_after, after_version, limiter=self._history_limiter)
        version = self._engine.current_version
        content = {
            "now": time.time(),
            "version": version,
            "not_ready": list(self._engine.models.explain_not_ready().values()),
            "unreadable": self._engine.models.list_unreadable(),
            "models": figures,  # of each version
            "pins": self._engine.models.pins if is_served else {},
            "drifts": self._engine.models.drifts if is_served else {},
        }
        if after is None:  # the page's first request
            topics = await anyio.to_thread.run_sync(list_topics, self._store, "models", limiter=self._history_limiter)
            content["topics"] = list(dict.fromkeys([served_topic, *topics]))
        return json_response(content, headers=version_header(version))

    async def recent(self, version: VersionQuery = None, x: int = 1, y: int = 1) -> Response:
        """The vectors projected most recently (at most 500, in memory only) along two components, with p-values."""
        published = await self._engine.find(version)
        content = await anyio.to_thread.run_sync(
            self._engine.recent.project, published, x, y, limiter=self._recent_limiter
        )
        return json_response(content, headers=version_header(content["version"]))

    async def model(self, topic: Annotated[str, Query(pattern=TOPIC_NAME)], version: VersionNumber) -> Response:
        """`/v1/model` of any topic in the store; read each time."""
        models = ModelCache(Models(self._store, topic))
        published = await anyio.to_thread.run_sync(models.get, version, limiter=self._history_limiter)
        return answer_response(compute.describe_model(published, drift={}))

    async def example(self, version: VersionQuery = None) -> Response:
        """A random vector with the mean and the variances of the model, to try requests with."""
        published = await self._engine.find(version)
        work = partial(compute.draw_example, published, np.random.default_rng(), self._engine.limits)
        answer = await self._engine.run_in_thread(work)
        return answer_response(answer._replace(fields={"topic": self._engine.topic, **answer.fields}))

    async def angles(self, version: VersionQuery = None, other: VersionQuery = None) -> Response:
        """Angles between the components of two versions, and between their subspaces."""
        published = await self._engine.find(version)
        compared = await self._engine.find(other)
        work = partial(compute.compare_axes, published.model, compared.model)
        return json_response(await self._engine.run_in_thread(work), headers=version_header(published.version))

    async def workers(self, topic: TopicQuery = None) -> Response:
        """Workers and members of transform that reported within the last hour: state, throughput, and partitions."""
        processes = ProcessStatuses(self._store, topic or self._engine.topic)
        statuses = await anyio.to_thread.run_sync(processes.all, limiter=self._statuses_limiter)
        now = time.time()
        reports = []
        for status in statuses:
            age_s = now - status.updated_at
            if age_s <= OUTDATED_AFTER_S:
                silent_s = max(0.0, age_s)  # the clocks of two machines may differ
                reports.append({**status.model_dump(), "silent_s": silent_s})
        return json_response({"now": now, "workers": reports})
