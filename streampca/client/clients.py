"""The clients that send the calls: one waits, the other is asynchronous. Both try again while a sidecar is busy."""

from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from numpy.typing import ArrayLike
from tenacity import AsyncRetrying, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from streampca.client import calls
from streampca.client.calls import Basis, Call, Projected, Reconstructed, Scored, SidecarError, Version

T = TypeVar("T")


def _is_passing(error: BaseException) -> bool:
    """Whether it may be otherwise soon: no model yet, too many requests, or a restart."""
    return isinstance(error, httpx.ConnectError) or (isinstance(error, SidecarError) and error.status == 503)


def _policy(retry_s: float) -> dict[str, Any]:
    waits = wait_random_exponential(multiplier=0.1, max=2)
    return {"retry": retry_if_exception(_is_passing), "stop": stop_after_delay(retry_s), "wait": waits, "reraise": True}


def _options(url: str, token: str | None, options: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {"base_url": url, "headers": headers, "timeout": 30.0, **options}


class Client:
    """Waits for each answer. Raises `SidecarError`, and `httpx.TransportError` if there is none.

    `retry_s` is for how long it tries again while the sidecar cannot be reached, or answers 503; other options are
    those of `httpx.Client`. Vectors of float32 are projected in single precision.
    """

    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        self._http = httpx.Client(**_options(url, token, options))
        self._policy = _policy(retry_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def project(self, vectors: ArrayLike, *, basis: Basis = "principal", version: Version = None) -> Projected:
        """Coordinates (n, k) and residuals (n,) of vectors (n, d)."""
        return self._send(calls.project(vectors, basis, version))

    def reconstruct(self, vectors: ArrayLike, *, version: Version = None) -> Reconstructed:
        """Vectors (n, d) as the components reconstruct them."""
        return self._send(calls.reconstruct(vectors, "vectors", "principal", version))

    def from_coordinates(
        self, coordinates: ArrayLike, *, basis: Basis = "principal", version: Version = None
    ) -> Reconstructed:
        """The vectors (n, d) with these coordinates (n, k)."""
        return self._send(calls.reconstruct(coordinates, "coordinates", basis, version))

    def score(self, vectors: ArrayLike, *, version: Version = None) -> Scored:
        """How unusual vectors (n, d) are."""
        return self._send(calls.score(vectors, version))

    def model(self, *, version: Version = None) -> dict[str, Any]:
        """What `/v1/model` says of the model."""
        return self._send(calls.model(version))

    def _send(self, call: Call[T]) -> T:
        for attempt in Retrying(**self._policy):
            with attempt:
                given = {"params": call.params, "headers": call.headers, "content": call.content}
                answer = self._http.request(call.method, call.path, **given)  # type: ignore[arg-type]
                calls.check(answer)
        return call.read(answer)


class AsyncClient:
    """The same for asyncio."""

    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        self._http = httpx.AsyncClient(**_options(url, token, options))
        self._policy = _policy(retry_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def project(self, vectors: ArrayLike, *, basis: Basis = "principal", version: Version = None) -> Projected:
        """Coordinates (n, k) and residuals (n,) of vectors (n, d)."""
        return await self._send(calls.project(vectors, basis, version))

    async def reconstruct(self, vectors: ArrayLike, *, version: Version = None) -> Reconstructed:
        """Vectors (n, d) as the components reconstruct them."""
        return await self._send(calls.reconstruct(vectors, "vectors", "principal", version))

    async def from_coordinates(
        self, coordinates: ArrayLike, *, basis: Basis = "principal", version: Version = None
    ) -> Reconstructed:
        """The vectors (n, d) with these coordinates (n, k)."""
        return await self._send(calls.reconstruct(coordinates, "coordinates", basis, version))

    async def score(self, vectors: ArrayLike, *, version: Version = None) -> Scored:
        """How unusual vectors (n, d) are."""
        return await self._send(calls.score(vectors, version))

    async def model(self, *, version: Version = None) -> dict[str, Any]:
        """What `/v1/model` says of the model."""
        return await self._send(calls.model(version))

    async def _send(self, call: Call[T]) -> T:
        async for attempt in AsyncRetrying(**self._policy):
            with attempt:
                given = {"params": call.params, "headers": call.headers, "content": call.content}
                answer = await self._http.request(call.method, call.path, **given)  # type: ignore[arg-type]
                calls.check(answer)
        return call.read(answer)
