"""The sidecar as a process: its HTTP application, sockets, signals, shutdown."""

import asyncio
import math
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio.to_thread
import structlog
import uvicorn
from fastapi import FastAPI, Security
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.security import HTTPBearer
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from streampca.errors import StoreBusyError
from streampca.process.listening import BACKLOG, BearerTokens, address_of, listen, server_context
from streampca.process.metrics import StoreMetrics
from streampca.process.start import started
from streampca.settings.commands import ServeSettings
from streampca.settings.process import is_loopback
from streampca.sidecar import schemas
from streampca.sidecar.engine import NPZ, Engine
from streampca.sidecar.errors import ErrorResponse, NotReadyResponse
from streampca.sidecar.inference_protocol.endpoints import InferenceEndpoints
from streampca.sidecar.inference_protocol.schemas import InferenceRequest
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.middleware import PROBES, AllowedHosts, Middleware
from streampca.sidecar.mlflow import Instances, MlflowEndpoints
from streampca.sidecar.openapi import DESCRIPTION, add_schemas
from streampca.sidecar.page.endpoints import HistoryReader, PageEndpoints
from streampca.sidecar.request import BYTES, NPY
from streampca.sidecar.v1 import V1Endpoints
from streampca.stores.base import Store, topics_in
from streampca.stores.model_cache import POLL_INTERVAL_S, ModelCache
from streampca.stores.models import Models
from streampca.version import __version__

log = structlog.get_logger()

_FINISH_WITHIN_S = 5  # for requests in flight at shutdown
_KEEP_ALIVE_S = 620  # longer than load balancers do, so that they close idle connections and we do not
REQUEST_WITHIN_S = 10.0  # of a new connection
_MAX_FILES = 1024  # also of connections that send nothing: some 20 MB
_FILES_PER_CONNECTION = 2  # for each connection that is answered: some remain for the store

# Level 1, as numbers compress little, however long it takes; half a millisecond's work is done at once.
_GZIP: dict[str, Any] = {
    "minimum_size": 1000, "compresslevel": 1, "thread_minimum_size": 32 * 1024,
    "exclude_content_types": (NPY, NPZ, BYTES, "image/png"),  # a short list: each request reads it
}  # fmt: skip

# OpenTelemetry records one span for each request, if it has a provider.
_TELEMETRY: Any = {
    "metrics": False, "logs": False, "auto_configure": False, "operation_spans": False,
    "exclude": lambda scope: scope["path"] in {*PROBES, "/metrics"},
}  # fmt: skip


def create_app(store: Store, settings: ServeSettings, store_metrics: StoreMetrics | None = None) -> FastAPI:
    """The application. It polls the store from its startup to its shutdown; `store_metrics` count its requests."""
    models = Models(store, settings.topic)
    history = HistoryReader(models)
    cache = ModelCache(models, on_load=history.add, reads_pins=True)
    metrics = SidecarMetrics(cache, settings.topic, store_metrics or StoreMetrics())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        cache.start(POLL_INTERVAL_S)
        try:
            yield
        finally:
            history.closed.set()
            await anyio.to_thread.run_sync(cache.stop)

    tokens = BearerTokens(settings.tokens_file) if settings.tokens_file else None
    app = FastAPI(
        title="streampca",
        version=__version__,
        description=DESCRIPTION,
        servers=[{"url": "."}],  # relative, as all links: a proxy may add a prefix
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=lifespan,
        telemetry=_TELEMETRY,
        dependencies=[Security(HTTPBearer(auto_error=False))] if tokens else [],  # the middleware checks
    )
    app.state.model_cache = cache
    layers: ASGIApp = AsyncExitStackMiddleware(app.router)
    if hosts := _allowed_hosts(settings):
        open_paths = PROBES if is_loopback(settings.host) else {*PROBES, "/metrics"}
        layers = AllowedHosts(layers, allowed_hosts=hosts, open_paths=open_paths)
    layers = Middleware(layers, metrics, tokens)
    app.middleware_stack = GZipMiddleware(layers, **_GZIP)  # without the framework's layers, which handle errors
    engine = Engine(cache, metrics, settings.topic, settings.max_body_bytes, settings.model_max_age_s)
    for endpoints in (V1Endpoints, InferenceEndpoints, MlflowEndpoints):
        endpoints(engine).add_to(app)
    add_schemas(
        app, schemas.ProjectRequest, schemas.ReconstructRequest, schemas.ScoreRequest, InferenceRequest,
        Instances, ErrorResponse, NotReadyResponse,
    )  # fmt: skip
    PageEndpoints(engine, history, store).add_to(app)
    return app


