"""How `/openapi.json` describes the routes that parse their requests by themselves, and what it says of all."""

from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature
from typing import Annotated, Any

from fastapi import Body, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from streampca.sidecar.request import BINARY, BYTES, NPY
from streampca.sidecar.responses import NPZ
from streampca.sidecar.v1.schemas import ErrorResponse

DESCRIPTION = """Projections onto the principal components of a Kafka topic, by the newest model or an older one.

Every answer names the version of its model, in the body and in the header `X-Model-Version`.
Every error is `{"error": "what is wrong, where, and how to correct it"}`, with the members of RFC 9457.

Request bodies of `/v1` are JSON, whatever their Content-Type, with two exceptions: `application/x-npy` is a NumPy file
of real numbers, one row (d,) or several (n, d), and `application/octet-stream;dtype=float32` (or `float64`) is rows of
little-endian numbers without a header. A binary body holds only the rows; the other fields are then query parameters,
and `of=vectors` or `of=coordinates` says what `/v1/reconstruct` gets.
With `Accept: application/x-npz` the fields of the answer are arrays of the same names, for `numpy.load`."""

_BINARY = {"schema": {"type": "string", "format": "binary"}}

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "A wrong or too large request, or an unknown version."},
    "5XX": {"model": ErrorResponse, "description": "No model yet, an unreadable one, or too many requests."},
}
NPZ_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {NPZ: _BINARY}}}
NPY_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {NPY: _BINARY}}}
ROWS_BODY: dict[str, Any] = {"requestBody": {"content": dict.fromkeys(BINARY, _BINARY)}}
TENSOR_ANSWER: dict[int | str, dict[str, Any]] = {200: {"content": {BYTES: _BINARY}}}

Endpoint = Callable[[Request], Awaitable[Response]]


class DirectRoute(APIRoute):
    """A route that calls its endpoint directly, of which `described` has made the documentation.

    With FastAPI's dependency injection it would answer 8 % fewer single vectors a second (benchmarks/serving.py).
    """

    def __init__(self, path: str, endpoint: Any, **documentation: Any) -> None:
        super().__init__(path, endpoint, **documentation)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint.direct(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app


def described(endpoint: Endpoint, body: type[BaseModel], query: type[BaseModel] | None = None, **path: Any) -> Any:
    """A function with these parameters as FastAPI's own, for a `DirectRoute` to this endpoint; it is never called.

    `path` are the types of path parameters.
    """

    async def documented() -> None:
        raise NotImplementedError

    annotations: dict[str, Any] = {**path, "body": Annotated[body, Body()]} | (
        {"query": Annotated[query, Query()]} if query else {}
    )
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in annotations.items()]
    documented.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    documented.__name__, documented.__doc__ = endpoint.__name__, endpoint.__doc__
    documented.direct = endpoint  # type: ignore[attr-defined]
    return documented
