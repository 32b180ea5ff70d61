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
from streampca.client.calls import NO_ANSWER, ProjectAnswer, ReconstructAnswer, ScoreAnswer, SidecarError
from streampca.client.tables import ModelNames
from streampca.errors import describe_missing_package

try:
    import httpx
    import tenacity
except ModuleNotFoundError as error:
    missing = error.name or ""
    raise ModuleNotFoundError(
        describe_missing_package(missing, "client", needed_by="streampca.client"), name=missing
    ) from None

__all__ = ["AsyncClient", "Client", "ProjectAnswer", "ReconstructAnswer", "ScoreAnswer", "SidecarError"]

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")
_UNAVAILABLE = 503


def _make_synchronous(
    call: "Callable[Concatenate[Client, Arguments], Coroutine[Any, Any, Answer]]",
) -> "Callable[Concatenate[Client, Arguments], Answer]":
    """Turn a coroutine function into a method that runs it to its end.

    `call` awaits only `_ask`, which never waits in a synchronous client.
    """

    @wraps(call)
    def run_synchronously(self: "Client", /, *args: Arguments.args, **options: Arguments.kwargs) -> Answer:
        """Run the coroutine of `call` without an event loop: since it never waits, one step brings it to its end."""
        coroutine = call(self, *args, **options)
        try:
            coroutine.send(None)
        except StopIteration as end:  # the coroutine has returned this value
            return end.value  # type: ignore[no-any-return]
        raise AssertionError("the coroutine waits for something else than httpx.Client")

    return run_synchronously


class _Sidecar:
    """The connection to a sidecar. It retries while the sidecar restarts, is busy, or has no model yet."""

    _connect: Callable[..., Any]  # httpx's client
    _retrying_class: Callable[..., Any]  # tenacity's retry loop for that client

    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        """`options` are further options of httpx's client. Raises `SidecarError` if `url` is not a URL with a host."""
        if not _is_url(url):
            raise SidecarError(NO_ANSWER, f"{url} is not the URL of a sidecar, such as http://localhost:8000")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._url = url
        # The names of a model's inputs, kept by the version that the caller has asked for.
        self._names_by_asked_version: dict[calls.Version, ModelNames] = {}
        self._http = self._connect(**{"base_url": url, "headers": headers, "timeout": 30.0, **options})
        is_unreachable = tenacity.retry_if_exception_type(httpx.ConnectError)
        is_unavailable = tenacity.retry_if_result(_is_unavailable)
        self._retry_options: dict[str, Any] = {
            "retry": is_unreachable | is_unavailable,
            "stop": tenacity.stop_after_delay(retry_s),
            "wait": tenacity.wait_random_exponential(multiplier=0.1, max=2),
            "retry_error_callback": _return_last_answer,  # even an answer with status 503
        }

    async def _ask(self, **request: Any) -> httpx.Response:
        """Send a request with these arguments of httpx and return its answer, after retries.

        Raises `SidecarError` if no answer comes.
        """
        call_with_retries = self._retrying_class(**self._retry_options)  # tenacity's `Retrying` or `AsyncRetrying`
        try:
            answer: Any = call_with_retries(self._http.request, **request)
            if isawaitable(answer):  # the client is an `AsyncClient`
                answer = await answer
        except httpx.HTTPError as error:
            raise self._explain_no_answer(error) from None
        return answer  # type: ignore[no-any-return]

    def _explain_no_answer(self, error: Exception) -> SidecarError:
        """Return an error that says why no answer came, and what to try."""
        cause = str(error).rstrip(".") or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in cause:
            # httpx trusts the authorities in the file that this variable names.
            remedy = "set SSL_CERT_FILE to a file with the certificate of the sidecar's authority"
        else:
            other_scheme = "http" if self._url.lower().startswith("https") else "https"
            remedy = f"is it running there, or is it {other_scheme}://?"
        return SidecarError(NO_ANSWER, f"{self._url}: no sidecar answers: {cause}; {remedy}")


def _is_unavailable(answer: httpx.Response) -> bool:
    """Return whether a retry may succeed: the sidecar has no model yet, has too many requests, or restarts."""
    return answer.status_code == _UNAVAILABLE


def _return_last_answer(retries: Any) -> Any:
    """When the time for retries is over, return the last answer, or raise the last error."""
    return retries.outcome.result()


def _is_url(text: str) -> bool:
    """Return whether a text is an http or https URL with a host."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host)


class Client(_Sidecar, AbstractContextManager["Client"]):
    """A client of one sidecar. Its methods raise `SidecarError`, with status 0 if no answer comes.

    The client retries for `retry_s` seconds while the sidecar cannot be reached or answers 503. Further options are
    passed to `httpx.Client`. Rows beyond the sidecar's limits are sent in several requests, which the same version of
    the model answers. Vectors of float32 are projected in single precision.
    """

    _connect = httpx.Client
    _retrying_class = tenacity.Retrying
    project = _make_synchronous(calls.project)
    reconstruct = _make_synchronous(calls.reconstruct)
    from_coordinates = _make_synchronous(calls.from_coordinates)
    score = _make_synchronous(calls.score)
    model = _make_synchronous(calls.model)
    versions = _make_synchronous(calls.versions)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncClient(_Sidecar, AbstractAsyncContextManager["AsyncClient"]):
    """`Client` for asyncio: its methods are coroutines, and further options are those of `httpx.AsyncClient`."""

    _connect = httpx.AsyncClient
    _retrying_class = tenacity.AsyncRetrying
    project = calls.project
    reconstruct = calls.reconstruct
    from_coordinates = calls.from_coordinates
    score = calls.score
    model = calls.model
    versions = calls.versions

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
