"""This project's own protocol, `/v1`, with probes and metrics."""

from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.responses import PlainTextResponse

from streampca.fold.model_file import PublishedModel
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
from streampca.sidecar.parsing import Limits, parse
from streampca.sidecar.request import BINARY_TYPES, NPY, RawRequest

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
        """Add the endpoints to the application, with their descriptions for `/openapi.json`."""
        errors = describe_errors()
        self._add_vectors_endpoints(app, errors)
        for path, model_endpoint, response_model, responses in (
            ("/v1/model", self.model, schemas.ModelResponse, errors),
            ("/v1/model/components", self.components, schemas.ComponentsResponse, errors | describe_binary_answer(NPY)),
            ("/v1/models", self.models, schemas.ModelsResponse, errors),
            ("/v1/models/{version}", self.model_version, schemas.ModelResponse, errors),
        ):
            app.get(path, tags=["model"], response_model=response_model, responses=responses)(model_endpoint)
        tags: list[str | Enum] = ["operations"]
        app.get("/healthz", tags=tags, response_model=schemas.HealthResponse)(self.healthz)
        not_ready: Responses = {503: {"description": "Not ready.", **describe_content(NotReadyResponse, PROBLEM_JSON)}}
        app.get("/readyz", tags=tags, response_model=schemas.ReadyResponse, responses=not_ready)(self.readyz)
        app.get("/metrics", tags=tags, response_class=PlainTextResponse)(self.metrics)

    def _add_vectors_endpoints(self, app: FastAPI, errors: Responses) -> None:
        """Add the endpoints that take vectors."""
        for path, endpoint, request, query, response in (
            ("/v1/project", self.project, schemas.ProjectRequest, schemas.ProjectQuery, schemas.ProjectResponse),
            (
                "/v1/reconstruct", self.reconstruct,
                schemas.ReconstructRequest, schemas.ReconstructQuery, schemas.ReconstructResponse,
            ),
            ("/v1/score", self.score, schemas.ScoreRequest, schemas.ScoreQuery, schemas.ScoreResponse),
        ):  # fmt: skip
            # The engine parses the request, so FastAPI must not: the route is a `PlainRoute`, which `app.post` cannot
            # create.
            app.router.add_api_route(
                path, endpoint, methods=["POST"], route_class_override=PlainRoute, tags=["vectors"],
                response_model=response, responses=errors | describe_binary_answer(NPZ),
                openapi_extra=describe_request(request, *BINARY_TYPES, query=query),
            )  # fmt: skip

    async def project(self, request: Request) -> Response:
        """Coordinates of vectors in the basis of the components, and each vector's distance from their subspace."""
        return await self._engine.answer(
            request,
            operation="project",
            parse=partial(parse, schema=schemas.ProjectRequest, query=schemas.ProjectQuery),
            compute=compute.project,
            respond=respond,
            run_on_loop_if_quick=True,  # waking a thread takes as long as a quick request
        )

    async def reconstruct(self, request: Request) -> Response:
        """Vectors from coordinates; or vectors as the components reconstruct them, with the squared error of each."""
        return await self._engine.answer(
            request,
            operation="reconstruct",
            parse=partial(parse, schema=schemas.ReconstructRequest, query=schemas.ReconstructQuery),
            compute=compute.reconstruct,
            respond=respond,
        )

    async def score(self, request: Request) -> Response:
        """Scores of vectors: T², squared distance, score, p-values, and the dimensions that contribute most."""
        return await self._engine.answer(
            request,
            operation="score",
            parse=partial(parse, schema=schemas.ScoreRequest, query=schemas.ScoreQuery),
            compute=self._compute_score,
            respond=respond,
        )

    def _compute_score(
        self, published: PublishedModel, request: schemas.ScoreRequest, limits: Limits
    ) -> compute.Answer:
        """Return the scores of vectors, and the labels of records if contributions are asked for."""
        answer = compute.score(published, request, limits)
        labels = self._engine.find_labels(request) if request.contributions else None
        if labels is None:
            return answer
        return answer._replace(fields=answer.fields | {"labels": labels})

    async def model(self, request: Request, version: VersionQuery = None) -> Response:
        """A model's dimensions, variances, losses and position in the stream."""
        published = await self._engine.find(version)
        models = self._engine.models
        is_compared = published is models.compared_model  # only the newest model is compared with pinned ones
        drift_by_pin = models.drifts if is_compared else {}
        etag = _make_etag(published, drift_by_pin)
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"ETag": etag})
        response = answer_response(compute.describe_model(published, drift_by_pin))
        response.headers["ETag"] = etag
        return response

    async def components(self, request: Request, version: VersionQuery = None) -> Response:
        """The axes: JSON with mean, scale and variances, or (Accept: application/x-npy) the matrix for `numpy.load`."""
        engine = self._engine
        published = await engine.find(version)
        if not accepts(request.headers.get("accept", ""), NPY):

            def respond_in_json() -> Response:
                return answer_response(compute.describe_components(published, engine.limits))

            return await engine.run_in_thread(respond_in_json)
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


def _make_etag(published: PublishedModel, drift_by_pin: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the ETag of a model's metadata, which change with the model, and when a pin is set, moved or removed."""
    pins = "".join(f"-{name}-{drift['version']}" for name, drift in drift_by_pin.items())
    return f'"{published.version}-{published.published_at:.3f}{pins}"'


def respond(_: Any, answer: compute.Answer, raw: RawRequest) -> Response:
    """Return the response in the form that the request's Accept header asks for."""
    return answer_response(answer, raw.header(b"accept"))
