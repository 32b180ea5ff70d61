"""What a client asks a sidecar, and what comes back: requests and answers, without connections."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from streampca.errors import StreampcaError

if TYPE_CHECKING:
    import httpx

Answer = TypeVar("Answer")
F64 = NDArray[np.float64]
Basis = Literal["principal", "whitened"]
Version = int | str | None  # a number, the name of a pin, or None: the newest
_MOST_ROWS, _MOST_NUMBERS = 10_000, 1_000_000  # of a request: the sidecar's limits, see docs/api.md
_TOO_LARGE = 413
_ARRAYS = {"Accept": "application/x-npz"}
Vectors = ArrayLike | Sequence[Mapping[str, float | None]]  # records, for a model with names


class SidecarError(StreampcaError):
    """A request has no result: where and why, the HTTP status (0: no answer), and the type of error in docs/api.md."""

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


class Sidecar(Protocol):
    """Where requests go: a client."""

    async def _ask(self, **request: Any) -> "httpx.Response":
        """Send a request with these arguments of httpx, and wait for its answer."""


async def project(
    sidecar: Sidecar, vectors: Vectors, *, basis: Basis = "principal", version: Version = None
) -> ProjectAnswer:
    """Coordinates (n, k) and residuals (n,) of vectors (n, d), or of n records of the dimensions' names."""
    return await _of_rows(sidecar, "project", vectors, ProjectAnswer, basis=basis, version=version)


async def reconstruct(sidecar: Sidecar, vectors: Vectors, *, version: Version = None) -> ReconstructAnswer:
    """Vectors (n, d) as the components reconstruct them."""
    return await _of_rows(sidecar, "reconstruct", vectors, ReconstructAnswer, of="vectors", version=version)


async def from_coordinates(
    sidecar: Sidecar, coordinates: ArrayLike, *, basis: Basis = "principal", version: Version = None
) -> ReconstructAnswer:
    """The vectors (n, d) with these coordinates (n, k)."""
    return await _of_rows(
        sidecar, "reconstruct", coordinates, ReconstructAnswer, of="coordinates", basis=basis, version=version
    )


async def score(
    sidecar: Sidecar, vectors: Vectors, *, contributions: int | None = None, version: Version = None
) -> ScoreAnswer:
    """Scores (n,) of vectors (n, d), with as many of the dimensions that contribute most as are asked for."""
    return await _of_rows(sidecar, "score", vectors, ScoreAnswer, contributions=contributions, version=version)


async def model(sidecar: Sidecar, *, version: Version = None) -> dict[str, Any]:
    """The model's metadata, as `/v1/model` answers."""
    answer = await sidecar._ask(method="GET", url="/v1/model", params=_params(version=version))
    return dict(orjson.loads(_checked(answer)))


async def versions(sidecar: Sidecar) -> list[int]:
    """The versions that there are, in ascending order."""
    answer = await sidecar._ask(method="GET", url="/v1/models")
    return list(orjson.loads(_checked(answer))["versions"])


async def _of_rows(
    sidecar: Sidecar, operation: str, rows: Vectors, kind: Callable[..., Answer], **params: Any
) -> Answer:
    """Send rows in pieces that the sidecar takes: all to the version that answers the first."""
    if not (are_records := isinstance(rows, Sequence) and len(rows) > 0 and isinstance(rows[0], Mapping)):
        rows = np.asarray(rows)
        if rows.ndim != 2:
            raise ValueError(f"rows must be an array of shape (n, d), not {rows.shape}")
    given: Any = rows
    n, width = len(given), max(map(len, given[:1]), default=1)
    most = min(_MOST_ROWS, max(1, _MOST_NUMBERS // max(width, 1)))
    pieces = [(start, min(start + most, n)) for start in range(0, max(n, 1), most)][::-1]
    answers: list[dict[str, Any]] = []
    while pieces:
        start, stop = pieces.pop()
        body = _records(given[start:stop]) if are_records else _npy(given[start:stop])
        answer = await sidecar._ask(method="POST", url=f"/v1/{operation}", params=_params(**params), **body)
        if answer.status_code == _TOO_LARGE and stop - start > 1:  # its limits may be lower, and answers are larger
            middle = (start + stop) // 2
            pieces += [(middle, stop), (start, middle)]
            continue
        content = _checked(answer, "" if stop - start == n else f"in rows[{start}:{stop}], ")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            answers.append(dict(arrays))
        params["version"] = int(answers[0]["version"])
    names: tuple[str, ...] = kind._fields[1:]  # type: ignore[attr-defined]  # a NamedTuple
    fields = [[answer[name] for answer in answers if name in answer] for name in names]
    return kind(params["version"], *(np.concatenate(parts) if parts else None for parts in fields))


def _npy(rows: NDArray[Any]) -> dict[str, Any]:
    """The body of a request with an array; it says how long a vector is, so that none is cut in two."""
    content = io.BytesIO()
    np.save(content, np.ascontiguousarray(rows, "<f4" if rows.dtype == np.float32 else "<f8"), allow_pickle=False)
    return {"headers": _ARRAYS | {"Content-Type": "application/x-npy"}, "content": content.getvalue()}


def _records(rows: Sequence[Any]) -> dict[str, Any]:
    return {"headers": _ARRAYS, "content": orjson.dumps({"records": rows}, option=orjson.OPT_SERIALIZE_NUMPY)}


def _params(**params: Any) -> dict[str, str]:
    return {name: str(value) for name, value in params.items() if value is not None}


def _checked(answer: "httpx.Response", place: str = "") -> bytes:
    """The content of an answer of success. Raises `SidecarError`, with the `place` of the rows."""
    if answer.is_success:
        return answer.content
    try:
        problem = orjson.loads(answer.content)
        text, type_ = f"{place}{problem['detail']}", str(problem["type"])
    except (ValueError, KeyError, TypeError):
        text, type_ = f"status {answer.status_code}, and no answer of a sidecar", None
    raise SidecarError(answer.status_code, f"{answer.url}: {text}", type_)
