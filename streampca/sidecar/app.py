"""The sidecar's HTTP application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from starlette.middleware.trustedhost import TrustedHostMiddleware

from streampca.process.bearer_tokens import Tokens
from streampca.process.metrics import StoreMetrics
from streampca.settings.commands import ServeSettings
from streampca.settings.listening import is_loopback
from streampca.sidecar.errors import add_error_handlers
from streampca.sidecar.inference_protocol.endpoints import V2Endpoints
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.middleware import PROBES, Middleware
from streampca.sidecar.model_loader import ModelLoader
from streampca.sidecar.openapi import DESCRIPTION, ERRORS
from streampca.sidecar.page.endpoints import PageEndpoints
from streampca.sidecar.page.history import HistoryReader
from streampca.sidecar.page.recent_vectors import RecentVectors
from streampca.sidecar.routes import add_routes
from streampca.sidecar.v1.endpoints import Endpoints
from streampca.stores.base import Store
from streampca.stores.model_cache import POLL_INTERVAL_S, ModelCache
from streampca.stores.models import Models
from streampca.version import __version__

# One span for each request, if there is a provider.
_TELEMETRY = {"metrics": False, "logs": False, "auto_configure": False, "operation_spans": False}


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

    tokens = Tokens(settings.tokens_file) if settings.tokens_file else None
    app = FastAPIOffline(
        title="streampca",
        version=__version__,
        description=DESCRIPTION,
        responses=ERRORS,
        redoc_url=None,
        static_url="/docs/static",
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
        telemetry={**_TELEMETRY, "exclude": lambda scope: scope["path"] in {*PROBES, "/metrics"}},
        dependencies=[Security(HTTPBearer(auto_error=False))] if tokens else [],  # the middleware checks
    )
    app.state.model_cache = cache
    if hosts := _allowed_hosts(settings):
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(Middleware, metrics=metrics, tokens=tokens)  # around the other one: last in, first called
    add_error_handlers(app, metrics)
    loader = ModelLoader(cache)
    endpoints = Endpoints(cache, loader, metrics, settings, recent)
    page_endpoints = PageEndpoints(cache, loader, history, recent, store, settings)
    add_routes(app, endpoints, V2Endpoints(endpoints, settings.topic), page_endpoints)
    return app


def _allowed_hosts(settings: ServeSettings) -> list[str]:
    """The Host headers to answer; empty: any.

    On a loopback address only local ones: otherwise a web page elsewhere could read the sidecar by DNS rebinding.
    """
    if settings.allowed_hosts is not None:
        return [name.strip() for name in settings.allowed_hosts.split(",")]
    return ["localhost", "127.0.0.1", "[::1]", settings.host] if is_loopback(settings.host) else []
