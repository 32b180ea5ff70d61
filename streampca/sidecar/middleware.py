"""Middleware for every request: its id, token, slot, duration, the time to read its answer, and security headers."""

import asyncio
import re
import secrets
import time
from collections.abc import Collection, Sequence
from urllib.parse import unquote, urlsplit

import structlog
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streampca.process.listening import BearerTokens, Scope as TokenScope
from streampca.sidecar.errors import Problem, RequestError, error_response, refusal_of
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.request import SMALL_BYTES, has_large_body

READ_WITHIN_S = 30.0  # a client that takes longer for the next 128 KiB of its answer is disconnected
LARGE_REQUESTS = 4  # at once: each holds up to 16 MiB of body or answer; with models and computations, 420 of 512 MiB
SLOT_WITHIN_S = 1.0

ANONYMOUS = "anonymous"  # state of a request of a probe without a token, where others need one
PROBES = {"/healthz", "/readyz", "/ping", "/v2/health/live", "/v2/health/ready"}
_OPEN = {"/openapi.json", "/version", "/v2", *PROBES}

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY = [
    (b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"DENY"), (b"content-security-policy", _POLICY),
]  # fmt: skip


class AllowedHosts(TrustedHostMiddleware):
    """Refuses requests for other hosts, except of the paths that orchestrators and scrapers ask for by address."""

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str], open_paths: Collection[str]) -> None:
        super().__init__(app, allowed_hosts, www_redirect=False)
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self.app if scope.get("path") in self._open_paths else super().__call__
        await call(scope, receive, send)


class _UnreadAnswerError(Exception):
    """The client does not read its answer."""


class Middleware:
    """Checks the token, limits large requests, answers errors, and measures each from its headers to its last byte.

    All in one layer: a layer costs more than each task.
    """

    def __init__(self, app: ASGIApp, metrics: SidecarMetrics, tokens: BearerTokens | None) -> None:
        self._app, self._metrics, self._tokens = app, metrics, tokens
        self._slots = asyncio.Semaphore(LARGE_REQUESTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if not scope["path"].startswith("/"):
            scope = _without_host(scope)
        began, headers = time.perf_counter(), dict(scope["headers"])
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        answer = _Answer(send, headers.get(b"x-request-id", b""), self._slots)
        structlog.contextvars.bind_contextvars(request_id=answer.request_id.decode())
        if scope["method"] == "HEAD":
            scope = dict(scope, method="GET")  # the server sends no body, either way
        try:
            if self._tokens and (needed := _scope_of(scope["path"])):
                self._tokens.check(needed, authorization)
            elif self._tokens and scope["path"] in PROBES:
                scope.setdefault("state", {})[ANONYMOUS] = not self._tokens.has(authorization)
            if headers.get(b"sec-fetch-site") == b"cross-site" and not _is_page(scope["path"], *PROBES):
                raise RequestError(
                    Problem.CROSS_SITE, "a page of another site may not send requests: let its own server do it"
                )
            if has_large_body(headers):
                await answer.take_slot(SLOT_WITHIN_S)
            await self._app(scope, receive, answer.send)
        except _UnreadAnswerError:  # the server closes the connection, as the answer is not complete
            self._metrics.limits["read_time"].inc()
        except Exception as error:
            if answer.status:
                raise
            refusal = refusal_of(error, scope)
            is_bug = refusal.problem is Problem.INTERNAL
            if not is_bug:  # its frames hold the request, and refer to the error: that would wait to be collected
                error.__traceback__ = None
            await error_response(refusal, scope, self._metrics)(scope, receive, answer.send)
            if is_bug:  # the server logs it
                raise
        finally:
            answer.release()
            # Unknown paths and files of the pages have no route: as labels, paths would have no bound.
            route = getattr(scope.get("route"), "path", None) or "other"
            self._metrics.durations(route, answer.status or 500).observe(time.perf_counter() - began)


class _Answer:
    """Sends the answer to one request, and holds the request's slot if body or answer are large."""

    def __init__(self, send: Send, request_id: bytes, slots: asyncio.Semaphore) -> None:
        """`request_id` is the client's own; it gets a new one if that is none."""
        self._send, self._slots, self._has_slot, self.status = send, slots, False, 0
        self.request_id = request_id if _REQUEST_ID.fullmatch(request_id) else secrets.token_hex(8).encode()
        self._headers = [*_SECURITY, (b"x-request-id", self.request_id)]

    async def take_slot(self, within_s: float) -> None:
        """Take a slot unless it has one. Raises `MemoryError`."""
        try:
            async with asyncio.timeout(within_s):
                self._has_slot = self._has_slot or await self._slots.acquire()
        except TimeoutError:
            raise MemoryError from None

    def release(self) -> None:
        if self._has_slot:
            self._slots.release()

    async def send(self, message: Message) -> None:
        """Send a part of the answer; its client must read it in time."""
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message.get("body") and not message.get("more_body"):
            return await self._send(message)  # a short answer: it does not wait for the client
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                await self._send(message)
        except TimeoutError:
            raise _UnreadAnswerError from None

    async def _begin(self, message: Message) -> None:
        """Add headers. A large answer needs a slot at once: it would be in memory while it waits."""
        headers = message["headers"] = list(message.get("headers", ()))
        size = int(next((value for name, value in headers if name == b"content-length"), b"0"))
        if size > SMALL_BYTES:
            await self.take_slot(0)
        self.status = message["status"]
        headers += self._headers


def _without_host(scope: Scope) -> Scope:
    """The scope of a request whose target has scheme and host, as of a proxy: they count (RFC 9112, section 3.2.2)."""
    target = urlsplit(scope["raw_path"].decode("ascii"))
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    headers.append((b"host", target.netloc.encode()))
    return {**scope, "path": unquote(target.path) or "/", "raw_path": target.path.encode(), "headers": headers}


def _scope_of(path: str) -> TokenScope | None:
    """The scope that a token must have for a path; None: probes, and the files of the page and the description."""
    if path.startswith("/metrics"):  # routes also match before a newline
        return "metrics"
    return None if _is_page(path, *_OPEN) else "read"


def _is_page(path: str, *others: str) -> bool:
    """Whether it is a file of a page, which shows nothing of the store, or one of the others."""
    return path in ("/", "/docs", *others) or path.startswith("/page/")
