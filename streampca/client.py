"""A client of the sidecar: arrays in, arrays out. Needs the extra `client`.

with Client("http://localhost:8000") as client:
    coordinates = client.project(vectors).coordinates
"""

import io
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, Self, TypeAlias, TypeVar

import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

try:
    import httpx
    from tenacity import AsyncRetrying, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential
except ModuleNotFoundError as error:
    raise ImportError(f"streampca.client needs {error.name}: pip install '.[client]'") from None

Answer = TypeVar("Answer")
F64 = NDArray[np.float64]
Basis = Literal["principal", "whitened"]
Version = int | str | None  # a number, the name of a pin, or None: the newest
_MOST_ROWS, _MOST_NUMBERS = 10_000, 1_000_000  # of a request: the sidecar's limits, see docs/api.md
_TOO_LARGE = 413
Vectors = ArrayLike | Sequence[Mapping[str, float | None]]  # records, for a model with names


class SidecarError(Exception):
    """A request has no result: why, the HTTP status (0: no answer), and the type of the error, as in docs/api.md."""

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
    t2_dimensions: NDArray[np.int64] | None = None  # (n, m), those that contribute most; only if they are asked for
    t2_contributions: F64 | None = None
    spe_dimensions: NDArray[np.int64] | None = None
    spe_contributions: F64 | None = None


class Request(NamedTuple):
    """One request of a call."""

    method: str
    path: str
    options: dict[str, Any]  # of httpx: params, headers and content


Call: TypeAlias = Generator[Request, Any, Answer]
"""Yields requests, gets their answers or a `SidecarError`, and returns the result of all."""


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


def score(vectors: Vectors, *, contributions: int | None = None, version: Version = None) -> Call[ScoreAnswer]:
    """Scores (n,) of vectors (n, d), with as many of the dimensions that contribute most as are asked for."""
    return _of_rows("score", vectors, ScoreAnswer, contributions=contributions, version=version)


def model(*, version: Version = None) -> Call[dict[str, Any]]:
    """The model's metadata, as `/v1/model` answers."""
    answer = yield Request("GET", "/v1/model", _params(version=version))
    return dict(orjson.loads(answer.content))


def versions() -> Call[list[int]]:
    """The versions that there are, in ascending order."""
    answer = yield Request("GET", "/v1/models", {})
    return list(orjson.loads(answer.content)["versions"])


