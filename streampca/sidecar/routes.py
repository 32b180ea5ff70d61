"""Which path leads to which endpoint, and how `/openapi.json` describes it."""

from typing import Any

from fastapi import FastAPI
from starlette.responses import PlainTextResponse

from streampca.sidecar.inference_protocol import schemas as v2_schemas
from streampca.sidecar.inference_protocol.endpoints import ModelName, ModelVersion, V2Endpoints
from streampca.sidecar.openapi import (
    NPY_ANSWER,
    NPZ_ANSWER,
    ROWS_BODY,
    TENSOR_ANSWER,
    DirectRoute,
    Endpoint,
    described,
)  # fmt: skip
from streampca.sidecar.page.endpoints import PageEndpoints
from streampca.sidecar.page.files import PageFiles
from streampca.sidecar.v1 import schemas
from streampca.sidecar.v1.endpoints import Endpoints

_VECTORS, _MODEL, _OPERATIONS, _OPEN, _MLFLOW = "vectors", "model", "operations", "open inference protocol", "MLflow"


def add_routes(app: FastAPI, endpoints: Endpoints, v2: V2Endpoints, page: PageEndpoints) -> None:
    """Add all routes to the application."""
    _add_v1(app, endpoints)
    _add_v2(app, v2)
    for path, page_endpoint in (
        ("/v1/page/history", page.history), ("/v1/page/model", page.model), ("/v1/page/recent", page.recent),
        ("/v1/page/workers", page.workers),
    ):  # fmt: skip
        app.get(path, include_in_schema=False)(page_endpoint)
    files = PageFiles()
    app.add_api_route("/", files.index, include_in_schema=False)
    app.mount("/page", files)


def _post(app: FastAPI, path: str, tag: str, endpoint: Any, answer: Any, **more: Any) -> None:
    app.router.add_api_route(
        path, endpoint, methods=["POST"], tags=[tag], response_model=answer, route_class_override=DirectRoute, **more
    )


def _add_v1(app: FastAPI, endpoints: Endpoints) -> None:
    rows: tuple[tuple[Endpoint, Any, Any, Any], ...] = (
        (endpoints.project, schemas.ProjectRequest, schemas.ProjectQuery, schemas.ProjectResponse),
        (endpoints.reconstruct, schemas.ReconstructRequest, schemas.ReconstructQuery, schemas.ReconstructResponse),
        (endpoints.score, schemas.ScoreRequest, schemas.ScoreQuery, schemas.ScoreResponse),
    )
    for endpoint, body, query, answer in rows:
        documented = described(endpoint, body, query)
        path = f"/v1/{documented.__name__}"
        _post(app, path, _VECTORS, documented, answer, responses=NPZ_ANSWER, openapi_extra=ROWS_BODY)
    not_ready: dict[int | str, dict[str, Any]] = {503: {"model": schemas.NotReadyResponse}}
    for path, tag, get, answer, more in (
        ("/v1/model", _MODEL, endpoints.model, schemas.ModelResponse, {}),
        ("/v1/model/components", _MODEL, endpoints.components, schemas.ComponentsResponse, NPY_ANSWER),
        ("/v1/models", _MODEL, endpoints.models, schemas.ModelsResponse, {}),
        ("/v1/models/{version}", _MODEL, endpoints.model_version, schemas.ModelResponse, {}),
        ("/healthz", _OPERATIONS, endpoints.healthz, schemas.HealthResponse, {}),
        ("/readyz", _OPERATIONS, endpoints.readyz, schemas.ReadyResponse, not_ready),
    ):
        app.get(path, tags=[tag], response_model=answer, responses=more)(get)
    app.get("/metrics", tags=[_OPERATIONS], response_class=PlainTextResponse)(endpoints.metrics)


def _add_v2(app: FastAPI, v2: V2Endpoints) -> None:
    model = "/v2/models/{model_name}"
    version = model + "/versions/{model_version}"
    for path, get, answer in (
        ("/v2", v2.server_metadata, v2_schemas.ServerMetadata),
        ("/v2/health/live", v2.server_live, v2_schemas.Live),
        ("/v2/health/ready", v2.server_ready, v2_schemas.Ready),
        (model, v2.model_metadata, v2_schemas.ModelMetadata),
        (version, v2.version_metadata, v2_schemas.ModelMetadata),
        (f"{model}/ready", v2.model_ready, v2_schemas.Ready),
        (f"{version}/ready", v2.version_ready, v2_schemas.Ready),
    ):
        app.get(path, tags=[_OPEN], response_model=answer)(get)
    index = list[v2_schemas.RepositoryEntry]
    app.post("/v2/repository/index", tags=[_OPEN], response_model=index)(v2.repository_index)
    request, answered = v2_schemas.InferenceRequest, v2_schemas.InferenceResponse
    infer = described(v2.infer, request, model_name=ModelName)
    infer_version = described(v2.infer_version, request, model_name=ModelName, model_version=ModelVersion)
    _post(app, f"{model}/infer", _OPEN, infer, answered, responses=TENSOR_ANSWER)
    _post(app, f"{version}/infer", _OPEN, infer_version, answered, responses=TENSOR_ANSWER)
    _post(app, "/invocations", _MLFLOW, described(v2.invocations, v2_schemas.Instances), v2_schemas.Predictions)
    app.get("/ping", tags=[_MLFLOW], response_class=PlainTextResponse)(v2.ping)
    app.get("/version", tags=[_MLFLOW], response_class=PlainTextResponse)(v2.version)
