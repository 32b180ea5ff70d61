"""Middleware for every request: its id, duration, memory, the time to read its answer, and security headers."""

import asyncio
import re
import secrets
import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streampca.process.bearer_tokens import AccessError, Tokens
from streampca.process.bearer_tokens import Scope as TokenScope
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.request import UNCOUNTED_BYTES, no_memory
from streampca.sidecar.responses import error_response

READ_WITHIN_S = 30.0  # a client that takes longer for the next 128 KiB of its answer is disconnected
BUFFERED_BYTES = 64 * 2**20  # all bodies and answers together; with models and two computations, 420 of 512 MiB

PROBES = {"/healthz", "/readyz", "/ping", "/v2/health/live", "/v2/health/ready"}
_OPEN = {"/", "/docs", "/openapi.json", "/version", "/v2", *PROBES}

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")

_OTHER = "other"  # for unknown paths and those of /docs: paths as labels would have no bound
_SECURITY = [(b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY")]
_POLICY = (
    "default-src 'none'; script-src 'self'{inline}; style-src 'self'{inline}; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = (b"content-security-policy", _POLICY.format(inline="").encode())
_SWAGGER = (b"content-security-policy", _POLICY.format(inline=" 'unsafe-inline'").encode())  # its page has a script


class UnreadAnswerError(Exception):
    """The client does not read its answer."""


class Middleware:
    """Measures each request from its headers to its response's last byte, and counts the bytes that it holds.

    `scope["hold"](size)` says how many bytes its body or its answer needs from now on; it raises `RequestError` if all
    requests together would hold more than `BUFFERED_BYTES`. All in one layer: a layer costs more than each task.
    """

    def __init__(self, app: ASGIApp, metrics: SidecarMetrics, tokens: Tokens | None) -> None:
        self._app, self._metrics, self._tokens = app, metrics, tokens
        self._buffered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, code, held, request_id = time.perf_counter(), 0, 0, _request_id(scope)
        structlog.contextvars.bind_contextvars(request_id=request_id.decode())
        if scope["method"] == "HEAD":
            scope = dict(scope, method="GET")  # the server sends no body, either way

        def hold(size: int) -> None:
            nonlocal held
            size = size if size > UNCOUNTED_BYTES else 0
            buffered = self._buffered - held + size
            if size > held and buffered > max(BUFFERED_BYTES, size):  # one request always fits
                raise no_memory()
            self._buffered, held = buffered, size

        async def send_in_time(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
                policy = _SWAGGER if scope["path"] == f"{scope.get('root_path', '')}/docs" else _PAGE
                message["headers"] = [*message.get("headers", ()), *_SECURITY, policy, (b"x-request-id", request_id)]
            elif message.get("body") and not message.get("more_body"):
                return await send(message)  # a short answer: it does not wait for the client
            try:
                async with asyncio.timeout(READ_WITHIN_S):
                    await send(message)
            except TimeoutError:
                raise UnreadAnswerError from None

        scope["hold"] = hold
        try:
            if self._tokens and (needed := _scope_of(scope["path"].removeprefix(scope.get("root_path", "")))):
                self._tokens.check(needed, dict(scope["headers"]).get(b"authorization", b"").decode("latin-1"))
            await self._app(scope, receive, send_in_time)
        except AccessError as error:
            refused = error_response(error.status, str(error), {"WWW-Authenticate": "Bearer"})
            await refused(scope, receive, send_in_time)
        except UnreadAnswerError:  # the server closes the connection, as the answer is not complete
            self._metrics.count_limit("read_time")
        except Exception:  # a bug: the server logs it
            if not code:
                failed = error_response(500, "internal error; the server's log has the traceback")
                await failed(scope, receive, send_in_time)
            raise
        finally:
            hold(0)
            route = getattr(scope.get("route"), "path", None) or _OTHER
            self._metrics.observe_request(route, code or 500, time.perf_counter() - began)


def _request_id(scope: Scope) -> bytes:
    """The client's own id of the request, if it is one, or a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8).encode()


def _scope_of(path: str) -> TokenScope | None:
    """The scope that a token must have for a path; None: probes, and the files of the page and the description."""
    if path.startswith("/metrics"):  # routes match before a newline, too
        return "metrics"
    return None if path in _OPEN or path.startswith(("/docs/", "/page/")) else "read"
