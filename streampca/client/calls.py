"""The requests of a client to a sidecar and their answers, without the connection."""

import io
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from streampca.client.tables import ModelNames, columns_of, to_numbers
from streampca.errors import StreampcaError
from streampca.pca.arrays import is_null

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
Vectors = Any  # an array (n, d) or its like, a table of pandas, Polars or Arrow, or records, which are mappings


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
    """The part of a client that the functions below use."""

    _names_by_asked_version: dict[Version, ModelNames]
    """Names of the dimensions, by the version that a call asked for: a number, a pin, or None for the newest.

    None or a pin may mean another version later.
    """

    async def _ask(self, **request: Any) -> "httpx.Response":
        """Send a request with these arguments of httpx, and wait for its answer."""


async def project(
    sidecar: Sidecar, vectors: Vectors, *, basis: Basis = "principal", version: Version = None
) -> ProjectAnswer:
    """Return coordinates (n, k) and residuals (n,) of vectors (n, d).

    The vectors may also be n records, or a table of pandas, Polars or Arrow. The keys of records and the columns of a
    table are matched with the names of the dimensions.
    """
    return await _send_vectors(sidecar, "project", vectors, ProjectAnswer, asked_version=version, basis=basis)


async def reconstruct(sidecar: Sidecar, vectors: Vectors, *, version: Version = None) -> ReconstructAnswer:
    """Return vectors (n, d) as the components reconstruct them."""
    return await _send_vectors(sidecar, "reconstruct", vectors, ReconstructAnswer, asked_version=version, of="vectors")


async def from_coordinates(
    sidecar: Sidecar, coordinates: ArrayLike, *, basis: Basis = "principal", version: Version = None
) -> ReconstructAnswer:
    """Return the vectors (n, d) that have these coordinates (n, k)."""
    return await _send_in_pieces(
        sidecar,
        "reconstruct",
        to_numbers(coordinates),
        ReconstructAnswer,
        version=version,
        of="coordinates",  # a parameter of the query: the rows are not vectors
        basis=basis,
    )


async def score(
    sidecar: Sidecar, vectors: Vectors, *, contributions: int | None = None, version: Version = None
) -> ScoreAnswer:
    """Return scores (n,) of vectors (n, d).

    With `contributions=m`, also the m dimensions that contribute most to each score.
    """
    return await _send_vectors(
        sidecar, "score", vectors, ScoreAnswer, asked_version=version, contributions=contributions
    )


async def model(sidecar: Sidecar, *, version: Version = None) -> dict[str, Any]:
    """Return the metadata of a model: the answer of `/v1/model`."""
    answer = await sidecar._ask(method="GET", url="/v1/model", params=_drop_unset(version=version))
    return dict(orjson.loads(_read_content(answer)))


async def versions(sidecar: Sidecar) -> list[int]:
    """Return the versions that the sidecar can serve, in ascending order."""
    answer = await sidecar._ask(method="GET", url="/v1/models")
    return list(orjson.loads(_read_content(answer))["versions"])


async def _send_vectors(
    sidecar: Sidecar,
    operation: str,
    vectors: Vectors,
    answer_type: Callable[..., Answer],
    *,
    asked_version: Version,
    **params: Any,
) -> Answer:
    """Send vectors to an operation of the sidecar, and return its answer as an `answer_type`.

    Tables and records are first matched with the names of the model's dimensions. These names are cached, by the
    version for which the caller asks, so that most calls need one request.
    """
    columns = columns_of(vectors)
    has_records = isinstance(vectors, Sequence) and len(vectors) > 0 and isinstance(vectors[0], Mapping)
    if columns is None and not has_records:
        rows = to_numbers(vectors)
        return await _send_in_pieces(sidecar, operation, rows, answer_type, version=asked_version, **params)

    async def send_matched(names: ModelNames, version: Version) -> Answer:
        """Match the vectors with these names, and send them to this version of the model."""
        rows = names.choose_fields(vectors) if columns is None else names.read_table(vectors, columns)
        return await _send_in_pieces(sidecar, operation, rows, answer_type, version=version, **params)

    # First try the cached names. They leave the cache, and return to it only if the same version answers again. After
    # an error, or an answer of another version, the names are asked for again.
    earlier_names = sidecar._names_by_asked_version.pop(asked_version, None)
    if earlier_names:
        answer = await send_matched(earlier_names, asked_version)
        # If `asked_version` is a pin or None, another version than earlier may have answered. Its dimensions may have
        # other names. Then the answer is dropped, and the vectors are matched and sent again below.
        if answer.version == earlier_names.version:  # type: ignore[attr-defined]  # a NamedTuple
            sidecar._names_by_asked_version[asked_version] = earlier_names
            return answer
    new_names = ModelNames.of(await model(sidecar, version=asked_version))
    # Ask for the version that has these names, because a pin or None may now mean a newer version.
    answer = await send_matched(new_names, new_names.version)
    sidecar._names_by_asked_version[asked_version] = new_names
    return answer