def _of_rows(operation: str, rows: Vectors, kind: Callable[..., Answer], **params: Any) -> Call[Answer]:
    """Send rows in pieces that the sidecar takes: all to the version that answers the first."""
    given: Any = rows
    if not (isinstance(rows, Sequence) and rows and isinstance(rows[0], Mapping)):
        given = np.asarray(rows)
        if given.ndim != 2:
            raise ValueError(f"rows must be an array of shape (n, d), not {given.shape}")
    width = max(map(len, given[:1]), default=1)
    most = min(_MOST_ROWS, max(1, _MOST_NUMBERS // max(width, 1)))
    pieces = [given[i : i + most] for i in range(0, max(len(given), 1), most)][::-1]
    answers: list[dict[str, Any]] = []
    while pieces:
        piece = pieces.pop()
        try:
            answer = yield Request("POST", f"/v1/{operation}", {**_params(**params), **_body_of(piece)})
        except SidecarError as error:  # its limits may be lower, and an answer may be larger than the rows
            if error.status != _TOO_LARGE or len(piece) < 2:
                raise
            pieces += [piece[len(piece) // 2 :], piece[: len(piece) // 2]]
        else:
            with np.load(io.BytesIO(answer.content), allow_pickle=False) as arrays:
                answers.append({name: arrays[name] for name in arrays.files})
            params["version"] = int(answers[0]["version"])
    names: tuple[str, ...] = kind._fields[1:]  # type: ignore[attr-defined]  # a NamedTuple
    fields = [[answer[name] for answer in answers if name in answer] for name in names]
    return kind(params["version"], *(np.concatenate(parts) if parts else None for parts in fields))


def _body_of(rows: Any) -> dict[str, Any]:
    """The headers and the content of a request with these rows."""
    media_type, content = "application/x-npy", io.BytesIO()  # it says how long a vector is, so none is cut in two
    if isinstance(rows, np.ndarray):
        np.save(content, np.ascontiguousarray(rows, "<f4" if rows.dtype == np.float32 else "<f8"), allow_pickle=False)
    else:
        media_type = "application/json"
        content.write(orjson.dumps({"records": rows}, option=orjson.OPT_SERIALIZE_NUMPY))
    headers = {"Content-Type": media_type, "Accept": "application/x-npz"}
    return {"headers": headers, "content": content.getvalue()}


def _params(**params: Any) -> dict[str, Any]:
    return {"params": {name: str(value) for name, value in params.items() if value is not None}}


def _is_passing(error: BaseException) -> bool:
    """Return whether a retry may help: no model yet, too many requests, or a restart."""
    return isinstance(error, httpx.ConnectError) or (isinstance(error, SidecarError) and error.status == 503)


Arguments = ParamSpec("Arguments")


def _sent(make: Callable[Arguments, Call[Answer]]) -> "Callable[Concatenate[Client, Arguments], Answer]":
    @wraps(make)
    def send(self: "Client", /, *args: Arguments.args, **options: Arguments.kwargs) -> Answer:
        call = make(*args, **options)
        try:
            request = next(call)
            while True:
                try:
                    answer = self._ask(request)
                except SidecarError as error:
                    request = call.throw(error)
                else:
                    request = call.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    return send


def _awaited(
    make: Callable[Arguments, Call[Answer]],
) -> "Callable[Concatenate[AsyncClient, Arguments], Coroutine[Any, Any, Answer]]":
    @wraps(make)
    async def send(self: "AsyncClient", /, *args: Arguments.args, **options: Arguments.kwargs) -> Answer:
        call = make(*args, **options)
        try:
            request = next(call)
            while True:
                try:
                    answer = await self._ask(request)
                except SidecarError as error:
                    request = call.throw(error)
                else:
                    request = call.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    return send


class _Sidecar:
    """Where the sidecar is, and how to ask it."""

    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        if not url.startswith(("http://", "https://")):
            raise SidecarError(0, f"{url} is no URL of a sidecar: it begins with http:// or https://")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._url, self._options = url, {"base_url": url, "headers": headers, "timeout": 30.0, **options}
        stop, waits = stop_after_delay(retry_s), wait_random_exponential(multiplier=0.1, max=2)
        self._policy: dict[str, Any] = {"retry": retry_if_exception(_is_passing), "stop": stop, "wait": waits}

    def _checked(self, answer: "httpx.Response") -> "httpx.Response":
        """The answer, if it is one of success; else raises `SidecarError`."""
        if answer.is_success:
            return answer
        try:
            problem = orjson.loads(answer.content)
            raise SidecarError(answer.status_code, str(problem["detail"]), str(problem["type"]))
        except (ValueError, KeyError, TypeError):
            text = f"status {answer.status_code} from {self._url}, and no answer of a sidecar"
            raise SidecarError(answer.status_code, text) from None

    def _unreachable(self, error: Exception) -> SidecarError:
        other = "http" if self._url.startswith("https") else "https"
        cause = str(error) or type(error).__name__
        return SidecarError(0, f"no sidecar answers at {self._url}: {cause}; is it running there, or is it {other}://?")


class Client(_Sidecar):
    """A client of one sidecar. Raises `SidecarError`, with status 0 if there is no answer.

    It retries for `retry_s` while the sidecar cannot be reached, or answers 503; other options are those of
    `httpx.Client`. Rows beyond the sidecar's limits are sent in several requests, all to one version. Vectors of
    float32 are projected in single precision.
    """

    project, reconstruct = _sent(project), _sent(reconstruct)
    from_coordinates, score, model = _sent(from_coordinates), _sent(score), _sent(model)
    versions = _sent(versions)

    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        super().__init__(url, token=token, retry_s=retry_s, **options)
        self._http = httpx.Client(**self._options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _ask(self, request: Request) -> Any:
        try:
            for attempt in Retrying(**self._policy, reraise=True):
                with attempt:
                    return self._checked(self._http.request(request.method, request.path, **request.options))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None


class AsyncClient(_Sidecar):
    """The same for asyncio."""

    project, reconstruct = _awaited(project), _awaited(reconstruct)
    from_coordinates, score, model = _awaited(from_coordinates), _awaited(score), _awaited(model)
    versions = _awaited(versions)

    def __init__(self, url: str, *, token: str | None = None, retry_s: float = 15.0, **options: Any) -> None:
        super().__init__(url, token=token, retry_s=retry_s, **options)
        self._http = httpx.AsyncClient(**self._options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _ask(self, request: Request) -> Any:
        try:
            async for attempt in AsyncRetrying(**self._policy, reraise=True):
                with attempt:
                    return self._checked(await self._http.request(request.method, request.path, **request.options))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
