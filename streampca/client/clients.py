"""The clients that send the calls: one waits, the other is asynchronous. Both try again while a sidecar is busy."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx
from tenacity import AsyncRetrying, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from streampca.client import calls
from streampca.client.calls import Call, SidecarError

T = TypeVar("T")
P = ParamSpec("P")


def _is_passing(error: BaseException) -> bool:
    """Whether it may be otherwise soon: no model yet, too many requests, or a restart."""
    return isinstance(error, httpx.ConnectError) or (isinstance(error, SidecarError) and error.status == 503)


def _policy(retry_s: float) -> dict[str, Any]:
    waits = wait_random_exponential(multiplier=0.1, max=2)
    return {"retry": retry_if_exception(_is_passing), "stop": stop_after_delay(retry_s), "wait": waits, "reraise": True}


def _options(url: str, token: str | None, options: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {"base_url": url, "headers": headers, "timeout": 30.0, **options}


def _sent(make: Callable[P, Call[T]]) -> "Callable[Concatenate[Client, P], T]":
    @wraps(make)
    def send(self: "Client", /, *args: P.args, **options: P.kwargs) -> T:
        return self._send(make(*args, **options))

    return send


def _awaited(make: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    @wraps(make)
    async def send(self: "AsyncClient", /, *args: P.args, **options: P.kwargs) -> T:
        return await self._send(make(*args, **options))

    return send


class Client:
    """Waits for each answer. Raises `SidecarError`, and `httpx.TransportError` if there is none.

    `retry_s` is for how long it tries again while the sidecar cannot be reached, or answers 503; other options are
    those of `httpx.Client`. Vectors of float32 are projected in single precision.
    """

    project, reconstruct = _sent(calls.project), _sent(calls.reconstruct)
    from_coordinates, score, model = _sent(calls.from_coordinates), _sent(calls.score), _sent(calls.model)

    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        self._http = httpx.Client(**_options(url, token, options))
        self._policy = _policy(retry_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        for attempt in Retrying(**self._policy):
            with attempt:
                calls.check(answer := self._http.request(call.method, call.path, **call.given))
        return call.read(answer)


class AsyncClient:
    """The same for asyncio."""

    project, reconstruct = _awaited(calls.project), _awaited(calls.reconstruct)
    from_coordinates, score, model = _awaited(calls.from_coordinates), _awaited(calls.score), _awaited(calls.model)

    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        self._http = httpx.AsyncClient(**_options(url, token, options))
        self._policy = _policy(retry_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def _send(self, call: Call[T]) -> T:
        async for attempt in AsyncRetrying(**self._policy):
            with attempt:
                calls.check(answer := await self._http.request(call.method, call.path, **call.given))
        return call.read(answer)