async def _send_in_pieces(
    sidecar: Sidecar,
    operation: str,
    rows: Any,
    answer_type: Callable[..., Answer],
    *,
    version: Version,
    **params: Any,
) -> Answer:
    """Send rows in pieces that the sidecar accepts, and join the answers.

    All pieces are answered by one version of the model.
    """
    is_array = isinstance(rows, np.ndarray)
    if is_array and rows.ndim != 2:
        raise ValueError(f"rows must be an array of shape (n, d), not {rows.shape}")
    answers: list[dict[str, Any]] = []
    pieces = _split(rows)
    while pieces:
        start, stop = pieces.pop(0)
        piece = rows[start:stop]
        headers_and_body = _encode_array(piece) if is_array else _encode_records(piece)
        query = _drop_unset(**params, version=version)
        response = await sidecar._ask(method="POST", url=f"/v1/{operation}", params=query, **headers_and_body)
        if response.status_code == _TOO_LARGE and len(piece) > 1:
            # The sidecar has lower limits, or its answer would be too large.
            middle = (start + stop) // 2
            pieces = [(start, middle), (middle, stop), *pieces]
            continue
        content = _read_content(response, error_prefix="" if len(piece) == len(rows) else f"in rows[{start}:{stop}], ")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            answers.append(dict(arrays))
        version = int(answers[0]["version"])  # the first answer decides which version answers the next pieces
    return _join(answers, answer_type)


def _split(rows: Sequence[Any]) -> list[tuple[int, int]]:
    """Split the rows into pieces that are within the sidecar's limits, and return (start, stop) of each.

    Without rows, return one empty piece.
    """
    if len(rows) == 0:
        return [(0, 0)]
    numbers_per_row = max(1, len(rows[0]))
    rows_per_request = min(_MAX_ROWS, max(1, _MAX_NUMBERS // numbers_per_row))
    starts = range(0, len(rows), rows_per_request)
    return [(start, min(start + rows_per_request, len(rows))) for start in starts]


def _join(answers: Sequence[Mapping[str, Any]], answer_type: Callable[..., Answer]) -> Answer:
    """Join the answers to all pieces into one of this type. Arrays are concatenated; an absent array is None."""
    version_name, *array_names = answer_type._fields  # type: ignore[attr-defined]  # a NamedTuple
    fields: dict[str, Any] = {version_name: int(answers[0][version_name])}  # all answers have the same version
    for name in array_names:
        arrays = [answer[name] for answer in answers if name in answer]
        fields[name] = np.concatenate(arrays) if arrays else None
    return answer_type(**fields)


def _encode_array(rows: NDArray[Any]) -> dict[str, Any]:
    """Return headers and body of a request with an array.

    The body is a .npy file, since its header tells the sidecar the array's shape.
    """
    dtype = "<f4" if rows.dtype == np.float32 else "<f8"
    content = io.BytesIO()
    np.save(content, np.ascontiguousarray(rows, dtype), allow_pickle=False)
    return {"headers": _ACCEPT_NPZ | {"Content-Type": "application/x-npy"}, "content": content.getvalue()}


def _encode_records(rows: Sequence[Any]) -> dict[str, Any]:
    """Return headers and body of a request with records, whose keys are names of dimensions."""
    content = orjson.dumps({"records": rows}, default=_encode_value, option=orjson.OPT_SERIALIZE_NUMPY)
    return {"headers": _ACCEPT_NPZ | {"Content-Type": "application/json"}, "content": content}


def _encode_value(value: Any) -> float | None:
    """Return a null or a decimal, which orjson cannot encode, as None or a float.

    Raises `TypeError` for any other value.
    """
    if is_null(value):
        return None
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not a number")


def _drop_unset(**params: Any) -> dict[str, str]:
    """Return the query parameters that are not None, as texts."""
    return {name: str(value) for name, value in params.items() if value is not None}


def _read_content(answer: "httpx.Response", error_prefix: str = "") -> bytes:
    """Return the content of a successful answer. Raises `SidecarError` for any other answer.

    `error_prefix` says which rows were sent, such as "in rows[0:10], ".
    """
    if answer.is_success:
        return answer.content
    try:
        problem = orjson.loads(answer.content)
        text = f"{error_prefix}{problem['detail']}"
        type_ = str(problem["type"])
    except (ValueError, KeyError, TypeError):  # perhaps a proxy has answered
        text = f"status {answer.status_code}, and not an answer of a sidecar"
        type_ = None
    raise SidecarError(answer.status_code, f"{answer.url}: {text}", type_)
