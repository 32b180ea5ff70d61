"""The sidecar as a process: sockets, signals, shutdown."""

import asyncio
import contextlib
import math
import resource
from functools import partial
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from streampca.errors import StoreBusyError
from streampca.process.listening import BACKLOG, address_of, listen, server_context
from streampca.process.metrics import StoreMetrics
from streampca.process.start import started
from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.stores.base import Store, topics_in
from streampca.stores.models import Models

log = structlog.get_logger()

_FINISH_WITHIN_S = 5  # for requests in flight at shutdown
_KEEP_ALIVE_S = 620  # longer than load balancers do, so that they close idle connections and we do not
REQUEST_WITHIN_S = 10.0  # of a new connection
_MAX_FILES = 1024  # also of connections that send nothing: some 20 MB
_FILES_PER_CONNECTION = 2  # for each connection that is answered: some remain for the store


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
    with contextlib.suppress(StoreBusyError):  # others end the start; later, all are only logged
        Models(store, settings.topic).versions()
    with started() as process:  # before the app, since FastAPI finds the tracer
        listening = listen(settings.host, settings.port, "port")
        server = uvicorn.Server(_config(settings, create_app(store, settings, store_metrics)))
        stop = partial(setattr, server, "should_exit", True)
        process.threads.notify = stop
        with contextlib.suppress(StoreBusyError):
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
