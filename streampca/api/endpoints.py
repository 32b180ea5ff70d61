"""What each path does: bytes of a request in, an answer out."""

import os
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread
import orjson
from fastapi import Query, Request, Response

from streampca.api import binary, compute
from streampca.api.binary import NPZ
from streampca.api.compute import Find, Limits, Result
from streampca.api.metrics import SidecarMetrics
from streampca.api.model_cache import ModelCache, NotLoadedError
from streampca.api.recent_vectors import RecentVectors
from streampca.api.request import BINARY, NPY, Body, read_body
from streampca.settings import ServeSettings
from streampca.stream.model_file import PublishedModel

_INLINE_BYTES = 32 * 1024  # a body so short is answered faster than a thread is woken
_JSON = "application/json"

T = TypeVar("T")
A = TypeVarTuple("A")
VersionQuery = Annotated[int | None, Query(ge=0, lt=2**63, description="Version of the model; absent: the newest.")]


class Endpoints:
    """The endpoints."""

    def __init__(
        self, serving: ModelCache, metrics: SidecarMetrics, settings: ServeSettings, probes: RecentVectors
    ) -> None:
        self._serving, self._metrics, self._settings, self._probes = serving, metrics, settings, probes
        # A body of n bytes holds at most n/2 numbers; an answer may hold no more.
        self._limits = Limits(settings.max_rows, settings.max_body_bytes // 2)
        # Parsing holds the interpreter's lock: more threads than processors only multiply memory.
        self._threads = anyio.CapacityLimiter(os.cpu_count() or 1)

    async def project(self, request: Request) -> Response:
        """Coordinates of vectors in the components' basis, and how far each lies from the components' plane."""
        body = await read_body(request, self._settings.max_body_bytes)
        if len(body.data) <= _INLINE_BYTES:
            try:
                return self._respond(compute.project, self._serving.loaded, body)
            except NotLoadedError:
                pass  # reading an old version takes a thread
        return await self._in_thread(self._respond, compute.project, self._serving.at, body)

    async def reconstruct(self, request: Request) -> Response:
        """Vectors from coordinates; or what the components keep of vectors, with the squared error of each."""
        body = await read_body(request, self._settings.max_body_bytes)
        return await self._in_thread(self._respond, compute.reconstruct, self._serving.at, body)

    async def model(self, version: VersionQuery = None) -> Response:
        """A model's dimensions, variances, losses and where in the stream it stands."""
        return _json(compute.about(await self._find(version)))

    async def models(self) -> Response:
        """The versions that can be asked for."""
        versions = await self._in_thread(self._serving.versions)
        current = self._serving.current
        content = {"version": current and current.version, "versions": versions}
        return json_response(content, headers=version_header(current.version) if current else None)

    async def components(self, request: Request, version: VersionQuery = None) -> Response:
        """The axes: JSON with variances and mean, or (Accept: application/x-npy) the matrix alone for `numpy.load`."""
        served = await self._find(version)
        if not _wants(request.headers.get("accept", ""), *BINARY):
            return await self._in_thread(lambda: _json(compute.components(served, self._limits)))
        headers = version_header(served.version) | {
            "Content-Disposition": f'attachment; filename="components-{served.version}.npy"'
        }
        data = await self._in_thread(compute.components_npy, served)
        return Response(data, media_type=NPY, headers=headers)

    async def healthz(self) -> Response:
        """Whether the process answers. For liveness probes."""
        return json_response({"status": "ok"})

    async def readyz(self) -> Response:
        """Whether requests should be sent here: a model is loaded, young enough, and the store can be read."""
        reasons = self._serving.reasons_not_ready(self._settings.model_max_age_s)
        current = self._serving.current
        if reasons or current is None:
            return json_response({"error": f"not ready: {'; '.join(reasons)}", "reasons": reasons}, 503)
        return json_response({"version": current.version}, headers=version_header(current.version))

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        text, content_type = self._metrics.text(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    async def _find(self, version: int | None) -> PublishedModel:
        try:
            return self._serving.loaded(version)
        except NotLoadedError:
            return await self._in_thread(self._serving.at, version)

    def _respond(self, answer: Callable[[Find, Body, Limits], Result], find: Find, body: Body) -> Response:
        answered = answer(find, body, self._limits)
        self._metrics.took(answer.__name__, answered.vectors)
        if answered.probes is not None:
            self._probes.note(answered.probes)
        return _npz(answered) if _wants(body.accept, NPZ) else _json(answered)

    async def _in_thread(self, act: Callable[[Unpack[A]], T], *arguments: *A) -> T:
        return await anyio.to_thread.run_sync(act, *arguments, limiter=self._threads)


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The content as JSON; arrays of NumPy may stand in it."""
    data = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, status, headers, media_type=_JSON)


def version_header(version: int) -> dict[str, str]:
    return {"X-Model-Version": str(version)}


def _json(answer: Result) -> Response:
    return json_response(answer.fields, headers=version_header(answer.version))


def _npz(answer: Result) -> Response:
    return Response(binary.npz(answer.fields), headers=version_header(answer.version), media_type=NPZ)


def _wants(accept: str, *types: str) -> bool:
    """Whether one of these types comes before JSON among those accepted."""
    for part in accept.lower().split(","):
        kind = part.split(";")[0].strip()
        if kind in types:
            return True
        if kind == _JSON:
            return False
    return False
