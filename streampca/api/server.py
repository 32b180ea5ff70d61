"""The sidecar as a process: sockets, signals, shutdown."""

import contextlib
import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType

import structlog
import uvicorn
from prometheus_client import disable_created_metrics
from threadpoolctl import threadpool_limits

from streampca.api.app import create_app
from streampca.api.protocol import ConnectionLimits, LimitedProtocol
from streampca.errors import SettingsError
from streampca.metrics import StoreMetrics
from streampca.settings import ServeSettings
from streampca.stores.base import Store
from streampca.stores.models import Models
from streampca.thread_failures import ThreadFailures

log = structlog.get_logger()

_FINISH_WITHIN_S = 5  # for requests in flight at shutdown
_KEEP_ALIVE_S = 75  # longer than load balancers do, so that they close idle connections and we do not
_BACKLOG = 128  # also how many connections are accepted at once, before any of them is counted

# Longest time that a thread which parses a large body may hold the GIL while the event loop waits for it. With Python's
# default, ten times as long, the loop waits so long for each 64 KiB of another body.
_SWITCH_INTERVAL_S = 0.0005

_NOT_ON_THIS_MACHINE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def run(settings: ServeSettings, store: Store, store_metrics: StoreMetrics | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight get 5 s to finish.

    Raises `SettingsError` if it cannot listen on the address, `StoreError` if the store cannot be read,
    and the error of a thread that has died.
    """
    Models(store, settings.topic).versions()  # fail at the start if the store cannot be read; later that is only logged
    sockets = listen(settings.host, settings.port)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the number of series for no use
    app = create_app(store, settings, store_metrics)
    limits = ConnectionLimits(app.state.metrics.count_limit)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=partial(LimitedProtocol, limits=limits),  # type: ignore[arg-type]
            backlog=_BACKLOG,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # no answer depends on the client's address or scheme
            ws="none",
            lifespan="on",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_FINISH_WITHIN_S,
        )
    )
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.freeze()  # the collector need not visit what is loaded now and stays
    with (
        _stop_on_signals(server),
        threadpool_limits(1, user_api="blas"),
        ThreadFailures(partial(setattr, server, "should_exit", True)) as threads,
    ):
        if place := store.missing():
            log.warning("store does not exist yet", path=place)
        log.info("serving", url=f"http://{_shown(sockets[0])}", topic=settings.topic)
        server.run(sockets=sockets)
        threads.raise_first()
    log.info("sidecar stopped")


def listen(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of the host, all on one port. Raises `SettingsError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise SettingsError(f"cannot listen on {host}: {error.strerror or error} (set STREAMPCA_HOST)") from None
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    for family, address in dict.fromkeys((family, str(address[0])) for family, *_, address in found):
        try:
            sockets.append(_bound(family, address, port))
        except OSError as error:
            if error.errno in _NOT_ON_THIS_MACHINE:
                absent = error
                continue
            raise _cannot_listen(host, port, error) from None
        port = sockets[0].getsockname()[1]
    if absent is not None and not sockets:
        raise _cannot_listen(host, port, absent) from None
    return sockets


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    # With an explicit protocol: asyncio disables Nagle's algorithm only for sockets created as TCP; with it, every
    # answer on a kept-alive connection waits 40 ms for an acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((address, port))
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> SettingsError:
    remedy = "stop the process there or set STREAMPCA_PORT" if error.errno == errno.EADDRINUSE else "set STREAMPCA_HOST"
    return SettingsError(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)} ({remedy})")


def _shown(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def _stop_on_signals(server: uvicorn.Server) -> Iterator[None]:
    """Stop the server on a signal, also before uvicorn installs its own handlers; the process then exits with status 0.

    uvicorn raises the signal again after its shutdown, which would end the process with the signal's status.
    """

    def stop(_: int, __: FrameType | None) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
