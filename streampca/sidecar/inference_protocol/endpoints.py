"""The Open Inference Protocol, version 2, of Triton's and KServe's clients. The model's name is the topic."""

from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request, Response

from streampca.sidecar.engine import Engine
from streampca.sidecar.errors import Problem, RequestError
from streampca.sidecar.inference_protocol import messages, schemas
from streampca.sidecar.openapi import binary_answer, body_of, errors_of
from streampca.sidecar.request import BYTES
from streampca.sidecar.responses import JSON, json_response, version_header
from streampca.sidecar.v1.schemas import ErrorResponse, VersionNumber
from streampca.version import __version__

ModelName = Annotated[str, Path(description="The topic.")]
ModelVersion = Annotated[VersionNumber, Path(description="Version of the model.")]


class InferenceEndpoints:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add_to(self, app: FastAPI) -> None:
        options: dict[str, Any] = {"tags": ["open inference protocol"], "responses": errors_of(ErrorResponse, JSON)}
        model = "/v2/models/{model_name}"
        version = model + "/versions/{model_version}"
        for path, get, answer in (
            ("/v2", self.server_metadata, schemas.ServerMetadata),
            ("/v2/health/live", self.server_live, schemas.Live),
            ("/v2/health/ready", self.server_ready, schemas.Ready),
            (model, self.model_metadata, schemas.ModelMetadata),
            (version, self.version_metadata, schemas.ModelMetadata),
            (f"{model}/ready", self.model_ready, schemas.Ready),
            (f"{version}/ready", self.version_ready, schemas.Ready),
        ):
            app.get(path, response_model=answer, **options)(get)
        index = list[schemas.RepositoryEntry]
        app.post("/v2/repository/index", response_model=index, **options)(self.repository_index)
        options["responses"] |= binary_answer(BYTES)
        options |= {"response_model": schemas.InferenceResponse, "openapi_extra": body_of(schemas.InferenceRequest)}
        app.post(f"{model}/infer", **options)(self.infer)
        app.post(f"{version}/infer", **options)(self.infer_version)

    async def server_metadata(self) -> Response:
        """The name and the version of this server."""
        extensions = ["binary_tensor_data", "model_repository"]
        return json_response({"name": "streampca", "version": __version__, "extensions": extensions})

    async def server_live(self) -> Response:
        """Answer as long as the process responds."""
        return json_response({"live": True})

    async def server_ready(self) -> Response:
        """Succeed if requests should be sent here, as /readyz does."""
        self._engine.check_ready()
        return json_response({"ready": True})

    async def model_ready(self, model_name: ModelName) -> Response:
        """Succeed if the newest version can be used."""
        self._check(model_name)
        self._engine.check_ready()
        return json_response({"name": model_name, "ready": True})

    async def version_ready(self, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Succeed if a version can be used."""
        await self._engine.find(model_version)
        return await self.model_ready(model_name)

    async def model_metadata(self, model_name: ModelName) -> Response:
        """Inputs, outputs and versions of the newest model."""
        return await self._metadata(model_name, None, await self._engine.versions())

    async def version_metadata(self, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Inputs and outputs of a version."""
        return await self._metadata(model_name, model_version, [model_version])

    async def repository_index(self) -> Response:
        """All versions in the store."""
        entry = {"name": self._engine.topic, "state": "READY", "reason": ""}
        return json_response([entry | {"version": str(version)} for version in await self._engine.versions()])

    async def infer(self, request: Request, model_name: ModelName) -> Response:
        """Coordinates, squared distances, reconstructions, scores or p-values of vectors, by the newest model."""
        return await self._infer(request, model_name, None)

    async def infer_version(self, request: Request, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Coordinates and others of vectors by a version of the model."""
        return await self._infer(request, model_name, model_version)

    async def _infer(self, request: Request, name: str, version: int | None) -> Response:
        self._check(name)
        parse, respond = partial(messages.parse, version=version), partial(messages.respond, model=name)
        return await self._engine.answer(
            request, operation="project", parse=parse, compute=messages.infer, respond=respond, if_quick=True
        )

    async def _metadata(self, name: str, version: int | None, versions: list[int]) -> Response:
        self._check(name)
        published = await self._engine.find(version)
        d, k = published.model.dimensions, published.model.n_components
        shapes = {"coordinates": [-1, k], "reconstruction": [-1, d]}
        tensors = {
            "inputs": [{"name": "vectors", "datatype": "FP64", "shape": [-1, d]}],
            "outputs": [{"name": n, "datatype": "FP64", "shape": shapes.get(n, [-1])} for n in messages.OUTPUTS],
        }
        about = {"name": name, "versions": [*map(str, versions)], "platform": "streampca", **tensors}
        return json_response(about, version_header(published.version))

    def _check(self, name: str) -> None:
        if name != self._engine.topic:
            text = f"there is no model {name[:80]!r}; this sidecar serves {self._engine.topic!r}"
            raise RequestError(Problem.UNKNOWN_MODEL, text)
