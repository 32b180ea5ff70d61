"""The requests of a client to a sidecar and their answers, without the connection."""

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
# The sidecar's limits of a request, see docs/api.md.
_MAX_ROWS = 10_000
_MAX_NUMBERS = 1_000_000
_TOO_LARGE = 413  # status of the answer if the request or the answer exceeds a limit
NO_ANSWER = 0  # status of an error if no answer came
_ACCEPT_NPZ = {"Accept": "application/x-npz"}
Vectors = ArrayLike | Sequence[Mapping[str, float | None]]  # records, for a model with names


class SidecarError(StreampcaError):
    """A request has no result. The text says where and why.

    `status` is the HTTP status, or 0 if no answer came; `type` is the type of the error, as docs/api.md lists them.
    """

    def __init__(self, status: int, text: str, type_: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.type = type_


class ProjectAnswer(NamedTuple):
    """Vectors in the basis of the components."""

    version: int
    coordinates: F64  # (n, k)
    residual: F64  # (n,): squared distances from the subspace of the components


class ReconstructAnswer(NamedTuple):
    """Vectors as the components reconstruct them."""

    version: int
    vectors: F64  # (n, d)
    squared_error: F64 | None  # (n,); None if coordinates were sent, since no vector is known then


class ScoreAnswer(NamedTuple):
    """Scores of n vectors, an array (n,) each. The higher a score, the more unusual the vector.

    p-values are None if the model has no past scores. The last four fields are None unless `contributions` asked for m
    dimensions.
    """

    version: int
    t2: F64
    spe: F64
    score: F64
    p: F64 | None
    p_t2: F64 | None
    p_spe: F64 | None
    t2_dimensions: NDArray[np.int64] | None = None  # (n, m): the dimensions that contribute most
    t2_contributions: F64 | None = None
    spe_dimensions: NDArray[np.int64] | None = None
    spe_contributions: F64 | None = None


class Sidecar(Protocol):
    """What the functions below need of a client."""

    async def _ask(self, **request: Any) -> "httpx.Response":
        """Send a request with these arguments of httpx, and wait for its answer."""


async def project(
    sidecar: Sidecar, vectors: Vectors, *, basis: Basis = "principal", version: Version = None
) -> ProjectAnswer:
    """Return coordinates (n, k) and residuals (n,) of vectors (n, d).

    The vectors may be n records, each with the dimensions' names as keys.
    """
    return await _send_rows(sidecar, "project", vectors, ProjectAnswer, basis=basis, version=version)


async def reconstruct(sidecar: Sidecar, vectors: Vectors, *, version: Version = None) -> ReconstructAnswer:
    """Return vectors (n, d) as the components reconstruct them."""
    return await _send_rows(sidecar, "reconstruct", vectors, ReconstructAnswer, of="vectors", version=version)


async def from_coordinates(
    sidecar: Sidecar, coordinates: ArrayLike, *, basis: Basis = "principal", version: Version = None
) -> ReconstructAnswer:
    """Return the vectors (n, d) that have these coordinates (n, k)."""
    return await _send_rows(
        sidecar, "reconstruct", coordinates, ReconstructAnswer, of="coordinates", basis=basis, version=version
    )


async def score(
    sidecar: Sidecar, vectors: Vectors, *, contributions: int | None = None, version: Version = None
) -> ScoreAnswer:
    """Return scores (n,) of vectors (n, d).

    With `contributions=m`, also the m dimensions that contribute most to each score.
    """
    return await _send_rows(sidecar, "score", vectors, ScoreAnswer, contributions=contributions, version=version)


async def model(sidecar: Sidecar, *, version: Version = None) -> dict[str, Any]:
    """Return the model's metadata, as `/v1/model` answers."""
    answer = await sidecar._ask(method="GET", url="/v1/model", params=_drop_unset(version=version))
    return dict(orjson.loads(_read_content(answer)))


async def versions(sidecar: Sidecar) -> list[int]:
    """Return the versions that the sidecar can serve, in ascending order."""
    answer = await sidecar._ask(method="GET", url="/v1/models")
    return list(orjson.loads(_read_content(answer))["versions"])


async def _send_rows(
    sidecar: Sidecar, operation: str, rows: Vectors, answer_type: Callable[..., Answer], **params: Any
) -> Answer:
    """Send rows in pieces that the sidecar accepts, and join the answers into one of this type.

    The version of the model that answers the first piece also answers the others.
    """
    encode: Callable[[Any], dict[str, Any]] = _encode_records
    if not _are_records(rows):
        rows = np.asarray(rows)
        if rows.ndim != 2:
            raise ValueError(f"rows must be an array of shape (n, d), not {rows.shape}")
        encode = _encode_array
    sequence: Any = rows
    n = len(sequence)
    answers: list[dict[str, Any]] = []
    pieces = _split(sequence)
    while pieces:
        start, stop = pieces.pop(0)
        body = encode(sequence[start:stop])
        answer = await sidecar._ask(method="POST", url=f"/v1/{operation}", params=_drop_unset(**params), **body)
        if answer.status_code == _TOO_LARGE and stop - start > 1:
            # This sidecar has lower limits, or the answer would be too large: send both halves.
            middle = (start + stop) // 2
            pieces[:0] = [(start, middle), (middle, stop)]
            continue
        is_whole = stop - start == n
        place = "" if is_whole else f"in rows[{start}:{stop}], "
        with np.load(io.BytesIO(_read_content(answer, place)), allow_pickle=False) as arrays:
            answers.append(dict(arrays))
        params["version"] = int(answers[0]["version"])
    return _join(answers, answer_type)


def _are_records(rows: Vectors) -> bool:
    return isinstance(rows, Sequence) and len(rows) > 0 and isinstance(rows[0], Mapping)


def _split(rows: Sequence[Any]) -> list[tuple[int, int]]:
    """Return (start, stop) of each piece, so that it is within the sidecar's limits. No rows are one empty piece."""
    width = max(1, len(rows[0])) if len(rows) else 1
    rows_per_request = min(_MAX_ROWS, max(1, _MAX_NUMBERS // width))
    starts = range(0, max(1, len(rows)), rows_per_request)
    return [(start, min(start + rows_per_request, len(rows))) for start in starts]


def _join(answers: Sequence[Mapping[str, Any]], answer_type: Callable[..., Answer]) -> Answer:
    """Join the answers to all pieces into one of this type. Arrays are concatenated, and an absent array is None."""
    version, *names = answer_type._fields  # type: ignore[attr-defined]  # a NamedTuple
    fields: dict[str, Any] = {version: int(answers[0][version])}
    for name in names:
        parts = [answer[name] for answer in answers if name in answer]
        fields[name] = np.concatenate(parts) if parts else None
    return answer_type(**fields)


def _encode_array(rows: NDArray[Any]) -> dict[str, Any]:
    """Return headers and body of a request with an array.

    Its .npy header says how many numbers a vector has, so the sidecar cannot cut the numbers into other vectors.
    """
    dtype = "<f4" if rows.dtype == np.float32 else "<f8"
    content = io.BytesIO()
    np.save(content, np.ascontiguousarray(rows, dtype), allow_pickle=False)
    return {"headers": _ACCEPT_NPZ | {"Content-Type": "application/x-npy"}, "content": content.getvalue()}


def _encode_records(rows: Sequence[Any]) -> dict[str, Any]:
    """Return headers and body of a request with records of the dimensions' names."""
    return {"headers": _ACCEPT_NPZ, "content": orjson.dumps({"records": rows}, option=orjson.OPT_SERIALIZE_NUMPY)}


def _drop_unset(**params: Any) -> dict[str, str]:
    """Return the query parameters that are not None, as texts."""
    return {name: str(value) for name, value in params.items() if value is not None}


def _read_content(answer: "httpx.Response", place: str = "") -> bytes:
    """Return the content of a successful answer.

    Raises `SidecarError` for any other answer; its text begins with `place`, which names the rows that were sent.
    """
    if answer.is_success:
        return answer.content
    try:
        problem = orjson.loads(answer.content)
        text = f"{place}{problem['detail']}"
        type_ = str(problem["type"])
    except (ValueError, KeyError, TypeError):  # the answer is not a sidecar's, but perhaps a proxy's
        text = f"status {answer.status_code}, and not an answer of a sidecar"
        type_ = None
    raise SidecarError(answer.status_code, f"{answer.url}: {text}", type_)
