"""Middleware around all endpoints.

It gives each request an id, checks its token, limits how many large requests run at once, turns errors into answers,
disconnects clients that do not read their answer, adds security headers, and measures durations.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import unquote, urlsplit

import structlog
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streampca.process.bearer_tokens import BearerTokens, Scope as TokenScope
from streampca.sidecar.errors import Problem, RequestError, error_response, to_request_error
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.request import SMALL_BYTES, has_large_body

READ_TIMEOUT_S = 30.0  # a client that takes longer for the next 128 KiB of its answer is disconnected
SLOT_TIMEOUT_S = 1.0  # a large request that waits longer for a slot is refused

# Requests with a large body or answer that may run at once. Each holds up to 16 MiB of body or answer. With the models
# and the computations, the process then needs 420 of its 512 MiB.
LARGE_REQUESTS = 4

# An attribute of a request's state: true if it is a probe without a valid token, and the sidecar requires tokens.
ANONYMOUS = "anonymous"
PROBES = {"/healthz", "/readyz", "/ping", "/v2/health/live", "/v2/health/ready"}
_OPEN_PATHS = {"/openapi.json", "/version", "/v2", *PROBES}

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_CONTENT_SECURITY_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", _CONTENT_SECURITY_POLICY),
]


class AllowedHosts(TrustedHostMiddleware):
    """Refuses requests whose Host header is not allowed.

    Open paths are answered for every host, since orchestrators and scrapers ask for them by the address of a pod.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str], open_paths: Collection[str]) -> None:
        super().__init__(app, allowed_hosts, www_redirect=False)
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") in self._open_paths:
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class _UnreadAnswerError(Exception):
    """The client did not read the next part of its answer in time."""


