"""The sidecar's HTTP interface: which path does what, what its page says, and how each fault is told."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from streampca.api import schemas
from streampca.api.binary import NPZ
from streampca.api.endpoints import Endpoints, json_response
from streampca.api.history import History
from streampca.api.metrics import SidecarMetrics
from streampca.api.middleware import Middleware
from streampca.api.model_cache import ModelCache, NoModelError, UnknownVersionError
from streampca.api.page_endpoints import PageEndpoints
from streampca.api.page_files import PageFiles
from streampca.api.recent_vectors import RecentVectors
from streampca.api.request import BINARY, NPY, RequestError
from streampca.errors import DamagedFileError, StoreError
from streampca.pca.model import Basis
from streampca.settings import ServeSettings
from streampca.stores.base import Store
from streampca.stores.models import Models
from streampca.stores.worker_status import WorkerStatuses
from streampca.version import __version__

_DESCRIPTION = """Projections by the newest model that the workers have published, or by an older one that is kept.

Every answer says the version of its model, in the body and in the header `X-Model-Version`.
Every error is `{"error": "what, where, how to mend it"}`.

Bodies are JSON, whatever their Content-Type says, with two exceptions: `application/x-npy` is a NumPy file of real
numbers, one row (d,) or several (n, d), and `application/octet-stream` is rows of little-endian float32 numbers, one
after the other. Such a body holds nothing but the rows: what else JSON has fields for is then asked for in the query.
With `Accept: application/x-npz` the answer's fields come as arrays of those names, for `numpy.load`."""

_CAUSES = {
    400: "The body is not JSON, or not what its Content-Type says.",
    404: "There is no such version: never published, or removed since.",
    406: "Too many numbers for JSON: accept `application/x-npy`.",
    413: "Too many bytes or rows at once.",
    415: "The body is compressed.",
    422: "Not what is asked for: a wrong length, no number, not finite, a value too large, an unknown field.",
    500: "The file of this version is damaged.",
    503: "No model has been published yet, or the store cannot be read.",
}

Route = tuple[str, str, Callable[..., Any], dict[str, Any]]


class Plain(APIRoute):
    """A route whose endpoint reads the request by itself: FastAPI documents it, and does nothing else for it.

    What it otherwise does for every request takes as long as projecting a vector.
    """

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], **documentation: Any) -> None:
        super().__init__(path, endpoint, **documentation)
        self.app = _answers(endpoint)


