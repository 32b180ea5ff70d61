"""A client of the sidecar: arrays in, arrays out. Needs the extra `client`.

with Client("http://localhost:8000") as client:
    coordinates = client.project(vectors).coordinates
"""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from inspect import isawaitable
from typing import Any, Concatenate, ParamSpec, TypeVar

from streampca.client import calls
from streampca.client.calls import ProjectAnswer, ReconstructAnswer, ScoreAnswer, SidecarError
from streampca.errors import needs

try:
    import httpx
    import tenacity
except ModuleNotFoundError as error:
    missing = error.name or ""
    raise ModuleNotFoundError(needs("streampca.client", missing, "client"), name=missing) from None

__all__ = ["AsyncClient", "Client", "ProjectAnswer", "ReconstructAnswer", "ScoreAnswer", "SidecarError"]

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


def _sent(
    call: "Callable[Concatenate[Client, Arguments], Coroutine[Any, Any, Answer]]",
) -> "Callable[Concatenate[Client, Arguments], Answer]":
    @wraps(call)
    def send(self: "Client", /, *args: Arguments.args, **options: Arguments.kwargs) -> Answer:
        try:
            call(self, *args, **options).send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("a call waits for nothing but httpx.Client, which is synchronous")

    return send


class _Sidecar:
    """Where the sidecar is, how to ask it, and when to ask again: while it restarts, is busy, or has no model."""

    _connect: Callable[..., Any]
    _retrying: Callable[..., Any]

    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        if not _is_url(url):
            raise SidecarError(0, f"{url} is no URL of a sidecar, such as http://localhost:8000")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._url, self._http = url, self._connect(**{"base_url": url, "headers": headers, "timeout": 30.0, **options})
        self._policy: dict[str, Any] = {
            # A later answer of 503 may be another: no model yet, too many requests, or a restart.
            "retry": tenacity.retry_if_exception_type(httpx.ConnectError)
            | tenacity.retry_if_result(lambda answer: answer.status_code == 503),
            "stop": tenacity.stop_after_delay(retry_s),
            "wait": tenacity.wait_random_exponential(multiplier=0.1, max=2),
            "retry_error_callback": lambda last: last.outcome.result(),  # the last answer, or the last error
        }

    async def _ask(self, **request: Any) -> httpx.Response:
        """Send one request of httpx, again while that may help. Raises `SidecarError` without an answer."""
        try:
            answer: Any = self._retrying(**self._policy)(self._http.request, **request)
            return await answer if isawaitable(answer) else answer  # type: ignore[no-any-return]
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> SidecarError:
        cause = str(error).rstrip(".") or type(error).__name__
        other = "http" if self._url.lower().startswith("https") else "https"
        remedy = f"is it running there, or is it {other}://?"
        if "CERTIFICATE_VERIFY_FAILED" in cause:
            remedy = "SSL_CERT_FILE names a file with its authority's certificate"
        return SidecarError(0, f"{self._url}: no sidecar answers: {cause}; {remedy}")


def _is_url(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host)


class Client(_Sidecar, AbstractContextManager["Client"]):
    """A client of one sidecar. Raises `SidecarError`, with status 0 if there is no answer.

    It retries for `retry_s` while the sidecar cannot be reached, or answers 503; other options are those of
    `httpx.Client`. Rows beyond the sidecar's limits are sent in several requests, all to one version. Vectors of
    float32 are projected in single precision.
    """

    _connect, _retrying = httpx.Client, tenacity.Retrying
    project, reconstruct = _sent(calls.project), _sent(calls.reconstruct)
    from_coordinates, score = _sent(calls.from_coordinates), _sent(calls.score)
    model, versions = _sent(calls.model), _sent(calls.versions)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncClient(_Sidecar, AbstractAsyncContextManager["AsyncClient"]):
    """The same for asyncio."""

    _connect, _retrying = httpx.AsyncClient, tenacity.AsyncRetrying
    project, reconstruct = calls.project, calls.reconstruct
    from_coordinates, score = calls.from_coordinates, calls.score
    model, versions = calls.model, calls.versions

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
