"""The sidecar's HTTP application: which path leads to which endpoint."""

import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from streampca.api import schemas
from streampca.api.endpoints import Endpoints
from streampca.api.errors import add_error_handlers
from streampca.api.history import HistoryReader
from streampca.api.metrics import SidecarMetrics
from streampca.api.middleware import Middleware
from streampca.api.model_loader import ModelLoader
from streampca.api.openapi import DESCRIPTION, ERRORS, NPY_ANSWER, NPZ_ANSWER, request_body
from streampca.api.page_endpoints import PageEndpoints
from streampca.api.page_files import PageFiles
from streampca.api.recent_vectors import RecentVectors
from streampca.metrics import StoreMetrics
from streampca.settings import ServeSettings
from streampca.stores.base import Store
from streampca.stores.model_cache import POLL_INTERVAL_S, ModelCache
from streampca.stores.models import Models
from streampca.stores.process_status import ProcessStatuses
from streampca.version import __version__


class DirectRoute(APIRoute):
    """A documented route that calls its endpoint directly.

    With FastAPI's dependency injection it would answer 8 % fewer single vectors a second (benchmarks/serving.py).
    """

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], **documentation: Any) -> None:
        super().__init__(path, endpoint, **documentation)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app


def create_app(store: Store, settings: ServeSettings, store_metrics: StoreMetrics | None = None) -> FastAPI:
    """The application. It polls the store from its startup to its shutdown; `store_metrics` count its requests."""
    models = Models(store, settings.topic)
    history = HistoryReader(models)
    cache, recent = ModelCache(models, on_load=history.add), RecentVectors()
    metrics = SidecarMetrics(cache, settings.topic, store_metrics or StoreMetrics())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        cache.start(POLL_INTERVAL_S)
        try:
            yield
        finally:
            history.close()
            await anyio.to_thread.run_sync(cache.stop)

    app = FastAPIOffline(
        title="streampca",
        version=__version__,
        description=DESCRIPTION,
        responses=ERRORS,
        redoc_url=None,
        static_url="/docs/static",
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.model_cache = cache
    if hosts := _allowed_hosts(settings):
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(Middleware, metrics=metrics)  # around the other one: last in, first called
    add_error_handlers(app, metrics)
    loader = ModelLoader(cache)
    endpoints = Endpoints(cache, loader, metrics, settings, recent)
    page_endpoints = PageEndpoints(cache, loader, history, recent, ProcessStatuses(store, settings.topic), settings)
    _add_routes(app, endpoints, page_endpoints)
    return app


def _allowed_hosts(settings: ServeSettings) -> list[str]:
    """The Host headers to answer; empty: any.

    On a loopback address only local ones: otherwise a web page elsewhere could read the sidecar by DNS rebinding.
    """
    if settings.allowed_hosts is not None:
        return [name.strip() for name in settings.allowed_hosts.split(",")]
    try:
        is_loopback = ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        is_loopback = settings.host.lower() == "localhost"
    return ["localhost", "127.0.0.1", "[::1]", settings.host] if is_loopback else []


def _add_routes(app: FastAPI, endpoints: Endpoints, page: PageEndpoints) -> None:
    for path, endpoint, request, answer in (
        ("/v1/project", endpoints.project, schemas.ProjectRequest, schemas.ProjectResponse),
        ("/v1/reconstruct", endpoints.reconstruct, schemas.ReconstructRequest, schemas.ReconstructResponse),
        ("/v1/score", endpoints.score, schemas.ScoreRequest, schemas.ScoreResponse),
    ):
        app.router.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            response_model=answer,
            responses=NPZ_ANSWER,
            openapi_extra=request_body(request),
            route_class_override=DirectRoute,
        )
    app.get("/v1/model", response_model=schemas.ModelResponse)(endpoints.model)
    app.get("/v1/models", response_model=schemas.ModelsResponse)(endpoints.models)
    npy_too = app.get("/v1/model/components", response_model=schemas.ComponentsResponse, responses=NPY_ANSWER)
    npy_too(endpoints.components)
    app.get("/healthz", response_model=schemas.HealthResponse)(endpoints.healthz)
    unready: dict[int | str, dict[str, Any]] = {503: {"model": schemas.NotReadyResponse}}
    app.get("/readyz", response_model=schemas.ReadyResponse, responses=unready)(endpoints.readyz)
    app.get("/metrics", response_class=PlainTextResponse)(endpoints.metrics)
    for path, page_endpoint in (
        ("/v1/history", page.history), ("/v1/recent", page.recent), ("/v1/workers", page.workers),
    ):  # fmt: skip
        app.get(path, include_in_schema=False)(page_endpoint)
    files = PageFiles()
    app.add_api_route("/", files.index, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/page", files)
