"""A member's HTTP port: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from streampca.consumer_group import events
from streampca.process.listening import AccessError, BearerTokens, address_of, listen

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

MOST_CONNECTIONS = 64  # probes and scrapers need only a few
_CONNECTED_S = 10.0  # for a client to shake hands, send its request and take the answer
_STUCK_AFTER_S = 60.0  # without a tick: longer than any single step of the loop takes, even with a slow disk
_STARTED_AFTER_S = 300.0  # to the first tick: a throttled container may take minutes to compile its kernels
_SETTLED_AFTER_S = 10.0  # in a group without partitions: another assignment often follows a first empty one


class Failure(NamedTuple):
    """Why a probe fails."""

    kind: str  # all that is said where others need a token, and there is none
    cause: str


class HealthListener(events.Listener):
    """Tracks whether the loop runs and whether the member is in its consumer group; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_tick, self._limit_s = clock(), _STARTED_AFTER_S
        self._member, self._member_since = False, clock()
        self._joined = False
        self._stopping, self._away, self._unsaved = "", "", ""

    def notify(self, event: events.MemberEvent) -> None:
        match event:
            case events.StartDelayed(needs, cause):
                self._last_tick, self._away = self._clock(), f": {cause}" if needs == "brokers" else ""
            case events.LoopTicked():
                self._last_tick, self._limit_s = self._clock(), _STUCK_AFTER_S
            case events.SourcePolled(status):
                self._away = f": {status.cause or 'no broker answers'}" if status.cause or not status.connected else ""
                if status.member != self._member:
                    self._member, self._member_since = status.member, self._clock()
                elif self._clock() - self._member_since >= _SETTLED_AFTER_S:  # a standby without partitions, too
                    self._joined = self._member
            case events.PartitionsAssigned():
                self._joined = True
            case events.PartitionsReleased(_, lost):
                self._joined = not lost  # a member whose partitions are revoked stays in the group
                self._member = self._member and not lost
            case events.SaveOverdue(seconds, _, restart_helps):
                silent = f"nothing was saved for {seconds:.0f} s: no broker answers a client, but a new one"
                self._unsaved = silent if restart_helps else ""
            case events.MemberStopping(cause):
                self._stopping = cause

    def why_unhealthy(self) -> Failure | None:
        """Why the process should be restarted; None while it is healthy."""
        silence = self._clock() - self._last_tick
        if silence > self._limit_s:
            return Failure("loop", f"the loop has not run for {silence:.0f} s")
        return Failure("saving", self._unsaved) if self._unsaved else None

    def why_not_ready(self) -> Failure | None:
        """Why the member is not ready; None while it is."""
        if self._stopping:
            return Failure("stopping", f"stopping: {self._stopping}")
        if self._joined:
            return None
        kind = "certificate" if "certificate" in self._away else "broker" if self._away else "group"
        return Failure(kind, f"no place in the consumer group yet{self._away}")


@contextmanager
def health_server(
    host: str,
    port: int,
    registry: CollectorRegistry,
    health: HealthListener,
    context: ssl.SSLContext | None = None,
    tokens: BearerTokens | None = None,
) -> Iterator["HealthServer"]:
    """Serve on `port` (0: any free one) from a thread of its own. Raises `SettingsError`."""
    server = HealthServer(listen(host, port, "metrics_port"))
    server.set_app(_app(registry, health, tokens))
    if context:  # each thread shakes hands for itself
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.scheme = "https"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="health", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _app(registry: CollectorRegistry, health: HealthListener, tokens: BearerTokens | None) -> "WSGIApplication":
    """prometheus_client's application, with two more paths."""
    metrics: WSGIApplication = make_wsgi_app(registry)
    probes = {"/healthz": health.why_unhealthy, "/readyz": health.why_not_ready}

    def answer(environ: "WSGIEnvironment", start_response: Any) -> Iterable[bytes]:
        path = urlsplit(environ["PATH_INFO"]).path  # a proxy may send scheme and host, too
        if path == "/metrics":
            try:
                if tokens:
                    tokens.check("metrics", environ.get("HTTP_AUTHORIZATION", ""))
                return metrics(environ, start_response)
            except AccessError as error:
                status, text = f"{error.status} {HTTPStatus(error.status).phrase}", f"{error}\n"
        elif path in probes:
            status, text = "200 OK", "ok\n"
            if failure := probes[path]():
                knows = tokens is None or tokens.has(environ.get("HTTP_AUTHORIZATION", ""))
                status, text = "503 Service Unavailable", f"{failure.cause if knows else failure.kind}\n"
        else:
            status, text = "404 Not Found", "there are /metrics, /healthz and /readyz\n"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode()]

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "HEAD":
            return answer(environ, start_response)
        begun: list[Any] = []
        body = b"".join(answer({**environ, "REQUEST_METHOD": "GET"}, lambda *head: begun.extend(head)))
        status, headers = begun
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return []

    return app


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: probes come every few seconds."""


# On threads: uvicorn would add 2 MiB and 0.1 s to a worker's start, and need more processor time for a scrape.
class HealthServer(ThreadingMixIn, WSGIServer):
    """A server whose threads no client can hold up; it closes connections beyond `MOST_CONNECTIONS` unanswered."""

    scheme = "http"
    daemon_threads = True  # the process's exit waits for no client

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = listening.getsockname()[:2]
        self.setup_environ()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    @property
    def url(self) -> str:
        """The URL of its metrics."""
        return f"{self.scheme}://{address_of(self.socket)}/metrics"

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer in time; not at all if there are many connections: they would use up the descriptors."""
        if not self._free.acquire(blocking=False):
            return
        late = threading.Timer(_CONNECTED_S, _disconnect, (request,))
        late.daemon = True
        try:
            late.start()
            super().finish_request(request, client_address)
        finally:
            late.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect in the middle of a request."""


def _disconnect(connection: socket.socket) -> None:
    """Wake the thread that waits for a client."""
    with suppress(OSError):  # it has ended meanwhile
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # not TLS's own, which would go on unencrypted
