"""A client of the sidecar: arrays in, arrays out. Needs `pip install 'streampca[client]'`.

with Client("http://localhost:8000") as client:
    coordinates = client.project(vectors).coordinates
"""

import io
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Self, TypeVar

import httpx
import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray
from tenacity import AsyncRetrying, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

T = TypeVar("T")
F64 = NDArray[np.float64]
Basis = Literal["principal", "whitened"]
Version = int | None


class SidecarError(Exception):
    """The sidecar refused a request: its message, and the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Projected(NamedTuple):
    """Vectors in the basis of the components."""

    version: int
    coordinates: F64  # (n, k)
    residual: F64  # (n,): squared distances from the subspace of the components


class Reconstructed(NamedTuple):
    """Vectors as the components reconstruct them."""

    version: int
    vectors: F64  # (n, d)
    squared_error: F64 | None  # (n,); None for coordinates


class Scored(NamedTuple):
    """How unusual vectors are, (n,) each; p are None if the model has no past scores."""

    version: int
    t2: F64
    spe: F64
    score: F64
    p: F64 | None
    p_t2: F64 | None
    p_spe: F64 | None


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and how to read its answer."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    given: Mapping[str, Any]  # to httpx: params, headers and content


def project(vectors: ArrayLike, *, basis: Basis = "principal", version: Version = None) -> Call[Projected]:
    """Coordinates (n, k) and residuals (n,) of vectors (n, d)."""
    return _of_rows("project", vectors, Projected, basis=basis, version=version)


def reconstruct(vectors: ArrayLike, *, version: Version = None) -> Call[Reconstructed]:
    """Vectors (n, d) as the components reconstruct them."""
    return _of_rows("reconstruct", vectors, Reconstructed, of="vectors", version=version)


def from_coordinates(
    coordinates: ArrayLike, *, basis: Basis = "principal", version: Version = None
) -> Call[Reconstructed]:
    """The vectors (n, d) with these coordinates (n, k)."""
    return _of_rows("reconstruct", coordinates, Reconstructed, of="coordinates", basis=basis, version=version)


def score(vectors: ArrayLike, *, version: Version = None) -> Call[Scored]:
    """How unusual vectors (n, d) are."""
    return _of_rows("score", vectors, Scored, version=version)


def model(*, version: Version = None) -> Call[dict[str, Any]]:
    """What `/v1/model` says of the model."""
    return Call("GET", "/v1/model", lambda answer: dict(orjson.loads(answer.content)), _given(version=version))


def check(answer: httpx.Response) -> None:
    """Raise `SidecarError` unless the answer is one of success."""
    if answer.is_success:
        return
    try:
        text = str(orjson.loads(answer.content)["error"])
    except (ValueError, KeyError, TypeError):
        text = f"status {answer.status_code}, and no answer of a sidecar"
    raise SidecarError(answer.status_code, text)


def _of_rows(act: str, rows: ArrayLike, kind: Callable[..., T], **params: Any) -> Call[T]:
    array = np.asarray(rows)
    if array.ndim != 2:
        raise ValueError(f"rows must be an array of shape (n, d), not {array.shape}")
    body = io.BytesIO()  # a file says how long a vector is, so none is cut in two
    np.save(body, np.ascontiguousarray(array, "<f4" if array.dtype == np.float32 else "<f8"), allow_pickle=False)
    headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npz"}

    def read(answer: httpx.Response) -> T:
        with np.load(io.BytesIO(answer.content), allow_pickle=False) as arrays:
            fields = {name: arrays[name] for name in arrays.files}
        names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]  # a NamedTuple
        version = int(fields.pop("version"))
        return kind(version, *(fields.get(name) for name in names[1:]))

    return Call("POST", f"/v1/{act}", read, {**_given(**params), "headers": headers, "content": body.getvalue()})


def _given(**params: Any) -> dict[str, Any]:
    return {"params": {name: str(value) for name, value in params.items() if value is not None}}


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

    project, reconstruct = _sent(project), _sent(reconstruct)
    from_coordinates, score, model = _sent(from_coordinates), _sent(score), _sent(model)

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
                check(answer := self._http.request(call.method, call.path, **call.given))
        return call.read(answer)


class AsyncClient:
    """The same for asyncio."""

    project, reconstruct = _awaited(project), _awaited(reconstruct)
    from_coordinates, score, model = _awaited(from_coordinates), _awaited(score), _awaited(model)

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
                check(answer := await self._http.request(call.method, call.path, **call.given))
        return call.read(answer)
