"""The sidecar as a process: from the start to the shutdown."""

import resource
from contextlib import suppress
from functools import partial

import structlog

from streampca.errors import StoreBusyError
from streampca.process.http_server import KeepAliveConnection, create_server, serve
from streampca.process.listening import format_address, listen
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

    Raises `SettingsError` if the process cannot listen on the address, `StoreError` if the store cannot be read, and
    the error of a thread that has died. A busy store does not end the start.
    """
    with suppress(StoreBusyError):
        Models(store, settings.topic).versions()  # raises if the store cannot be read
    with prepare_process() as process:  # it installs the tracer, which FastAPI looks for when the app is created
        listening = listen(settings.host, settings.port, "port")
        app = create_app(store, settings, store_metrics)
        tls_context = create_tls_context(settings.tls_folder)
        max_files = _limit_files()  # how many files and connections the process may have open
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

        process.threads.notify = stop  # `notify` is called when an error has ended a thread
        _warn_if_empty(store, settings.topic)
        scheme = "https" if settings.tls_folder else "http"
        log.info("serving", url=f"{scheme}://{format_address(listening)}", topic=settings.topic)
        # When a signal has ended `serve`, uvicorn raises the same signal again. `run_loop` makes `stop` the handler, so
        # the second signal has no effect. By default, it would end the process before "sidecar stopped" is logged.
        process.run_loop(partial(serve, server, listening), stop)
    log.info("sidecar stopped")


def _warn_if_empty(store: Store, topic: str) -> None:
    """Log a warning if the store does not exist yet or has no files of the topic: the settings may be wrong."""
    with suppress(StoreBusyError):  # a busy store does not end the start: it only gives no warning
        missing_location = store.missing()
        if missing_location:
            log.warning("store does not exist yet", path=missing_location)
            return
        topics = list_topics(store, "models", "checkpoints")
        if topic not in topics:
            log.warning("topic is not in the store yet", topic=topic, topics=topics)


def _limit_files() -> int:
    """Lower the limit of open files and connections to at most `_MAX_FILES`, and return the limit.

    The limit bounds the memory that connections can take.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(soft_limit, _MAX_FILES)  # a soft limit of files is never −1 (no limit): Linux bounds it by fs.nr_open
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
    return limit
