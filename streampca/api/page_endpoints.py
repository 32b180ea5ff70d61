"""What the page at `/` shows beside the model: the versions in time, the latest projections, the workers."""

import time
from typing import Annotated, Any

import anyio
import anyio.to_thread
from fastapi import Query, Response

from streampca.api.endpoints import VersionQuery, json_response, version_header
from streampca.api.history import History
from streampca.api.model_cache import ModelCache
from streampca.api.recent_vectors import RecentProjection, RecentVectors
from streampca.settings import ServeSettings
from streampca.stores.worker_status import OUTDATED_AFTER_S, WorkerStatuses

AfterQuery = Annotated[int | None, Query(ge=0, lt=2**63, description="Only versions beyond this one; absent: all.")]
XQuery = Annotated[int, Query(description="A component, counted from 1.")]
YQuery = Annotated[int | None, Query(description="Another one; absent: the second, where there is one.")]


class PageEndpoints:
    """The endpoints."""

    def __init__(
        self,
        serving: ModelCache,
        history: History,
        probes: RecentVectors,
        reports: WorkerStatuses,
        settings: ServeSettings,
    ) -> None:
        self._serving, self._history, self._probes = serving, history, probes
        self._reports, self._settings = reports, settings
        self._reader = anyio.CapacityLimiter(1)  # who comes while the history is read waits for it, without a thread
        self._lister = anyio.CapacityLimiter(1)  # of reports: a slow store takes no more threads than this one

    async def history(self, after: AfterQuery = None) -> Response:
        """Losses and explained variance of every version kept, to plot them over time."""
        beyond = -1 if after is None else after
        models = await anyio.to_thread.run_sync(self._history.after, beyond, limiter=self._reader)
        current = self._serving.current
        content = {
            "now": time.time(),
            "version": current and current.version,
            "not_ready": self._serving.reasons_not_ready(self._settings.model_max_age_s),
            "models": models,
        }
        return json_response(content, headers=version_header(current.version) if current else None)

    async def probes(self, version: VersionQuery = None, x: XQuery = 1, y: YQuery = None) -> Response:
        """Where the vectors projected last (500 at most, kept in memory only) lie along two components of a model."""
        content = await anyio.to_thread.run_sync(self._look, RecentProjection(version, x, y))
        return json_response(content, headers=version_header(content["version"]))

    async def workers(self) -> Response:
        """The workers that reported within the hour: what each does, how fast, and how far its partitions are."""
        reports = await anyio.to_thread.run_sync(self._reports.all, limiter=self._lister)
        now = time.time()
        told = [
            {**report.model_dump(), "silent_s": max(0.0, now - report.updated_at)}
            for report in reports
            if now - report.updated_at <= OUTDATED_AFTER_S
        ]
        return json_response({"now": now, "workers": told})

    def _look(self, look: RecentProjection) -> dict[str, Any]:
        return self._probes.look(self._serving.at(look.version), look)
