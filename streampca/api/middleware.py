"""What all answers have in common, at the edge of the application."""

import time
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streampca.api.metrics import SidecarMetrics

_OTHER = "other"  # the pages of /docs, and what is not there; never the path itself, of which there are too many
_NO_SNIFF = (b"x-content-type-options", b"nosniff")


class Middleware:
    """ASGI middleware: times each request, and lets no browser take its answer for another type than it says.

    The time runs from the request's headers to the last byte of its answer. One layer for both, since every layer
    costs more than either.
    """

    def __init__(self, app: ASGIApp, metrics: SidecarMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, code = time.perf_counter(), 500

        def mark(message: Message) -> Awaitable[None]:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
                message["headers"] = [*message.get("headers", ()), _NO_SNIFF]
            return send(message)

        try:
            await self._app(scope, receive, mark)
        finally:
            route = getattr(scope.get("route"), "path", None) or _OTHER
            self._metrics.answered(route, code, time.perf_counter() - began)
