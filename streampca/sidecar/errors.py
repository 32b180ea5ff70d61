"""Errors of the HTTP interface: each has a type that a program can tell apart, a status, and a sentence for people.

They have the form of RFC 9457, `application/problem+json`; the other protocols' clients read `error` of plain JSON.
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

from streampca.errors import DamagedFileError, StoreError
from streampca.process.listening import MissingScopeError, NoTokenError, UnknownTokenError
from streampca.sidecar.metrics import SidecarMetrics
from streampca.stores.model_cache import NoModelError, UnknownVersionError
from streampca.stores.pins import UnknownPinError

PROBLEM_JSON = "application/problem+json"
_PLAIN_JSON = ("/v2", "/invocations", "/ping")  # paths of protocols with errors of their own
_DESCRIBED = 20  # mistakes


class Problem(Enum):
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
    DAMAGED_MODEL = 500, "The version's file is damaged."
    NO_MODEL = 503, "No model has been published yet."
    NOT_READY = 503, "Requests should not be sent here; `reasons` lists why."
    STORE_UNREADABLE = 503, "The store cannot be read."
    BUSY = 503, "Too many large requests at once: try again after `Retry-After` seconds."

    def __init__(self, status: int, title: str) -> None:
        self.status, self.title = status, title
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
    """The request cannot be answered; `limit` names the limit that it reached, `members` are added to the answer."""

    def __init__(
        self, problem: Problem, text: str, *, limit: str = "", headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(text)
        self.problem, self.limit, self.headers, self.members = problem, limit, headers, members


def invalid(text: str) -> RequestError:
    """A mistake in a field, a parameter or a number."""
    return RequestError(Problem.INVALID_REQUEST, text)


def too_large(text: str, limit: str) -> RequestError:
    """A body or an answer that reaches this limit."""
    return RequestError(Problem.TOO_LARGE, text, limit=limit)


def error_response(refusal: RequestError, scope: Scope, metrics: SidecarMetrics) -> Response:
    """The answer to a request that fails; if it reached a limit, that is counted."""
    if refusal.limit:
        metrics.limits[refusal.limit].inc()
    problem, text = refusal.problem, str(refusal)
    about = {"type": problem.type, "title": problem.title, "status": problem.status, "detail": text, "error": text}
    body = orjson.dumps(about | refusal.members)
    plain = scope["path"].startswith(_PLAIN_JSON)
    return Response(body, problem.status, dict(refusal.headers or {}), "application/json" if plain else PROBLEM_JSON)


_PROBLEMS: dict[type[Exception], Problem] = {
    NoModelError: Problem.NO_MODEL,
    UnknownVersionError: Problem.UNKNOWN_VERSION,
    UnknownPinError: Problem.UNKNOWN_VERSION,
    StoreError: Problem.STORE_UNREADABLE,
    DamagedFileError: Problem.DAMAGED_MODEL,
    ClientDisconnect: Problem.MALFORMED_BODY,  # nobody receives it
    NoTokenError: Problem.NO_TOKEN,
    UnknownTokenError: Problem.UNKNOWN_TOKEN,
    MissingScopeError: Problem.MISSING_SCOPE,
}


def refusal_of(error: Exception, scope: Scope) -> RequestError:
    """Any error of a request, ours or the framework's, as one that can be answered; `INTERNAL` is a bug."""
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
            return invalid(describe(error.errors()))
        case HTTPException(status_code=405):
            return RequestError(
                Problem.WRONG_METHOD, f"{scope['path']} does not support {scope['method']}", headers=error.headers
            )
        case HTTPException():
            return RequestError(Problem.UNKNOWN_PATH, f"there is nothing at {scope['path']}; see /docs")
    for kind, problem in _PROBLEMS.items():
        if isinstance(error, kind):
            return RequestError(problem, str(error), headers=getattr(error, "headers", None))
    return RequestError(Problem.INTERNAL, "internal error; the server's log has the traceback")


def describe(mistakes: Iterable[Any]) -> str:
    """The first of pydantic's mistakes as one sentence."""
    return "; ".join(f"{_field(mistake['loc'])}: {mistake['msg']}" for mistake in [*mistakes][:_DESCRIBED])


def _field(path: tuple[str | int, ...]) -> str:
    """A field as a caller writes it: `fields[0]`."""
    *_, last = path
    return f"{path[-2]}[{last}]" if isinstance(last, int) and len(path) > 1 else str(last)