class OuterMiddleware:
    """Checks tokens, limits large requests, turns errors into answers, and measures requests from headers to last byte.

    As an optimisation, one layer does all of it: calling one more layer takes longer than any of these tasks.
    """

    def __init__(self, app: ASGIApp, metrics: SidecarMetrics, tokens: BearerTokens | None) -> None:
        self._app = app
        self._metrics = metrics
        self._tokens = tokens
        self._slots = asyncio.Semaphore(LARGE_REQUESTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on to the endpoints, turn an error into an answer, and measure the duration."""
        if scope["type"] != "http":  # "lifespan": startup and shutdown
            return await self._app(scope, receive, send)
        if not scope["path"].startswith("/"):
            scope = _split_absolute_target(scope)
        started_at = time.perf_counter()
        headers = dict(scope["headers"])
        answer = _Answer(send, headers.get(b"x-request-id", b""), self._slots)
        structlog.contextvars.bind_contextvars(request_id=answer.request_id.decode())
        if scope["method"] == "HEAD":
            scope = dict(scope, method="GET")  # routes know only GET; the server leaves the body of the answer out
        try:
            if self._tokens:
                _check_token(self._tokens, scope, headers)
            _refuse_cross_site(scope["path"], headers)
            if has_large_body(headers):  # only a few large requests are in memory at once; each of them holds a slot
                await answer.take_slot(SLOT_TIMEOUT_S)
            await self._app(scope, receive, answer.send)
        except _UnreadAnswerError:  # the client did not read its answer in time, so the server closes the connection
            self._metrics.limits["read_time"].inc()
        except Exception as error:
            if answer.status is not None:  # it is too late to answer with an error
                raise
            is_bug = await self._send_error(error, scope, receive, answer)
            if is_bug:
                raise  # the server logs it with its traceback
        finally:
            answer.release_slot()
            duration_s = time.perf_counter() - started_at
            # The router has written the route into `scope`. If no answer has begun, the request counts with status 500.
            self._metrics.durations(_name_route(scope), answer.status or 500).observe(duration_s)

    async def _send_error(self, error: Exception, scope: Scope, receive: Receive, answer: "_Answer") -> bool:
        """Answer a request with the error that it has raised. Return whether the error is a bug."""
        request_error = to_request_error(error, scope)
        is_bug = request_error.problem is Problem.INTERNAL
        if not is_bug:
            # The error and its traceback refer to each other. Without this, the request, to which the traceback refers,
            # would stay in memory until the next garbage collection.
            error.__traceback__ = None
        response = error_response(request_error, scope, self._metrics)
        await response(scope, receive, answer.send)
        return is_bug


class _Answer:
    """Sends the answer to one request, and holds the request's slot if its body or its answer is large."""

    def __init__(self, send: Send, request_id: bytes, slots: asyncio.Semaphore) -> None:
        """`request_id` is from the client. If it is empty or not valid, a random id replaces it."""
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(8).encode()
        self.request_id = request_id
        self.status: int | None = None  # of the answer, once it has begun
        self._send = send
        self._slots = slots
        self._has_slot = False
        self._headers = [*_SECURITY_HEADERS, (b"x-request-id", request_id)]

    async def take_slot(self, timeout_s: float) -> None:
        """Take a slot, unless the request has one. Raises `MemoryError` if no slot becomes free within `timeout_s`.

        A slot stands for the memory of one large request, so without a slot there is no memory.
        """
        if self._has_slot:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise MemoryError from None
        self._has_slot = True

    def release_slot(self) -> None:
        """Release the slot, if the request has one."""
        if self._has_slot:
            self._slots.release()

    async def send(self, message: Message) -> None:
        """Send the start or a part of the answer. Raises `_UnreadAnswerError` if the client does not read in time."""
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message.get("body") and not message.get("more_body"):
            # The only part of a short answer. (The last part of a long answer, a `ChunkedResponse`, is empty.) The
            # server buffers this part without waiting for the client, so as an optimisation no timeout is set.
            return await self._send(message)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self._send(message)
        except TimeoutError:
            raise _UnreadAnswerError from None

    async def _begin(self, message: Message) -> None:
        """Add headers to the start of an answer, and take a slot if the answer is large.

        A slot stands for the memory of one large request or answer. A large answer does not wait for a slot, since the
        answer would be in memory while it waits. Raises `MemoryError` if no slot is free.
        """
        headers = list(message.get("headers", ()))
        # Every large answer declares its length, also if it is sent in chunks.
        size = int(dict(headers).get(b"content-length", b"0"))
        if size > SMALL_BYTES:
            await self.take_slot(timeout_s=0)
        self.status = message["status"]
        message["headers"] = headers + self._headers


def _name_route(scope: Scope) -> str:
    """Return the path of a request's route for the metrics, such as "/v1/models/{version}".

    Unknown paths, and files of the pages, have no route, so they are all "other". With their paths as labels, clients
    could create any number of time series.
    """
    return getattr(scope.get("route"), "path", "other")


def _split_absolute_target(scope: Scope) -> Scope:
    """Return the scope of a request whose target is a whole URL, as proxies send it, with the path and host of the URL.

    The host of the URL replaces the Host header (RFC 9112, section 3.2.2).
    """
    target = urlsplit(scope["raw_path"].decode("ascii"))
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    headers.append((b"host", target.netloc.encode()))
    return {**scope, "path": unquote(target.path) or "/", "raw_path": target.path.encode(), "headers": headers}


def _check_token(tokens: BearerTokens, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Raise an error unless the request, whose ASGI scope is given, has the token that its path requires.

    A probe needs no token. In the `request.state` of a probe, `ANONYMOUS` becomes true if the probe has no token, or an
    unknown one. The answer to the probe then leaves out details.
    """
    path = scope["path"]
    authorization = headers.get(b"authorization", b"").decode("latin-1")
    permission = _find_required_permission(path)
    if permission is not None:
        tokens.require_scope(permission, authorization)
    elif path in PROBES:
        request_state = scope.setdefault("state", {})
        request_state[ANONYMOUS] = not tokens.knows(authorization)


def _find_required_permission(path: str) -> TokenScope | None:
    """Return the scope that a token must have for this path; None if the path needs no token."""
    if path.startswith("/metrics"):  # not ==, since the route also matches "/metrics\n"
        return "metrics"
    if _is_page_file(path) or path in _OPEN_PATHS:
        return None
    return "read"


def _refuse_cross_site(path: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise `RequestError` if a browser sends the request for a page of another site.

    The browser hides the answer from that page, but the page could keep the sidecar busy, and measure how long answers
    take. Files of our pages and probes are answered all the same, since they reveal nothing.
    """
    is_cross_site = headers.get(b"sec-fetch-site") == b"cross-site"
    if is_cross_site and not _is_page_file(path) and path not in PROBES:
        raise RequestError(Problem.CROSS_SITE, "a page of another site may not send requests: let its own server do it")


def _is_page_file(path: str) -> bool:
    """Return whether this is a path of a page or of one of its files, which contain nothing of the store."""
    return path in ("/", "/docs") or path.startswith("/page/")
