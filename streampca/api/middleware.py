"""Middleware for every request: its duration, its memory, and a security header."""

import time
from collections.abc import Awaitable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streampca.api.memory import MemoryBudget
from streampca.api.metrics import SidecarMetrics
from streampca.api.responses import json_response

_OTHER = "other"  # for unknown paths and those of /docs: paths as labels would have no bound
_AMBIGUOUS = {b"content-length", b"transfer-encoding"}  # together: proxies disagree where such a request ends
_NO_SNIFF = (b"x-content-type-options", b"nosniff")


class Middleware:
    """Measures each request from its headers to the last byte of its response, and forbids MIME sniffing.

    `scope["lease"]` is the request's memory, released after that byte. All in one layer: a layer costs more than each.
    """

    def __init__(self, app: ASGIApp, metrics: SidecarMetrics, budget: MemoryBudget) -> None:
        self._app, self._metrics, self._budget = app, metrics, budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, code = time.perf_counter(), 500
        lease = scope["lease"] = self._budget.lease()

        def note_status(message: Message) -> Awaitable[None]:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
                message["headers"] = [*message.get("headers", ()), _NO_SNIFF]
            return send(message)

        try:
            if {name for name, _ in scope["headers"]} >= _AMBIGUOUS:
                self._metrics.count_limit("malformed")
                await _both_lengths()(scope, receive, note_status)
            else:
                await self._app(scope, receive, note_status)
        finally:
            lease.release()
            route = getattr(scope.get("route"), "path", None) or _OTHER
            self._metrics.observe_request(route, code, time.perf_counter() - began)


def _both_lengths() -> Response:
    error = {"error": "a request with both Content-Length and Transfer-Encoding is refused"}
    return json_response(error, 400, {"Connection": "close"})
