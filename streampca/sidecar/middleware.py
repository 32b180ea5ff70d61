"""Middleware for every request: its id, token, memory, duration, the time to read its answer, and security headers."""

import asyncio
import re
import secrets
import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streampca.process.bearer_tokens import AccessError, BearerTokens
from streampca.process.bearer_tokens import Scope as TokenScope
from streampca.sidecar.errors import NoMemoryError, error_response
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.request import SMALL_BYTES, bytes_needed

READ_WITHIN_S = 30.0  # a client that takes longer for the next 128 KiB of its answer is disconnected
MEMORY_BYTES = 64 * 2**20  # of large bodies and answers; with models and two computations, 420 of 512 MiB
MEMORY_WITHIN_S = 1.0

PROBES = {"/healthz", "/readyz", "/ping", "/v2/health/live", "/v2/health/ready"}
_OPEN = {"/", "/docs", "/openapi.json", "/version", "/v2", *PROBES}

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_SECURITY = [(b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY")]
_POLICY = (
    "default-src 'none'; script-src 'self'{inline}; style-src 'self'{inline}; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = (b"content-security-policy", _POLICY.format(inline="").encode())
_SWAGGER = (b"content-security-policy", _POLICY.format(inline=" 'unsafe-inline'").encode())  # its page has a script


class _UnreadAnswerError(Exception):
    """The client does not read its answer."""


class Memory:
    """Counts reserved bytes. A single request always fits. Only for use on the event loop."""

    def __init__(self) -> None:
        self._reserved, self._released = 0, asyncio.Event()

    def try_reserve(self, size: int) -> bool:
        """Return whether they fit, and reserve them then."""
        if size > SMALL_BYTES:
            if self._reserved and self._reserved + size > MEMORY_BYTES:
                return False
            self._reserved += size
        return True

    async def reserve(self, size: int) -> None:
        """Wait until they fit, for a while only. Raises `NoMemoryError`."""
        if self.try_reserve(size):  # without a timer, which costs more than all else here
            return
        try:
            async with asyncio.timeout(MEMORY_WITHIN_S):
                while not self.try_reserve(size):
                    await self._released.wait()
        except TimeoutError:
            raise NoMemoryError from None

    def release(self, size: int) -> None:
        if size > SMALL_BYTES:
            self._reserved -= size
            self._released.set()
            self._released = asyncio.Event()


class Middleware:
    """Checks the token, reserves memory, and measures each request from its headers to its response's last byte.

    All in one layer: a layer costs more than each task.
    """

    def __init__(self, app: ASGIApp, metrics: SidecarMetrics, tokens: BearerTokens | None, max_body_bytes: int) -> None:
        self._app, self._metrics, self._tokens, self._max_body_bytes = app, metrics, tokens, max_body_bytes
        self._memory = Memory()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, headers = time.perf_counter(), dict(scope["headers"])
        answer = _Answer(send, scope["path"], headers.get(b"x-request-id", b""), self._memory)
        structlog.contextvars.bind_contextvars(request_id=answer.request_id.decode())
        if scope["method"] == "HEAD":
            scope = dict(scope, method="GET")  # the server sends no body, either way
        try:
            if self._tokens and (needed := _scope_of(scope["path"])):
                self._tokens.check(needed, headers.get(b"authorization", b"").decode("latin-1"))
            await answer.reserve_body(bytes_needed(headers, self._max_body_bytes))
            await self._app(scope, receive, answer.send)
        except (AccessError, NoMemoryError) as error:
            await error_response(error, scope, self._metrics)(scope, receive, answer.send)
        except _UnreadAnswerError:  # the server closes the connection, as the answer is not complete
            self._metrics.limits["read_time"].inc()
        except Exception as error:  # a bug: the server logs it
            if not answer.status:
                await error_response(error, scope, self._metrics)(scope, receive, answer.send)
            raise
        finally:
            answer.release()
            # Unknown paths and those of /docs have no route: as labels, paths would have no bound.
            route = getattr(scope.get("route"), "path", None) or "other"
            self._metrics.durations(route, answer.status or 500).observe(time.perf_counter() - began)


class _Answer:
    """Sends the answer to one request, and holds the memory that is reserved for the request."""

    def __init__(self, send: Send, path: str, request_id: bytes, memory: Memory) -> None:
        """`request_id` is the client's own; it gets a new one if that is none."""
        self._send, self._memory, self._reserved, self.status = send, memory, 0, 0
        self.request_id = request_id if _REQUEST_ID.fullmatch(request_id) else secrets.token_hex(8).encode()
        self._headers = [*_SECURITY, _SWAGGER if path == "/docs" else _PAGE, (b"x-request-id", self.request_id)]

    async def reserve_body(self, size: int) -> None:
        await self._memory.reserve(size)
        self._reserved = size

    def release(self) -> None:
        self._memory.release(self._reserved)
        self._reserved = 0

    async def send(self, message: Message) -> None:
        """Send a part of the answer; its client must read it in time."""
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message.get("body") and not message.get("more_body"):
            return await self._send(message)  # a short answer: it does not wait for the client
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                await self._send(message)
        except TimeoutError:
            raise _UnreadAnswerError from None

    def _begin(self, message: Message) -> None:
        """Reserve memory for the answer in place of the body, which has been parsed, and add headers."""
        headers = message["headers"] = list(message.get("headers", ()))
        size = int(next((value for name, value in headers if name == b"content-length"), b"0"))
        self.release()
        if not self._memory.try_reserve(size):
            raise NoMemoryError
        self._reserved, self.status = size, message["status"]
        headers += self._headers


def _scope_of(path: str) -> TokenScope | None:
    """The scope that a token must have for a path; None: probes, and the files of the page and the description."""
    if path.startswith("/metrics"):  # routes match before a newline, too
        return "metrics"
    return None if path in _OPEN or path.startswith(("/docs/", "/page/")) else "read"
