"""The sidecar's HTTP application: its endpoints, the layers around them, and the models that they serve."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Security
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.security import HTTPBearer
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from streampca.process.bearer_tokens import BearerTokens
from streampca.process.metrics import StoreMetrics
from streampca.settings.commands import ServeSettings
from streampca.settings.process import is_loopback
from streampca.sidecar import schemas
from streampca.sidecar.engine import NPZ, Engine
from streampca.sidecar.errors import ErrorResponse, NotReadyResponse
from streampca.sidecar.inference_protocol.endpoints import InferenceEndpoints
from streampca.sidecar.inference_protocol.schemas import InferenceRequest
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.middleware import PROBES, AllowedHosts, OuterMiddleware
from streampca.sidecar.mlflow import Instances, MlflowEndpoints
from streampca.sidecar.openapi import DESCRIPTION, add_schemas
from streampca.sidecar.page.endpoints import HistoryReader, PageEndpoints
from streampca.sidecar.request import NPY, OCTET_STREAM
from streampca.sidecar.served_models import ServedModels
from streampca.sidecar.v1 import V1Endpoints
from streampca.stores.base import Store
from streampca.stores.model_cache import POLL_INTERVAL_S
from streampca.stores.models import Models
from streampca.version import __version__

_GZIP_OPTIONS: dict[str, Any] = {
    "minimum_size": 1000,
    "compresslevel": 1,  # a higher level takes more time, and numbers become hardly any smaller
    "thread_minimum_size": 32 * 1024,  # up to this size, compressing takes half a millisecond, on the event loop
    "exclude_content_types": (NPY, NPZ, OCTET_STREAM, "image/png"),  # each request compares its type with all of these
}

# FastAPI's argument `telemetry` configures OpenTelemetry: if a tracer is installed, one span for each request, and
# nothing else.
_TELEMETRY_OPTIONS: Any = {
    "metrics": False,
    "logs": False,
    "auto_configure": False,
    "operation_spans": False,
    "exclude": lambda scope: scope["path"] in {*PROBES, "/metrics"},
}


def create_app(store: Store, settings: ServeSettings, store_metrics: StoreMetrics | None = None) -> FastAPI:
    """Create the application, which polls the store for new models from its startup to its shutdown."""
    models = Models(store, settings.topic)
    history = HistoryReader(models)
    served = ServedModels(models, on_load=history.add, max_age_s=settings.model_max_age_s)
    metrics = SidecarMetrics(served, settings.topic, store_metrics or StoreMetrics())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        served.cache.start(POLL_INTERVAL_S)
        try:
            yield
        finally:
            history.closed_event.set()  # ends a request that is reading many models
            await anyio.to_thread.run_sync(served.cache.stop)

    tokens = BearerTokens(settings.tokens_file) if settings.tokens_file else None
    app = FastAPI(
        title="streampca",
        version=__version__,
        description=DESCRIPTION,
        servers=[{"url": "."}],  # relative, since a proxy may add a prefix to the path
        docs_url=None,  # `PageEndpoints` adds a page at /docs
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
        telemetry=_TELEMETRY_OPTIONS,  # one span for each request, and no metrics or logs
        # The middleware checks the token; this only documents it.
        dependencies=[Security(HTTPBearer(auto_error=False))] if tokens else [],
    )
    app.state.model_cache = served.cache
    # The layers around the endpoints, in place of FastAPI's own, which would answer errors in another format.
    app.middleware_stack = _create_layers(app.router, metrics, tokens, settings)
    engine = Engine(served, metrics, settings.topic, settings.max_body_bytes, label_path=settings.label)
    _add_endpoints(app, engine)
    PageEndpoints(engine, history, store).add_to(app)
    return app


def _add_endpoints(app: FastAPI, engine: Engine) -> None:
    """Add the endpoints of all protocols, and describe them in `/openapi.json`."""
    for endpoints_class in (V1Endpoints, InferenceEndpoints, MlflowEndpoints):
        endpoints_class(engine).add_to(app)
    add_schemas(
        app, schemas.ProjectRequest, schemas.ReconstructRequest, schemas.ScoreRequest, InferenceRequest,
        Instances, ErrorResponse, NotReadyResponse,
    )  # fmt: skip


def _create_layers(
    router: ASGIApp, metrics: SidecarMetrics, tokens: BearerTokens | None, settings: ServeSettings
) -> ASGIApp:
    """Return the router, wrapped in layers that replace FastAPI's own."""
    app: ASGIApp = AsyncExitStackMiddleware(router)  # FastAPI's routes need this layer
    app = _restrict_hosts(app, settings)
    app = OuterMiddleware(app, metrics, tokens)
    return GZipMiddleware(app, **_GZIP_OPTIONS)


def _restrict_hosts(app: ASGIApp, settings: ServeSettings) -> ASGIApp:
    """Add a layer that refuses requests whose Host header is not allowed."""
    is_local = is_loopback(settings.host)
    if settings.allowed_hosts is not None:
        hosts = [name.strip() for name in settings.allowed_hosts.split(",")]
    elif is_local:  # protects from DNS rebinding
        hosts = ["localhost", "127.0.0.1", "[::1]", settings.host]
    else:
        return app
    # Orchestrators and Prometheus ask by the address of a pod; on a loopback address, Prometheus has a local name.
    open_paths = PROBES if is_local else {*PROBES, "/metrics"}
    return AllowedHosts(app, allowed_hosts=hosts, open_paths=open_paths)