def _allowed_hosts(settings: ServeSettings) -> list[str]:
    """The Host headers to answer; empty: any.

    On a loopback address only local ones: otherwise a web page elsewhere could read the sidecar by DNS rebinding.
    """
    if settings.allowed_hosts is not None:
        return [name.strip() for name in settings.allowed_hosts.split(",")]
    return ["localhost", "127.0.0.1", "[::1]", settings.host] if is_loopback(settings.host) else []


class Connection(H11Protocol):
    """One that is closed if its first request does not come in time: silent ones would keep others out.

    At the limit of connections a new one takes the place of the one that has been idle for longest, so that clients
    which keep connections open keep no probe out. By h11: httptools takes a fifth less time, but limits no headers, and
    drops the body of a request that offers HTTP/2, as Java's client does.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) + 1 >= (self.limit_concurrency or math.inf):
            self._end_longest_idle()
        super().connection_made(transport)
        self.loop.call_later(REQUEST_WITHIN_S, self._close_without_request)

    def _end_longest_idle(self) -> None:
        idle: list[Any] = [c for c in self.connections if getattr(c, "timeout_keep_alive_task", None)]
        if idle:
            longest = min(idle, key=lambda connection: connection.timeout_keep_alive_task.when())
            longest._unset_keepalive_if_required()
            longest.transport.abort()  # not `close`, which waits for a client of TLS to close, too

    def _close_without_request(self) -> None:
        if self.scope is None:
            self.timeout_keep_alive_handler()


def run(settings: ServeSettings, store: Store, store_metrics: StoreMetrics | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight get 5 s to finish.

    Raises `SettingsError` if it cannot listen on the address, `StoreError` if the store cannot be read,
    and the error of a thread that has died.
    """
    with suppress(StoreBusyError):  # others end the start; later, all are only logged
        Models(store, settings.topic).versions()
    with started() as process:  # before the app, since FastAPI finds the tracer
        listening = listen(settings.host, settings.port, "port")
        server = uvicorn.Server(_config(settings, create_app(store, settings, store_metrics)))
        stop = partial(setattr, server, "should_exit", True)
        process.threads.notify = stop
        with suppress(StoreBusyError):
            if location := store.missing():
                log.warning("store does not exist yet", path=location)
            elif settings.topic not in (topics := topics_in(store, "models", "checkpoints")):
                log.warning("topic is not in the store yet", topic=settings.topic, topics=topics)
        log.info(
            "serving",
            url=f"{'https' if settings.tls_folder else 'http'}://{address_of(listening)}",
            topic=settings.topic,
        )
        # The handlers of signals precede uvicorn's own ones: it raises the signal again after its shutdown, which would
        # otherwise end the process with the signal's status.
        process.run(partial(server.run, sockets=[listening]), lambda signal: stop())
    log.info("sidecar stopped")


def _config(settings: ServeSettings, app: FastAPI) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=Connection,
        backlog=BACKLOG,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # no answer depends on the client's address or scheme
        ws="none",
        lifespan="on",
        limit_concurrency=_limit_files() // _FILES_PER_CONNECTION,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_FINISH_WITHIN_S,
    )
    config.load()
    config.ssl = server_context(settings.tls_folder)
    return config


def _limit_files() -> int:
    """Limit the files that the process may open, and with them its connections; returns their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = min(soft, _MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return files
