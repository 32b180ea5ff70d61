"""A client of the sidecar: arrays in, arrays out. Needs the extra `client`.

with Client("http://localhost:8000") as client:
    coordinates = client.project(vectors).coordinates
"""

import io
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, TypeVar

import httpx
import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray
from tenacity import AsyncRetrying, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

Answer = TypeVar("Answer")
F64 = NDArray[np.float64]
Basis = Literal["principal", "whitened"]
Version = int | None
Vectors = ArrayLike | Sequence[Mapping[str, float | None]]  # records, for a model with names


class SidecarError(Exception):
    """The sidecar refused a request: its message, the HTTP status, and the type of the error, as in docs/api.md."""

    def __init__(self, status: int, text: str, type_: str | None = None) -> None:
        super().__init__(text)
        self.status, self.type = status, type_


class ProjectAnswer(NamedTuple):
    """Vectors in the basis of the components."""

    version: int
    coordinates: F64  # (n, k)
    residual: F64  # (n,): squared distances from the subspace of the components


class ReconstructAnswer(NamedTuple):
    """Vectors as the components reconstruct them."""

    version: int
    vectors: F64  # (n, d)
    squared_error: F64 | None  # (n,); None for coordinates


class ScoreAnswer(NamedTuple):
    """Scores of vectors, (n,) each, the higher the more unusual; p are None if the model has no past scores."""

    version: int
    t2: F64
    spe: F64
    score: F64
    p: F64 | None
    p_t2: F64 | None
    p_spe: F64 | None


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """A request, and how to read its answer."""

    method: str
    path: str
    read: Callable[[httpx.Response], Answer]
    options: Mapping[str, Any]  # of httpx: params, headers and content


def project(vectors: Vectors, *, basis: Basis = "principal", version: Version = None) -> Call[ProjectAnswer]:
    """Coordinates (n, k) and residuals (n,) of vectors (n, d), or of n records of the dimensions' names."""
    return _of_rows("project", vectors, ProjectAnswer, basis=basis, version=version)


def reconstruct(vectors: Vectors, *, version: Version = None) -> Call[ReconstructAnswer]:
    """Vectors (n, d) as the components reconstruct them."""
    return _of_rows("reconstruct", vectors, ReconstructAnswer, of="vectors", version=version)


def from_coordinates(
    coordinates: ArrayLike, *, basis: Basis = "principal", version: Version = None
) -> Call[ReconstructAnswer]:
    """The vectors (n, d) with these coordinates (n, k)."""
    return _of_rows("reconstruct", coordinates, ReconstructAnswer, of="coordinates", basis=basis, version=version)


def score(vectors: Vectors, *, version: Version = None) -> Call[ScoreAnswer]:
    """Scores (n,) of vectors (n, d)."""
    return _of_rows("score", vectors, ScoreAnswer, version=version)


def model(*, version: Version = None) -> Call[dict[str, Any]]:
    """The model's metadata, as `/v1/model` answers."""
    return Call("GET", "/v1/model", lambda answer: dict(orjson.loads(answer.content)), _params(version=version))


def check(answer: httpx.Response) -> None:
    """Raise `SidecarError` unless the answer is one of success."""
    if answer.is_success:
        return
    try:
        problem = orjson.loads(answer.content)
        raise SidecarError(answer.status_code, str(problem["detail"]), str(problem["type"]))
    except (ValueError, KeyError, TypeError):
        raise SidecarError(answer.status_code, f"status {answer.status_code}, and no answer of a sidecar") from None


def _of_rows(operation: str, rows: Vectors, kind: Callable[..., Answer], **params: Any) -> Call[Answer]:
    media_type, content = _body_of(rows)
    headers = {"Content-Type": media_type, "Accept": "application/x-npz"}

    def read(answer: httpx.Response) -> Answer:
        with np.load(io.BytesIO(answer.content), allow_pickle=False) as arrays:
            fields = {name: arrays[name] for name in arrays.files}
        names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]  # a NamedTuple
        return kind(int(fields["version"]), *(fields.get(name) for name in names[1:]))

    return Call("POST", f"/v1/{operation}", read, {**_params(**params), "headers": headers, "content": content})


def _body_of(rows: Vectors) -> tuple[str, bytes]:
    """The media type of a request's body, and its bytes."""
    if isinstance(rows, Sequence) and rows and isinstance(rows[0], Mapping):
        return "application/json", orjson.dumps({"records": rows}, option=orjson.OPT_SERIALIZE_NUMPY)
    array = np.asarray(rows)
    if array.ndim != 2:
        raise ValueError(f"rows must be an array of shape (n, d), not {array.shape}")
    body = io.BytesIO()  # a file says how long a vector is, so none is cut in two
    np.save(body, np.ascontiguousarray(array, "<f4" if array.dtype == np.float32 else "<f8"), allow_pickle=False)
    return "application/x-npy", body.getvalue()


def _params(**params: Any) -> dict[str, Any]:
    return {"params": {name: str(value) for name, value in params.items() if value is not None}}


Arguments = ParamSpec("Arguments")


def _is_passing(error: BaseException) -> bool:
    """Return whether a retry may help: no model yet, too many requests, or a restart."""
    return isinstance(error, httpx.ConnectError) or (isinstance(error, SidecarError) and error.status == 503)


def _sent(make: Callable[Arguments, Call[Answer]]) -> "Callable[Concatenate[Client, Arguments], Answer]":
    @wraps(make)
    def send(self: "Client", /, *args: Arguments.args, **options: Arguments.kwargs) -> Answer:
        return self._ask(make(*args, **options))

    return send


def _awaited(
    make: Callable[Arguments, Call[Answer]],
) -> "Callable[Concatenate[AsyncClient, Arguments], Coroutine[Any, Any, Answer]]":
    @wraps(make)
    async def send(self: "AsyncClient", /, *args: Arguments.args, **options: Arguments.kwargs) -> Answer:
        return await self._ask(make(*args, **options))

    return send


class _Options:
    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        super().__init__(**{"base_url": url, "headers": headers, "timeout": 30.0, **options})
        stop, waits = stop_after_delay(retry_s), wait_random_exponential(multiplier=0.1, max=2)
        self._policy: dict[str, Any] = {"retry": retry_if_exception(_is_passing), "stop": stop, "wait": waits}


class Client(_Options, httpx.Client):
    """An `httpx.Client` for one sidecar. Raises `SidecarError`, and `httpx.TransportError` if there is no answer.

    It retries for `retry_s` while the sidecar cannot be reached, or answers 503; other options are those of
    `httpx.Client`. Vectors of float32 are projected in single precision.
    """

    project, reconstruct = _sent(project), _sent(reconstruct)
    from_coordinates, score, model = _sent(from_coordinates), _sent(score), _sent(model)

    def _ask(self, call: Call[Answer]) -> Answer:
        for attempt in Retrying(**self._policy, reraise=True):
            with attempt:
                check(answer := self.request(call.method, call.path, **call.options))
        return call.read(answer)


class AsyncClient(_Options, httpx.AsyncClient):
    """The same for asyncio."""

    project, reconstruct = _awaited(project), _awaited(reconstruct)
    from_coordinates, score, model = _awaited(from_coordinates), _awaited(score), _awaited(model)

    async def _ask(self, call: Call[Answer]) -> Answer:
        async for attempt in AsyncRetrying(**self._policy, reraise=True):
            with attempt:
                check(answer := await self.request(call.method, call.path, **call.options))
        return call.read(answer)
