"""What the OpenAPI page at `/docs` says of each route, made from the classes in `schemas`."""

from typing import Any

from pydantic import BaseModel

from streampca.api import schemas
from streampca.api.request import BINARY
from streampca.api.schemas import RowsRequest

DESCRIPTION = """Projections onto the principal components of a Kafka topic, by the newest model or an older one.

Every answer names the version of its model, in the body and in the header `X-Model-Version`.
Every error is `{"error": "what is wrong, where, and how to correct it"}`.

Request bodies are JSON, whatever their Content-Type, with two exceptions: `application/x-npy` is a NumPy file of real
numbers, one row (d,) or several (n, d), and `application/octet-stream` is rows of little-endian float32 numbers without
a header. A binary body holds only the rows; the other fields are then query parameters.
With `Accept: application/x-npz` the fields of the answer are arrays of the same names, for `numpy.load`."""

_ERRORS = {
    400: "The body is not JSON, or not of its Content-Type.",
    404: "There is no such version: it was never published, or it was removed.",
    406: "Too many numbers for JSON: accept `application/x-npy`.",
    413: "Too many bytes or rows in one request.",
    415: "The body is compressed.",
    422: "A wrong field or value: a wrong length, not a number, not finite, too large, an unknown field.",
    500: "The model's file is damaged.",
    503: "No model has been published yet, or the store cannot be read.",
}
BODY_ERRORS, VERSION_ERRORS = (400, 413, 415), (404, 422, 500, 503)

BINARY_SCHEMA = {"schema": {"type": "string", "format": "binary"}}
_VERSION_HEADER = {"X-Model-Version": {"description": "The same as in the body.", "schema": {"type": "integer"}}}


def route_docs(
    response: type[BaseModel],
    *errors: int,
    request: type[RowsRequest] | None = None,
    binary: str | None = None,
    unready: type[BaseModel] | None = None,
) -> dict[str, Any]:
    """Keyword arguments for `add_api_route`. `binary`: the answer's other media type; `unready`: the body of a 503."""
    responses: dict[int | str, dict[str, Any]] = {
        code: {"model": schemas.ErrorResponse, "description": _ERRORS[code]} for code in errors
    }
    responses[200] = {"model": response, "content": {binary: BINARY_SCHEMA} if binary else {}}
    if "version" in response.model_fields:
        responses[200]["headers"] = _VERSION_HEADER
    if unready:
        responses[503] = {"model": unready, "description": "Not ready, with the reasons."}
    return {"responses": responses} | ({"openapi_extra": _request_docs(request)} if request else {})


def _request_docs(request: type[RowsRequest]) -> dict[str, Any]:
    schema = request.model_json_schema()
    content = {"application/json": {"schema": schema}, **dict.fromkeys(BINARY, BINARY_SCHEMA)}
    return {"requestBody": {"required": True, "content": content}, "parameters": _parameters(request, schema)}


def _parameters(request: type[RowsRequest], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The query parameters of a binary body: the fields besides the rows, and which field the rows are."""
    found = {name: schema["properties"][name] for name in request.other_fields()}
    names = request.row_fields()
    if len(names) > 1:
        found["of"] = {"type": "string", "enum": names, "description": "Required: what the rows are."}
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "schema": parameter,
            "description": f"For a binary body only. {parameter['description']}",
        }
        for name, parameter in found.items()
    ]
