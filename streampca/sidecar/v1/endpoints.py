"""The endpoints for programs: from an HTTP request to a response."""

import os
from collections.abc import Callable
from typing import Annotated, Protocol, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread
from fastapi import Path, Query, Request, Response

from streampca.fold.model_file import PublishedModel
from streampca.settings.commands import ServeSettings
from streampca.sidecar import compute
from streampca.sidecar.compute import Answer
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.model_loader import ModelLoader
from streampca.sidecar.page.recent_vectors import RecentVectors
from streampca.sidecar.parsing import parse
from streampca.sidecar.request import NPY, RawRequest, RequestError, read_request
from streampca.sidecar.request_arrays import Limits
from streampca.sidecar.responses import (
    accepts,
    answer_response,
    bytes_response,
    error_response,
    json_response,
    version_header,
)
from streampca.sidecar.v1.schemas import AnyVersion, ProjectRequest, ReconstructRequest, RowsRequest, ScoreRequest
from streampca.stores.model_cache import ModelCache, NotLoadedError

# What takes no longer than a thread that wakes up is processed at once: half a millisecond.
_QUICK_BYTES = 32 * 1024  # of JSON
_QUICK_WORK = 2**24  # bytes of numbers, times the components

_MAX_THREADS = 2
_MAX_ROWS = 10_000  # in a request: a batch of what people send
_MAX_NUMBERS = 1_000_000  # in a request, and in an answer: 8 MB, eight of which fit into what is buffered

VersionPath = Annotated[AnyVersion, Path(description="Version of the model, or latest.")]

T = TypeVar("T")
A = TypeVarTuple("A")


class Versioned(Protocol):
    """A parsed request; its version is None for the newest."""

    @property
    def version(self) -> int | None: ...