def _answers(endpoint: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """The endpoint as it is, faults and all: the application tells them, as it does those of every route."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    return answer


_BYTES = {"schema": {"type": "string", "format": "binary"}}
_PARAMETERS = {
    "version": "With a binary body only. Version of the model; absent: the newest.",
    "basis": "With a binary body only.",
    "of": "With a binary body only, and then required: what its rows are.",
}
_VERSION_HEADER = {"X-Model-Version": {"description": "The same as in the body.", "schema": {"type": "integer"}}}

_STATUS: dict[type[Exception], int] = {
    NoModelError: 503,
    UnknownVersionError: 404,
    StoreError: 503,
    DamagedFileError: 500,
    ClientDisconnect: 400,  # no one will read it
}


def create_app(store: Store, settings: ServeSettings) -> FastAPI:
    """The application. It watches the store between its startup and its shutdown."""
    models = Models(store, settings.topic)
    history = History(models)
    serving, probes = ModelCache(models, loaded=history.note), RecentVectors()
    metrics = SidecarMetrics(serving)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        serving.start(settings.reload_interval_s)
        try:
            yield
        finally:
            history.close()
            await anyio.to_thread.run_sync(serving.stop)

    app = FastAPIOffline(
        title="streampca",
        version=__version__,
        description=_DESCRIPTION,
        redoc_url=None,
        static_url="/docs/static",
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.serving = serving
    app.add_middleware(Middleware, metrics=metrics)
    _tell_faults(app)
    sidecar, overview = (
        Endpoints(serving, metrics, settings, probes),
        PageEndpoints(serving, history, probes, WorkerStatuses(store, settings.topic), settings),
    )
    for method, path, endpoint, documentation in [*_routes(sidecar), *_overview_routes(overview)]:
        kind = Plain if method == "POST" else APIRoute
        app.router.add_api_route(
            path, endpoint, methods=[method], response_model=None, route_class_override=kind, **documentation
        )
    app.router.routes.sort(key=lambda route: not isinstance(route, Plain))  # asked most, so looked at first
    page = PageFiles()
    app.add_api_route("/", page.index, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/page", page)
    return app


def _routes(sidecar: Endpoints) -> list[Route]:
    """Method, path, what it does, and what the OpenAPI page says of it."""
    of_body, of_version = (400, 413, 415), (404, 422, 500, 503)
    npy, npz = {NPY: _BYTES}, {NPZ: _BYTES}
    return [
        ("POST", "/v1/project", sidecar.project,
         _page(schemas.Projection, *of_body, *of_version, takes=schemas.ProjectRequest, also=npz)),
        ("POST", "/v1/reconstruct", sidecar.reconstruct,
         _page(schemas.Reconstruction, *of_body, *of_version, takes=schemas.ReconstructRequest, also=npz)),
        ("GET", "/v1/model", sidecar.model, _page(schemas.ModelInfo, *of_version)),
        ("GET", "/v1/models", sidecar.models, _page(schemas.ModelList, 503)),
        ("GET", "/v1/model/components", sidecar.components, _page(schemas.Components, 406, *of_version, also=npy)),
        ("GET", "/healthz", sidecar.healthz, _page(schemas.Alive)),
        ("GET", "/readyz", sidecar.readyz, _page(schemas.Ready, unready=schemas.NotReadyError)),
        ("GET", "/metrics", sidecar.metrics, {"response_class": PlainTextResponse}),
    ]  # fmt: skip


def _overview_routes(overview: PageEndpoints) -> list[Route]:
    """The same for what the page at `/` asks for."""
    return [
        ("GET", "/v1/history", overview.history, _page(schemas.ModelHistory, 422, 503)),
        ("GET", "/v1/probes", overview.probes, _page(schemas.RecentProjections, 404, 422, 500, 503)),
        ("GET", "/v1/workers", overview.workers, _page(schemas.WorkerList, 503)),
    ]


def _page(
    gives: type[BaseModel],
    *errors: int,
    takes: type[BaseModel] | None = None,
    also: dict[str, Any] | None = None,
    unready: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """The documentation of one route, as FastAPI takes it."""
    responses: dict[int | str, dict[str, Any]] = {
        code: {"model": schemas.Error, "description": _CAUSES[code]} for code in errors
    }
    responses[200] = {"model": gives, "content": also or {}}
    if "version" in gives.model_fields:
        responses[200]["headers"] = _VERSION_HEADER
    if unready:
        responses[503] = {"model": unready, "description": "Not ready, and why."}
    if takes is None:
        return {"responses": responses}
    content = {"application/json": {"schema": takes.model_json_schema()}, **dict.fromkeys(BINARY, _BYTES)}
    extra = {"requestBody": {"required": True, "content": content}, "parameters": _parameters(takes)}
    return {"responses": responses, "openapi_extra": extra}


def _parameters(takes: type[BaseModel]) -> list[dict[str, Any]]:
    """What a binary body leaves to the query: the fields that JSON has beside the rows, and what the rows are."""
    rows = [name for name in takes.model_fields if name not in ("basis", "version")]
    schemas_of: dict[str, dict[str, Any]] = {
        "version": {"type": "integer", "minimum": 0},
        "basis": {"type": "string", "enum": list(get_args(Basis)), "default": "principal"},
    }
    if len(rows) > 1:
        schemas_of["of"] = {"type": "string", "enum": rows}
    return [
        {"name": name, "in": "query", "required": False, "schema": schema, "description": _PARAMETERS[name]}
        for name, schema in schemas_of.items()
    ]


def _tell_faults(app: FastAPI) -> None:
    """One shape for every fault, ours, the framework's, and bugs (which the server logs too)."""

    async def tell(request: Request, error: Exception) -> Response:
        status, text = _told(request, error)
        return json_response({"error": text}, status, getattr(error, "headers", None))

    for kind in (*_STATUS, RequestError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, tell)


def _told(request: Request, error: Exception) -> tuple[int, str]:
    match error:
        case RequestError():
            return error.status, str(error)
        case RequestValidationError():
            return 422, "; ".join(f"{mistake['loc'][-1]}: {mistake['msg']}" for mistake in error.errors())
        case HTTPException(status_code=404):
            return 404, f"there is nothing at {request.url.path}; /docs lists what there is"
        case HTTPException(status_code=405):
            return 405, f"{request.method} is not for {request.url.path}"
        case HTTPException():
            return error.status_code, error.detail
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), None)
    return (500, "this is a fault of the server; its log says more") if status is None else (status, str(error))
