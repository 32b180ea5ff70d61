"""Errors of the HTTP interface: each has a type for programs, a status, and a sentence for people.

They have the form of RFC 9457, `application/problem+json`. Clients of MLflow and of the Open Inference Protocol expect
plain JSON and read its field `error`, so their errors have that media type.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import orjson
from fastapi import Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from streampca.errors import DamagedFileError, EarlierFormatError, StoreError
from streampca.process.bearer_tokens import MissingScopeError, NoTokenError, UnknownTokenError
from streampca.sidecar.metrics import SidecarMetrics
from streampca.stores.model_cache import NoModelError, UnknownVersionError
from streampca.stores.pins import UnknownPinError

PROBLEM_JSON = "application/problem+json"
_PLAIN_JSON_PATHS = ("/v2", "/invocations", "/ping")  # beginnings of the paths whose errors are plain JSON
_MAX_MISTAKES = 20  # that one error describes


class Problem(Enum):
    """The types of errors, each with its status and its title."""

    MALFORMED_BODY = 400, "The body is not of its media type, or its compression is damaged."
    NO_TOKEN = 401, "The request needs a token and has none."
    UNKNOWN_TOKEN = 401, "The token is not in `tokens_file` (any more)."
    MISSING_SCOPE = 403, "The token lacks the scope for this path."
    CROSS_SITE = 403, "A browser sends the request for a page of another site."
    UNKNOWN_PATH = 404, "There is no such path."
    UNKNOWN_MODEL = 404, "This sidecar serves another topic."
    UNKNOWN_VERSION = 404, "The version was never published or was removed, or no model is pinned by the name."
    WRONG_METHOD = 405, "The path does not support the method; `Allow` lists those that it does."
    TOO_LONG_FOR_JSON = 406, "The answer has too many numbers for JSON: accept the binary form."
    SLOW_BODY = 408, "The body did not arrive in time."
    TOO_LARGE = 413, "Body or answer exceeds a limit."
    UNSUPPORTED_TYPE = 415, "Content-Type or Content-Encoding is not supported."
    INVALID_REQUEST = 422, "A field, a parameter or a number is wrong; `detail` says which."
    INTERNAL = 500, "A bug of the sidecar; its log has the traceback."
    DAMAGED_MODEL = 500, "The version's file is damaged, or too old for this release."
    NO_MODEL = 503, "No model has been published yet."
    NOT_READY = 503, "Requests should not be sent here; `reasons` lists why."
    STORE_UNREADABLE = 503, "The store cannot be read."
    BUSY = 503, "Too many large requests at once: try again after `Retry-After` seconds."

    def __init__(self, status: int, title: str) -> None:
        self.status = status
        self.title = title
        self.type = "urn:streampca:error:" + self.name.lower().replace("_", "-")


class ErrorResponse(BaseModel):
    """The body of every error, as of RFC 9457."""

    type: str = Field(description="The kind of error.", examples=["urn:streampca:error:invalid-request"])
    title: str = Field(description="What the type means.")
    status: int
    detail: str = Field(
        description="What is wrong, where, and how to correct it.",
        examples=["vectors[3][0] must be a number, not null"],
    )
    error: str = Field(description="The same as `detail`.")


class NotReadyResponse(ErrorResponse):
    """The reasons why this sidecar should get no requests."""

    reasons: list[str]


class RequestError(Exception):
    """The request cannot be answered."""

    def __init__(
        self,
        problem: Problem,
        detail: str,
        *,
        limit: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more_fields: Any,
    ) -> None:
        """`limit` is the name in `metrics.LIMITS` of the limit that the request has exceeded; None if it exceeds none.

        `more_fields` are added to the fields of `ErrorResponse` in the answer.
        """
        super().__init__(detail)
        self.problem = problem
        self.limit = limit
        self.headers = headers
        self.more_fields = more_fields


def invalid(detail: str) -> RequestError:
    """Return an error for a wrong field, parameter or number."""
    return RequestError(Problem.INVALID_REQUEST, detail)


def too_large(detail: str, limit: str) -> RequestError:
    """Return an error for a body or an answer that exceeds this limit of `metrics.LIMITS`."""
    return RequestError(Problem.TOO_LARGE, detail, limit=limit)


def error_response(error: RequestError, scope: Scope, metrics: SidecarMetrics) -> Response:
    """Return the answer to a request that failed, and count a limit that it has exceeded."""
    if error.limit is not None:
        metrics.limits[error.limit].inc()
    problem = error.problem
    fields = {
        "type": problem.type,
        "title": problem.title,
        "status": problem.status,
        "detail": str(error),
        "error": str(error),  # for clients of MLflow and of the Open Inference Protocol
    }
    expects_plain_json = scope["path"].startswith(_PLAIN_JSON_PATHS)
    return Response(
        content=orjson.dumps(fields | error.more_fields),
        status_code=problem.status,
        headers=dict(error.headers or {}),
        media_type="application/json" if expects_plain_json else PROBLEM_JSON,
    )


_PROBLEM_BY_ERROR: dict[type[Exception], Problem] = {
    NoModelError: Problem.NO_MODEL,
    UnknownVersionError: Problem.UNKNOWN_VERSION,
    UnknownPinError: Problem.UNKNOWN_VERSION,
    StoreError: Problem.STORE_UNREADABLE,
    DamagedFileError: Problem.DAMAGED_MODEL,
    EarlierFormatError: Problem.DAMAGED_MODEL,
    ClientDisconnect: Problem.MALFORMED_BODY,  # the client does not receive it any more
    NoTokenError: Problem.NO_TOKEN,
    UnknownTokenError: Problem.UNKNOWN_TOKEN,
    MissingScopeError: Problem.MISSING_SCOPE,
}


def to_request_error(error: Exception, scope: Scope) -> RequestError:
    """Convert any error that a request raised to a `RequestError`. An unexpected error becomes `Problem.INTERNAL`."""
    match error:
        case RequestError():
            return error
        case MemoryError():
            return RequestError(
                Problem.BUSY,
                "too many large requests at once: try again",
                limit="memory",
                headers={"Retry-After": "1"},
            )
        case RequestValidationError():
            return invalid(describe_mistakes(error.errors()))
        case HTTPException(status_code=405):
            return RequestError(
                Problem.WRONG_METHOD, f"{scope['path']} does not support {scope['method']}", headers=error.headers
            )
        case HTTPException():  # 404: the framework raises no other
            return RequestError(Problem.UNKNOWN_PATH, f"there is nothing at {scope['path']}; see /docs")
    for error_type, problem in _PROBLEM_BY_ERROR.items():
        if isinstance(error, error_type):
            return RequestError(problem, str(error), headers=getattr(error, "headers", None))
    return RequestError(Problem.INTERNAL, "internal error; the server's log has the traceback")


def describe_mistakes(mistakes: Iterable[Any]) -> str:
    """Describe in one sentence the first mistakes that pydantic found."""
    first = list(mistakes)[:_MAX_MISTAKES]
    return "; ".join(f"{_name_field(mistake['loc'])}: {mistake['msg']}" for mistake in first)


def _name_field(path: tuple[str | int, ...]) -> str:
    """Return the last field of a path as a client would write it, such as `fields[0]` for ("body", "fields", 0)."""
    last = path[-1]
    if isinstance(last, int) and len(path) > 1:
        return f"{path[-2]}[{last}]"
    return str(last)