R = TypeVar("R", bound=Versioned)
P = TypeVar("P", bound=RowsRequest)
Parse = Callable[[RawRequest, Limits], R]
Compute = Callable[[PublishedModel, R, Limits], Answer]
Respond = Callable[[R, Answer, RawRequest], Response]
Find = Callable[[int | None], PublishedModel]
VersionQuery = Annotated[AnyVersion, Query(description="Version of the model; the newest if absent.")]


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
        self._cache, self.find = cache, loader.find
        self._metrics, self._settings, self._recent = metrics, settings, recent
        # A body of n bytes holds at most n/2 numbers; an answer may hold no more.
        self._limits = Limits(_MAX_ROWS, min(_MAX_NUMBERS, settings.max_body_bytes // 2))
        # Each may hold a parsed body and its results; parsing holds the GIL, so more threads would gain little.
        self._threads = anyio.CapacityLimiter(min(_MAX_THREADS, os.cpu_count() or 1))

    async def project(self, request: Request) -> Response:
        """Coordinates of vectors in the basis of the components, and each vector's distance from their plane."""
        return await self.act(request, "project", _parser(ProjectRequest), compute.project, _in_v1, if_quick=True)

    async def reconstruct(self, request: Request) -> Response:
        """Vectors from coordinates; or vectors as the components reconstruct them, with the squared error of each."""
        return await self.act(request, "reconstruct", _parser(ReconstructRequest), compute.reconstruct, _in_v1)

    async def score(self, request: Request) -> Response:
        """How unusual vectors are: T², squared distance, score, p-values, and the dimensions that contribute most."""
        return await self.act(request, "score", _parser(ScoreRequest), compute.score, _in_v1)

    async def model(self, request: Request, version: VersionQuery = None) -> Response:
        """A model's dimensions, variances, losses and position in the stream."""
        published = await self.find(version)
        etag = f'"{published.version}-{published.published_at:.3f}"'
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"ETag": etag})
        response = answer_response(compute.model_info(published))
        response.headers["ETag"] = etag
        return response

    async def model_version(self, request: Request, version: VersionPath) -> Response:
        """Dimensions, variances, losses and position of a version, or of `latest`."""
        return await self.model(request, version)

    async def models(self) -> Response:
        """The versions in the store."""
        versions = await self.versions()
        current = self._cache.current
        content = {"version": current and current.version, "versions": versions}
        return json_response(content, headers=version_header(current.version) if current else None)

    async def components(self, request: Request, version: VersionQuery = None) -> Response:
        """The axes: JSON with variances and mean, or (Accept: application/x-npy) the matrix alone for `numpy.load`."""
        published = await self.find(version)
        if not accepts(request.headers.get("accept", ""), NPY):
            return answer_response(compute.components(published, self._limits))
        headers = version_header(published.version) | {
            "Content-Disposition": f'attachment; filename="components-{published.version}.npy"'
        }
        return bytes_response(compute.components_npy(published), NPY, headers)

    async def healthz(self) -> Response:
        """Whether the process responds. For liveness probes."""
        return json_response({"status": "ok"})

    async def readyz(self) -> Response:
        """Whether to send requests here: a model is loaded and not too old, and the store can be read."""
        reasons = self._cache.reasons_not_ready(self._settings.model_max_age_s)
        current = self._cache.current
        if reasons or current is None:
            return error_response(503, f"not ready: {'; '.join(reasons)}", reasons=reasons)
        return json_response({"version": current.version}, headers=version_header(current.version))

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        text, content_type = self._metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    async def versions(self) -> list[int]:
        """All versions in the store, in ascending order."""
        return await self._in_thread(self._cache.versions)

    def check_ready(self) -> None:
        """Raise `RequestError` unless requests should be sent here."""
        if reasons := self._cache.reasons_not_ready(self._settings.model_max_age_s):
            raise RequestError(503, f"not ready: {'; '.join(reasons)}")

    async def act(
        self,
        request: Request,
        act: str,
        parse: Parse[R],
        compute_answer: Compute[R],
        respond: Respond[R],
        *,
        if_quick: bool = False,
    ) -> Response:
        """Parse and answer: in one turn of a thread, or `if_quick` at once if there is little to do.

        If the model must be loaded first, the thread parses again afterwards.

        The numbers do not stay in memory meanwhile: there may be several times as many bytes as in the body.
        """
        raw = await read_request(request, self._settings.max_body_bytes)

        def answer(published: PublishedModel, parsed: R) -> Response:
            found = compute_answer(published, parsed, self._limits)
            if found.projected is not None:
                self._recent.add(found.projected)
            self._metrics.count_vectors(act, found.vectors)
            return respond(parsed, found, raw)

        def parse_and_answer(find: Find) -> Response:
            parsed = parse(raw.unpacked(self._settings.max_body_bytes), self._limits)
            return answer(find(parsed.version), parsed)

        if if_quick and self._is_quick(raw):
            parsed = parse(raw, self._limits)
            return answer(await self.find(parsed.version), parsed)
        try:
            return await self._in_thread(parse_and_answer, self._cache.get_loaded)
        except NotLoadedError as error:
            published = await self.find(error.version)
        return await self._in_thread(parse_and_answer, lambda _: published)

    def _is_quick(self, raw: RawRequest) -> bool:
        """Whether to project takes little time. Filling gaps does not, nor does parsing much text, nor unpacking."""
        current = self._cache.current
        if raw.is_compressed or raw.json_bytes > _QUICK_BYTES:
            return False
        if current is None or current.settings.get("missing") == "impute":
            return len(raw.body) <= _QUICK_BYTES
        return len(raw.body) * current.model.n_components <= _QUICK_WORK

    async def _in_thread(self, act: Callable[[Unpack[A]], T], *arguments: *A) -> T:
        return await anyio.to_thread.run_sync(act, *arguments, limiter=self._threads)


def _parser(schema: type[P]) -> Parse[P]:
    return lambda raw, limits: parse(raw, schema, limits)


def _in_v1(request: RowsRequest, answer: Answer, raw: RawRequest) -> Response:
    return answer_response(answer, raw.header(b"accept"))
