"""This project's own protocol, `/v1`, with probes and metrics."""

from enum import Enum
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.responses import PlainTextResponse

from streampca.sidecar import compute, schemas
from streampca.sidecar.engine import (
    NPZ,
    Endpoints,
    accepts,
    answer_response,
    bytes_response,
    json_response,
    version_header,
)
from streampca.sidecar.errors import PROBLEM_JSON, NotReadyResponse
from streampca.sidecar.openapi import (
    Responses,
    describe_binary_answer,
    describe_content,
    describe_errors,
    describe_request,
)
from streampca.sidecar.parsing import parse
from streampca.sidecar.request import BINARY, NPY

VersionQuery = Annotated[
    schemas.AnyVersion, Query(description="Version of the model, or a pin's name; the newest if absent.")
]
VersionPath = Annotated[schemas.PathVersion, Path(description="Version of the model, the name of a pin, or latest.")]


class PlainRoute(APIRoute):
    """A route that passes only the request to its endpoint.

    As an optimisation, it skips FastAPI's dependencies, which take longer than a projection.
    """

    def get_route_handler(self) -> Any:
        return self.endpoint


class V1Endpoints(Endpoints):
    """The endpoints of the protocol, and those for operations."""

    def add_to(self, app: FastAPI) -> None:
        """Add the endpoints to the application."""
        errors = describe_errors()
        for operation, request, query, response in (
            (compute.project, schemas.ProjectRequest, schemas.ProjectQuery, schemas.ProjectResponse),
            (compute.reconstruct, schemas.ReconstructRequest, schemas.ReconstructQuery, schemas.ReconstructResponse),
            (compute.score, schemas.ScoreRequest, schemas.ScoreQuery, schemas.ScoreResponse),
        ):
            app.router.add_api_route(
                f"/v1/{operation.__name__}",
                partial(self._answer_rows, operation, partial(parse, schema=request, query=query)),
                name=operation.__name__, description=operation.__doc__, tags=["vectors"], methods=["POST"],
                response_model=response, responses=errors | describe_binary_answer(NPZ),
                openapi_extra=describe_request(request, *BINARY, query=query), route_class_override=PlainRoute,
            )  # fmt: skip
        for path, endpoint, response_model in (
            ("/model", self.model, schemas.ModelResponse),
            ("/model/components", self.components, schemas.ComponentsResponse),
            ("/models", self.models, schemas.ModelsResponse),
            ("/models/{version}", self.model_version, schemas.ModelResponse),
        ):
            has_binary_form = endpoint == self.components
            responses = errors | describe_binary_answer(NPY) if has_binary_form else errors
            app.get(f"/v1{path}", tags=["model"], response_model=response_model, responses=responses)(endpoint)
        tags: list[str | Enum] = ["operations"]
        app.get("/healthz", tags=tags, response_model=schemas.HealthResponse)(self.healthz)
        not_ready: Responses = {503: {"description": "Not ready.", **describe_content(NotReadyResponse, PROBLEM_JSON)}}
        app.get("/readyz", tags=tags, response_model=schemas.ReadyResponse, responses=not_ready)(self.readyz)
        app.get("/metrics", tags=tags, response_class=PlainTextResponse)(self.metrics)

    async def _answer_rows(self, operation: Any, parse_body: Any, request: Request) -> Response:
        """Apply a function of `compute` to the rows of a request. Small projections are quick."""
        return await self._engine.answer(
            request,
            operation=operation.__name__,
            parse=parse_body,
            compute=operation,
            respond=lambda _, answer, raw: answer_response(answer, raw.header(b"accept")),
            if_quick=operation is compute.project,
        )

    async def model(self, request: Request, version: VersionQuery = None) -> Response:
        """A model's dimensions, variances, losses and position in the stream."""
        published = await self._engine.find(version)
        models = self._engine.models
        drift = models.drifts if published is models.compared else {}  # only the newest model is compared with pins
        pins = "".join(f"-{name}-{moved['version']}" for name, moved in drift.items())
        etag = f'"{published.version}-{published.published_at:.3f}{pins}"'
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"ETag": etag})
        response = answer_response(compute.describe_model(published, drift))
        response.headers["ETag"] = etag
        return response

    async def components(self, request: Request, version: VersionQuery = None) -> Response:
        """The axes: JSON with mean, scale and variances, or (Accept: application/x-npy) the matrix for `numpy.load`."""
        engine = self._engine
        published = await engine.find(version)
        if not accepts(request.headers.get("accept", ""), NPY):
            return await engine.in_thread(
                lambda: answer_response(compute.describe_components(published, engine.limits))
            )
        headers = version_header(published.version)
        headers["Content-Disposition"] = f'attachment; filename="components-{published.version}.npy"'
        return bytes_response(compute.encode_components(published), NPY, headers)

    async def models(self) -> Response:
        """The versions in the store, and those that are pinned."""
        versions = await self._engine.versions()
        current = self._engine.current_version
        content = {"version": current, "versions": versions, "pins": self._engine.models.pins}
        return json_response(content, version_header(current))

    async def model_version(self, request: Request, version: VersionPath) -> Response:
        """Dimensions, variances, losses and position of a version, of a pinned one by name, or of `latest`."""
        return await self.model(request, version)

    async def healthz(self) -> Response:
        """Answer as long as the process responds. For liveness probes."""
        return json_response({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Succeed if requests should be sent here: a model is loaded and not too old, and the store can be read."""
        self._engine.check_ready(request)
        version = self._engine.current_version
        return json_response({"version": version}, version_header(version))

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus; all, or those named by `name[]`."""
        names = request.query_params.getlist("name[]")
        text, content_type = self._engine.metrics.text(request.headers.get("accept", ""), names)
        return Response(text, headers={"Content-Type": content_type})
