"""A member's HTTP port: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes."""

import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, make_asgi_app

from streampca.consumer_group.health import describe_health, why_not_ready, why_unhealthy
from streampca.consumer_group.member import Member
from streampca.process.bearer_tokens import AccessError, BearerTokens
from streampca.process.http_server import ShortConnection, create_server, serve
from streampca.process.listening import format_address, listen

MOST_CONNECTIONS = 64  # probes and scrapers need only a few
_SHUTDOWN_TIMEOUT_S = 1  # for requests in flight, at the end

Send = Callable[[Any], Awaitable[None]]


@contextmanager
def member_port(
    host: str,
    port: int,
    registry: CollectorRegistry,
    member: Member,
    context: ssl.SSLContext | None = None,
    tokens: BearerTokens | None = None,
) -> Iterator[str]:
    """Serve on `port` (0: any free one) in a thread, and yield the URL of the metrics. Raises `SettingsError`."""
    listening = listen(host, port, port_setting="metrics_port")
    url = f"{'https' if context else 'http'}://{format_address(listening)}/metrics"
    server = create_server(
        MemberApp(registry, member, tokens),
        context,
        MOST_CONNECTIONS,
        http=ShortConnection,  # idle connections must not fill the limit
        lifespan="off",
        log_level="error",  # a port scan would fill the log
        headers=[("connection", "close")],
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
    thread = threading.Thread(target=serve, args=(server, listening), name="health", daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()
        listening.close()  # the server closes it when it ends, but not if its thread has failed


class MemberApp:
    """The ASGI application: prometheus_client's for `/metrics`, and the two probes."""

    def __init__(self, registry: CollectorRegistry, member: Member, tokens: BearerTokens | None) -> None:
        self._metrics = make_asgi_app(registry)
        self._probes = {"/healthz": why_unhealthy, "/readyz": why_not_ready}
        self._member = member
        self._tokens = tokens

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        path = urlsplit(scope["path"]).path  # through a proxy, the path may begin with scheme and host
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        if path in self._probes:
            await self._answer_probe(path, authorization, send)
        elif path == "/metrics":
            await self._answer_metrics(authorization, scope, receive, send)
        else:
            await _answer(send, 404, "there are /metrics, /healthz and /readyz")

    async def _answer_metrics(self, authorization: str, scope: Any, receive: Any, send: Send) -> None:
        """Answer with the metrics. If tokens are configured, the request needs a token with the scope `metrics`."""
        try:
            if self._tokens:
                self._tokens.require_scope("metrics", authorization)
        except AccessError as error:
            await _answer(send, error.status, str(error))
            return
        await self._metrics(scope, receive, send)

    async def _answer_probe(self, path: str, authorization: str, send: Send) -> None:
        """Say whether the member is healthy, or ready. If there are tokens, details are only for requests with one."""
        state = self._member.state
        failure = self._probes[path](state, self._member.now().monotonic_s)
        may_see_details = self._tokens is None or self._tokens.knows(authorization)
        if failure:
            await _answer(send, 503, failure.cause if may_see_details else failure.kind)
        elif path == "/healthz" and may_see_details:
            await _answer(send, 200, describe_health(state))
        else:
            await _answer(send, 200, "ok")


async def _answer(send: Send, status: int, line: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{line}\n".encode()})
