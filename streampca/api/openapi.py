"""What the OpenAPI page at `/docs` says besides the routes' own parameters and response models."""

from typing import Any

from streampca.api.request import BINARY, NPY
from streampca.api.responses import NPZ
from streampca.api.schemas import ErrorResponse, RowsRequest

DESCRIPTION = """Projections onto the principal components of a Kafka topic, by the newest model or an older one.

Every answer names the version of its model, in the body and in the header `X-Model-Version`.
Every error is `{"error": "what is wrong, where, and how to correct it"}`.

Request bodies are JSON, whatever their Content-Type, with two exceptions: `application/x-npy` is a NumPy file of real
numbers, one row (d,) or several (n, d), and `application/octet-stream;dtype=float32` (or `float64`) is rows of
little-endian numbers without a header. A binary body holds only the rows; the other fields are then query parameters,
and `of=vectors` or `of=coordinates` says what `/v1/reconstruct` gets.
With `Accept: application/x-npz` the fields of the answer are arrays of the same names, for `numpy.load`."""

_BINARY_SCHEMA = {"schema": {"type": "string", "format": "binary"}}

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "A wrong or too large request, or an unknown version."},
    "5XX": {"model": ErrorResponse, "description": "No model yet, an unreadable one, or too many requests."},
}
NPZ_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {NPZ: _BINARY_SCHEMA}}}
NPY_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {NPY: _BINARY_SCHEMA}}}


def request_body(request: type[RowsRequest]) -> dict[str, Any]:
    """The body of a route that parses it by itself, for `openapi_extra`."""
    content = {"application/json": {"schema": request.model_json_schema()}, **dict.fromkeys(BINARY, _BINARY_SCHEMA)}
    return {"requestBody": {"required": True, "content": content}}
