"""Exceptions → responses: every error has the same shape, `{"error": …}`, with the right status."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from streampca.errors import DamagedFileError, StoreError
from streampca.sidecar.metrics import SidecarMetrics
from streampca.sidecar.parsing import describe
from streampca.sidecar.request import RequestError, no_memory
from streampca.sidecar.responses import error_response
from streampca.stores.model_cache import NoModelError, UnknownVersionError

_STATUS: dict[type[Exception], int] = {
    NoModelError: 503,
    UnknownVersionError: 404,
    StoreError: 503,
    DamagedFileError: 500,
    ClientDisconnect: 400,  # nobody receives it
}


def add_error_handlers(app: FastAPI, metrics: SidecarMetrics) -> None:
    """Handle our errors and the framework's; count limits reached. The middleware answers for bugs."""

    async def respond(request: Request, error: Exception) -> Response:
        if isinstance(error, MemoryError):
            error = no_memory()
        if isinstance(error, RequestError) and error.limit:
            metrics.count_limit(error.limit)
        status, text = _status_and_text(request, error)
        return error_response(status, text, getattr(error, "headers", None))

    for kind in (*_STATUS, MemoryError, RequestError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, respond)


def _status_and_text(request: Request, error: Exception) -> tuple[int, str]:
    match error:
        case RequestError():
            return error.status, str(error)
        case RequestValidationError():
            return 422, describe(list(error.errors()))
        case HTTPException(status_code=404):
            return 404, f"there is nothing at {request.url.path}; see /docs"
        case HTTPException(status_code=405):
            return 405, f"{request.url.path} does not support {request.method}"
        case HTTPException():
            return error.status_code, error.detail
    return next(status for kind, status in _STATUS.items() if isinstance(error, kind)), str(error)
