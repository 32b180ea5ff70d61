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
# and the computations, the process then needs up to 310 of its 512 MiB.
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
        self._large_request_slots = asyncio.Semaphore(LARGE_REQUESTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on to the endpoints, answer errors, and measure the duration."""
        if scope["type"] != "http":  # "lifespan": startup and shutdown
            return await self._app(scope, receive, send)
        if not scope["path"].startswith("/"):  # a proxy may send a whole URL instead of a path
            scope = _with_path_of_url(scope)
        if scope["method"] == "HEAD":
            scope = dict(scope, method="GET")  # the server leaves out the body of the answer
        started_at = time.perf_counter()
        headers = dict(scope["headers"])
        answer = _Answer(send, headers.get(b"x-request-id", b""), self._large_request_slots)
        structlog.contextvars.bind_contextvars(request_id=answer.request_id.decode())
        try:
            await self._check_request(scope, headers, answer)
            await self._app(scope, receive, answer.send)
        except _UnreadAnswerError:
            # The client reads too slowly. The answer stays unfinished, so the server closes the connection.
            self._metrics.limits["read_time"].inc()
        except Exception as error:
            has_begun_to_answer = answer.status is not None
            if has_begun_to_answer:
                raise
            problem = await self._send_error(error, scope, receive, answer)
            if problem is Problem.INTERNAL:
                raise  # a bug: the server logs its traceback
        finally:
            answer.release_slot()  # which a large request or a large answer has taken
            duration_s = time.perf_counter() - started_at
            status = answer.status or 500  # without an answer, the server sends 500
            self._metrics.durations(_name_route(scope), status).observe(duration_s)

    async def _check_request(self, scope: Scope, headers: Mapping[bytes, bytes], answer: "_Answer") -> None:
        """Raise an error if a request is not allowed, or if it is large and too many large ones are running."""
        if self._tokens:
            _check_token(self._tokens, scope, headers)
        _refuse_cross_site(scope["path"], headers)
        if has_large_body(headers):
            await answer.take_slot(SLOT_TIMEOUT_S)  # one for large requests; `__call__` releases it after the answer

    async def _send_error(self, error: Exception, scope: Scope, receive: Receive, answer: "_Answer") -> Problem:
        """Answer a request with the error that it has raised. Return the type of the error."""
        request_error = to_request_error(error, scope)
        if request_error.problem is not Problem.INTERNAL:
            # The traceback would keep the request in memory until a garbage collection. Only an internal error, a bug,
            # keeps its traceback, which will be logged.
            error.__traceback__ = None
        response = error_response(request_error, scope, self._metrics)
        await response(scope, receive, answer.send)
        return request_error.problem


class _Answer:
    """Sends the answer to one request, and holds the request's slot if its body or its answer is large."""

    def __init__(self, send: Send, request_id: bytes, slots: asyncio.Semaphore) -> None:
        """A random id replaces the client's `request_id` if it is empty or not valid."""
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(8).encode()
        self.request_id = request_id
        self.status: int | None = None  # of the answer, once it has begun
        self._send = send
        self._slots = slots
        self._has_slot = False
        self._headers = [*_SECURITY_HEADERS, (b"x-request-id", request_id)]

    async def take_slot(self, timeout_s: float) -> None:
        """Take a slot, which allows to hold a large body or answer in memory, unless the request has one already.

        If no slot becomes free within `timeout_s`, raises `MemoryError`: the client is told to try again.
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
            await self._prepare_start(message)
        # A long answer comes in parts; its last message is empty. So a last message with a body holds the whole of a
        # short answer: the server buffers it without waiting for the client.
        is_last = not message.get("more_body")
        is_short_answer = is_last and message.get("body")
        if is_short_answer:
            return await self._send(message)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await self._send(message)
        except TimeoutError:
            raise _UnreadAnswerError from None

    async def _prepare_start(self, message: Message) -> None:
        """Add headers to the first message of an answer, and take a slot if the answer is large.

        The slots limit how many large requests and answers are in memory. Raises `MemoryError` if no slot is free.
        """
        headers = list(message.get("headers", ()))
        size = int(dict(headers).get(b"content-length", b"0"))
        if size > SMALL_BYTES:
            await self.take_slot(timeout_s=0)  # without waiting, since a waiting answer would keep its memory
        self.status = message["status"]
        message["headers"] = headers + self._headers


def _name_route(scope: Scope) -> str:
    """Return the path of a request's route for the metrics, or "other" if it has none.

    If unknown paths were labels, clients could create any number of time series.
    """
    return getattr(scope.get("route"), "path", "other")


def _with_path_of_url(scope: Scope) -> Scope:
    """Return a request whose path is a whole URL, as proxies send it, with only the path of this URL.

    The host of the URL replaces the Host header (RFC 9112, section 3.2.2).
    """
    url = urlsplit(scope["raw_path"].decode("ascii"))
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    headers.append((b"host", url.netloc.encode()))
    return {**scope, "path": unquote(url.path) or "/", "raw_path": url.path.encode(), "headers": headers}


def _check_token(tokens: BearerTokens, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Raise an error unless the request has the token that its path requires.

    Probes need no token. If they have no valid one, their answers leave out details.
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
    # Not ==, because the route of /metrics also matches "/metrics\n". With ==, this path would only need "read".
    if path.startswith("/metrics"):
        return "metrics"
    if _is_page_file(path) or path in _OPEN_PATHS:
        return None
    return "read"


def _refuse_cross_site(path: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise `RequestError` if a browser sends the request for a page of another site.

    Such a page could keep the sidecar busy, and measure how long answers take.
    """
    is_cross_site = headers.get(b"sec-fetch-site") == b"cross-site"
    if is_cross_site and not _is_page_file(path) and path not in PROBES:
        raise RequestError(Problem.CROSS_SITE, "a page of another site may not send requests: let its own server do it")


def _is_page_file(path: str) -> bool:
    """Return whether this is the path of a page or of one of its files."""
    return path in ("/", "/docs") or path.startswith("/page/")
