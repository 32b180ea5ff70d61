"""Middleware for every request: its host, its duration, its memory, and security headers."""

import time
from collections.abc import Awaitable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streampca.api.hosts import host_name
from streampca.api.memory import MemoryBudget
from streampca.api.metrics import SidecarMetrics
from streampca.api.responses import json_response

_OTHER = "other"  # for unknown paths and those of /docs: paths as labels would have no bound
_AMBIGUOUS = {b"content-length", b"transfer-encoding"}  # together: proxies disagree where such a request ends
_SECURITY = [(b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY")]
_POLICY = b"content-security-policy"
_NOTHING = (_POLICY, b"default-src 'none'; frame-ancestors 'none'")  # for all answers that are no page
_SWAGGER = (  # its page has a script of its own in it
    _POLICY,
    b"default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
)


class Middleware:
    """Checks the host, measures each request from its headers to its response's last byte, adds security headers.

    `scope["lease"]` is the request's memory, released after that byte. All in one layer: a layer costs more than each.
    """

    def __init__(
        self, app: ASGIApp, metrics: SidecarMetrics, budget: MemoryBudget, hosts: frozenset[str] | None
    ) -> None:
        self._app, self._metrics, self._budget, self._hosts = app, metrics, budget, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, code = time.perf_counter(), 500
        lease = scope["lease"] = self._budget.lease()

        def note_status(message: Message) -> Awaitable[None]:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
                message["headers"] = [*message.get("headers", ()), *_SECURITY, *_policy(scope, message)]
            return send(message)

        try:
            refused = self._refusal(dict(scope["headers"]))
            await (refused or self._app)(scope, receive, note_status)
        finally:
            lease.release()
            route = getattr(scope.get("route"), "path", None) or _OTHER
            self._metrics.observe_request(route, code, time.perf_counter() - began)

    def _refusal(self, headers: dict[bytes, bytes]) -> Response | None:
        if headers.keys() >= _AMBIGUOUS:
            self._metrics.count_limit("malformed")
            return _refused(400, "a request with both Content-Length and Transfer-Encoding is refused")
        host = headers.get(b"host")
        if self._hosts is None or host is None or host_name(host) in self._hosts:
            return None
        return _refused(421, f"the host {host_name(host)[:80]!r} is not allowed here: set STREAMPCA_ALLOWED_HOSTS")


def _refused(status: int, error: str) -> Response:
    return json_response({"error": error}, status, {"Connection": "close"})


def _policy(scope: Scope, start: Message) -> list[tuple[bytes, bytes]]:
    """The Content-Security-Policy, unless the response has one."""
    if any(name == _POLICY for name, _ in start.get("headers", ())):
        return []
    return [_SWAGGER if scope["path"] == f"{scope.get('root_path', '')}/docs" else _NOTHING]
