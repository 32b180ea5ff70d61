"""The sidecar as a process: from the start to the shutdown."""

import resource
from contextlib import suppress
from functools import partial

import structlog

from streampca.errors import StoreBusyError
from streampca.process.http_server import KeepAliveConnection, create_server, serve
from streampca.process.listening import format_address, listen
from streampca.process.machine import share_heap_between_threads
from streampca.process.metrics import StoreMetrics
from streampca.process.start import prepare_process
from streampca.process.tls_certificate import create_tls_context
from streampca.settings.commands import ServeSettings
from streampca.sidecar.app import create_app
from streampca.stores.base import Store, list_topics
from streampca.stores.models import Models

log = structlog.get_logger()

_SHUTDOWN_TIMEOUT_S = 5  # for requests that run at shutdown
_KEEP_ALIVE_S = 620  # longer than load balancers do, so that they close idle connections and we do not
_MAX_FILES = 1024  # open files and connections; so many connections that send nothing need 20 MB
_FILES_PER_CONNECTION = 2  # a connection that is answered needs one; the rest is for files of the store


def run(settings: ServeSettings, store: Store, store_metrics: StoreMetrics | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Then running requests get 5 s to finish.

    Raises `SettingsError` if the address cannot be used, and `StoreError` if the store cannot be read.
    """
    with suppress(StoreBusyError):  # the app asks a busy store again later
        Models(store, settings.topic).versions()  # raises if the store cannot be read
    share_heap_between_threads()  # otherwise each thread's heap would keep the memory of large requests
    with prepare_process() as process:  # installs the tracer, which the app needs
        listening = listen(settings.host, settings.port, port_setting="port")
        app = create_app(store, settings, store_metrics)
        tls_context = create_tls_context(settings.tls_folder)
        max_files = _lower_file_limit()
        server = create_server(
            app,
            tls_context,
            max_connections=max_files // _FILES_PER_CONNECTION,
            http=KeepAliveConnection,
            lifespan="on",
            log_level="warning",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
        )

        def stop(*_: object) -> None:
            server.should_exit = True

        process.thread_failures.notify = stop  # called when an error ends a thread
        _warn_if_empty(store, settings.topic)
        scheme = "https" if settings.tls_folder else "http"
        log.info("serving", url=f"{scheme}://{format_address(listening)}", topic=settings.topic)
        # `stop` also handles signals. When uvicorn has ended after a signal, it raises the same signal again: `stop`
        # then sets `should_exit` a second time, without an effect.
        process.run_loop(partial(serve, server, listening), stop)
    log.info("sidecar stopped")


def _warn_if_empty(store: Store, topic: str) -> None:
    """Log a warning if the store does not exist or has no files of the topic."""
    with suppress(StoreBusyError):  # a busy store does not end the start
        missing_location = store.missing()
        if missing_location:
            log.warning("store does not exist yet", path=missing_location)
            return
        topics = list_topics(store, "models", "checkpoints")
        if topic not in topics:
            log.warning("topic is not in the store yet", topic=topic, topics=topics)


def _lower_file_limit() -> int:
    """Lower the limit of open files and connections, to bound their memory, and return it."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(soft_limit, _MAX_FILES)  # on Linux, the soft limit is a positive number, never −1 for no limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
    return limit
