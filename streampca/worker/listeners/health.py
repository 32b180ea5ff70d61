"""The worker's own HTTP port: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever keeps it running."""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from streampca.errors import StreampcaError
from streampca.stream.record import SourceStatus
from streampca.worker.listener import Listener

_SILENCE_S = 60.0  # without a tick: longer than any single step of the loop takes, the slowest disk included
_SETTLED_S = 10.0  # in a group without partitions: the first assignment is often an empty one that another follows
_REQUEST_TIMEOUT_S = 10.0
_TEXT = "text/plain; charset=utf-8"


class HealthListener(Listener):
    """Listens whether the loop goes round and whether the worker has its place in the group; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_tick = clock()
        self._member, self._member_since = False, clock()
        self._joined = False
        self._stopping = ""

    def ticked(self) -> None:
        self._last_tick = self._clock()

    def assigned(self, positions: Mapping[int, int]) -> None:
        self._joined = True

    def released(self, partitions: Iterable[int], *, lost: bool) -> None:
        self._joined = not lost  # what is revoked in a rebalance leaves us in the group
        self._member = self._member and not lost

    def polled(self, status: SourceStatus) -> None:
        """One that no partition is left for has its place too: it stands by. A passing state decides nothing."""
        now = self._clock()
        if status.member != self._member:
            self._member, self._member_since = status.member, now
        elif now - self._member_since >= _SETTLED_S:
            self._joined = self._member

    def stopping(self, cause: str) -> None:
        self._stopping = cause

    def ailment(self) -> str | None:
        """Why the process should be started anew; None when it is well."""
        silence = self._clock() - self._last_tick
        return f"the loop has not come round for {silence:.0f} s" if silence > _SILENCE_S else None

    def hindrance(self) -> str | None:
        """Why the worker does not do its part yet; None when it does."""
        if self._stopping:
            return f"stopping: {self._stopping}"
        return None if self._joined else "no place in the consumer group yet"


class HealthServer:
    """Serves in a thread of its own from the moment it is made until `close`; also a context manager."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: HealthListener) -> None:
        """Listen on `port`, 0 for any that is free. Raises `StreampcaError` when that cannot be done."""
        handler = type("_BoundHandler", (_Handler,), {"registry": registry, "health": health})
        try:
            self._server = _server_class(host)((host, port), handler)
        except (OSError, OverflowError) as error:
            raise StreampcaError(_refusal(host, port, error)) from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where its metrics are."""
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening. Closing twice is harmless."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "HealthServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    health: HealthListener
    timeout = _REQUEST_TIMEOUT_S  # of the socket: a client that says nothing holds no thread for ever
    server_version, sys_version = "streampca", ""

    def do_GET(self) -> None:
        status, kind, body = self._answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self.registry)
        checks = {"/healthz": self.health.ailment, "/readyz": self.health.hindrance}
        if path not in checks:
            return 404, _TEXT, b"there are /metrics, /healthz and /readyz\n"
        reason = checks[path]()
        return (503, _TEXT, f"{reason}\n".encode()) if reason else (200, _TEXT, b"ok\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Probes come every few seconds and are no news."""


class _Server(ThreadingHTTPServer):
    def server_bind(self) -> None:
        """Without HTTPServer's look-up of the host's full name, which takes long where there is no name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is its own affair."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _Server6 if ":" in host else _Server


def _refusal(host: str, port: int, error: OSError | OverflowError) -> str:
    where = f"cannot listen on {host}:{port} for /metrics and /healthz"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{where}: another program has that port; set worker_port to a free one, or to 0 for any"
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        return f"{where}: ports below 1024 need the right to use them; set worker_port to a higher one"
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return f"{where}: {reason}; set worker_host and worker_port"
