"""The endpoints for programs: from an HTTP request to a response."""

import os
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread
from fastapi import Query, Request, Response

from streampca.api import compute
from streampca.api.compute import Answer
from streampca.api.memory import Lease
from streampca.api.metrics import SidecarMetrics
from streampca.api.model_loader import ModelLoader
from streampca.api.parsing import R, check_size, parse
from streampca.api.recent_vectors import RecentVectors
from streampca.api.request import BINARY, NPY, RawRequest, read_request
from streampca.api.responses import accepts, answer_response, binary_response, json_response, version_header
from streampca.api.rows import Limits
from streampca.api.schemas import ProjectRequest, ReconstructRequest, ScoreRequest, VersionNumber
from streampca.settings import ServeSettings
from streampca.stores.model_cache import ModelCache, NotLoadedError
from streampca.stream.model_file import PublishedModel

_MAX_INLINE_BYTES = 32 * 1024  # a shorter body is processed faster than a thread wakes up

_MAX_THREADS = 2

T = TypeVar("T")
A = TypeVarTuple("A")
Act = Literal["project", "reconstruct", "score"]
VersionQuery = Annotated[VersionNumber | None, Query(description="Version of the model; the newest if absent.")]


class Endpoints:
    """The endpoints, one method each."""

    def __init__(
        self,
        cache: ModelCache,
        loader: ModelLoader,
        metrics: SidecarMetrics,
        settings: ServeSettings,
        recent: RecentVectors,
    ) -> None:
        self._cache, self._find = cache, loader.find
        self._metrics, self._settings, self._recent = metrics, settings, recent
        # A body of n bytes holds at most n/2 numbers; an answer may hold no more.
        self._limits = Limits(settings.max_rows, min(settings.max_numbers, settings.max_body_bytes // 2))
        # Each may hold a parsed body and its results; parsing holds the GIL, so more threads would gain little.
        self._threads = anyio.CapacityLimiter(min(_MAX_THREADS, os.cpu_count() or 1))

    async def project(self, request: Request) -> Response:
        """Coordinates of vectors in the basis of the components, and each vector's distance from their plane."""
        raw, lease = await read_request(request, self._settings.max_body_bytes), request.scope["lease"]
        if len(raw.body) > _MAX_INLINE_BYTES:
            return await self._in_threads(raw, ProjectRequest, self._project, lease)
        parsed = parse(raw, ProjectRequest)
        return self._project(await self._find(parsed.version), parsed, raw.accept, lease)

    async def reconstruct(self, request: Request) -> Response:
        """Vectors from coordinates; or vectors as the components reconstruct them, with the squared error of each."""
        raw, lease = await read_request(request, self._settings.max_body_bytes), request.scope["lease"]
        return await self._in_threads(raw, ReconstructRequest, self._reconstruct, lease)

    async def score(self, request: Request) -> Response:
        """How unusual vectors are: T², squared distance, score, p-values, and the dimensions that contribute most."""
        raw, lease = await read_request(request, self._settings.max_body_bytes), request.scope["lease"]
        return await self._in_threads(raw, ScoreRequest, self._score, lease)

    async def model(self, request: Request, version: VersionQuery = None) -> Response:
        """A model's dimensions, variances, losses and position in the stream."""
        return answer_response(compute.about(await self._find(version)), request.scope["lease"])

    async def models(self) -> Response:
        """The versions in the store."""
        versions = await self._in_thread(self._cache.versions)
        current = self._cache.current
        content = {"version": current and current.version, "versions": versions}
        return json_response(content, headers=version_header(current.version) if current else None)

    async def components(self, request: Request, version: VersionQuery = None) -> Response:
        """The axes: JSON with variances and mean, or (Accept: application/x-npy) the matrix alone for `numpy.load`."""
        published, lease = await self._find(version), request.scope["lease"]
        if not accepts(request.headers.get("accept", ""), *BINARY):
            return answer_response(compute.components(published, self._limits), lease)
        headers = version_header(published.version) | {
            "Content-Disposition": f'attachment; filename="components-{published.version}.npy"'
        }
        lease.resize(published.model.components.nbytes)
        return binary_response(compute.components_npy(published), NPY, headers)

    async def healthz(self) -> Response:
        """Whether the process responds. For liveness probes."""
        return json_response({"status": "ok"})

    async def readyz(self) -> Response:
        """Whether to send requests here: a model is loaded and not too old, and the store can be read."""
        reasons = self._cache.reasons_not_ready(self._settings.model_max_age_s)
        current = self._cache.current
        if reasons or current is None:
            return json_response({"error": f"not ready: {'; '.join(reasons)}", "reasons": reasons}, 503)
        return json_response({"version": current.version}, headers=version_header(current.version))

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        text, content_type = self._metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    def _project(self, published: PublishedModel, parsed: ProjectRequest, accept: str, lease: Lease) -> Response:
        answer = compute.project(published, parsed, self._limits)
        if answer.projected is not None:
            self._recent.add(answer.projected)
        return self._respond("project", answer, accept, lease)

    def _reconstruct(
        self, published: PublishedModel, parsed: ReconstructRequest, accept: str, lease: Lease
    ) -> Response:
        answer = compute.reconstruct(published, parsed, self._limits)
        return self._respond("reconstruct", answer, accept, lease)

    def _score(self, published: PublishedModel, parsed: ScoreRequest, accept: str, lease: Lease) -> Response:
        return self._respond("score", compute.score(published, parsed, self._limits), accept, lease)

    async def _in_threads(
        self, raw: RawRequest, schema: type[R], act: Callable[..., Response], lease: Lease
    ) -> Response:
        """Parse and answer in one turn of a thread, for each turn has to wait; in two if the model must be loaded."""
        found = await self._in_thread(self._parse_and_answer, raw, schema, act, lease)
        if isinstance(found, Response):
            return found
        return await self._in_thread(act, await self._find(found.version), found, raw.accept, lease)

    def _parse_and_answer(
        self, raw: RawRequest, schema: type[R], act: Callable[..., Response], lease: Lease
    ) -> Response | R:
        check_size(raw, self._limits)
        parsed = parse(raw, schema)
        lease.resize(len(raw.body) + parsed.nbytes())  # both stay in memory while the model is loaded
        try:
            published = self._cache.get_loaded(parsed.version)
        except NotLoadedError:
            return parsed
        return act(published, parsed, raw.accept, lease)

    def _respond(self, act: Act, answer: Answer, accept: str, lease: Lease) -> Response:
        self._metrics.count_vectors(act, answer.vectors)
        return answer_response(answer, lease, accept)

    async def _in_thread(self, act: Callable[[Unpack[A]], T], *arguments: *A) -> T:
        return await anyio.to_thread.run_sync(act, *arguments, limiter=self._threads)
