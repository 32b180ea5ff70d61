"""The endpoints for those who run the sidecar: probes and metrics."""

from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from streampca.sidecar.engine import EngineDependency
from streampca.sidecar.errors import PROBLEM_JSON
from streampca.sidecar.openapi import Responses, content_of, errors_of
from streampca.sidecar.responses import json_response, version_header
from streampca.sidecar.v1.schemas import ErrorResponse, HealthResponse, NotReadyResponse, ReadyResponse

_NOT_READY: Responses = {503: {"description": "Not ready.", **content_of(NotReadyResponse, PROBLEM_JSON)}}

router = APIRouter(tags=["operations"], responses=errors_of(ErrorResponse))


@router.get("/healthz", response_model=HealthResponse)
async def healthz() -> Response:
    """Whether the process responds. For liveness probes."""
    return json_response({"status": "ok"})


@router.get("/readyz", response_model=ReadyResponse, responses=_NOT_READY)
async def readyz(engine: EngineDependency) -> Response:
    """Whether to send requests here: a model is loaded and not too old, and the store can be read."""
    engine.check_ready()
    return json_response({"version": engine.current_version}, headers=version_header(engine.current_version))


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, engine: EngineDependency) -> Response:
    """Metrics for Prometheus."""
    text, content_type = engine.metrics.text(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": content_type})
