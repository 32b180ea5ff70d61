"""The endpoints of the Open Inference Protocol, version 2, and of MLflow's scoring protocol."""

from typing import Annotated

from fastapi import Path, Request, Response

from streampca.sidecar import mlflow
from streampca.sidecar.compute import Answer
from streampca.sidecar.inference_protocol import messages
from streampca.sidecar.inference_protocol.messages import Inference
from streampca.sidecar.inference_protocol.schemas import ModelMetadata, ModelTensor
from streampca.sidecar.request import RawRequest, RequestError
from streampca.sidecar.request_arrays import Limits
from streampca.sidecar.responses import json_response, version_header
from streampca.sidecar.v1.endpoints import Endpoints
from streampca.sidecar.v1.schemas import VersionNumber
from streampca.version import __version__

ModelName = Annotated[str, Path(description="The topic.")]
ModelVersion = Annotated[VersionNumber, Path(description="Of the model.")]


class V2Endpoints:
    """The endpoints, one method each."""

    def __init__(self, endpoints: Endpoints, topic: str) -> None:
        self._endpoints, self._topic = endpoints, topic

    async def server_metadata(self) -> Response:
        """The name and the version of this server."""
        extensions = ["binary_tensor_data", "model_repository"]
        return json_response({"name": "streampca", "version": __version__, "extensions": extensions})

    async def server_live(self) -> Response:
        """Whether the process responds."""
        return json_response({"live": True})

    async def server_ready(self) -> Response:
        """Whether to send requests here, as /readyz says."""
        return self._ready({})

    async def model_ready(self, model_name: ModelName) -> Response:
        """Whether the newest version can be used."""
        self._check(model_name)
        return self._ready({"name": model_name})

    async def version_ready(self, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Whether a version can be used."""
        self._check(model_name)
        await self._endpoints.find(model_version)
        return self._ready({"name": model_name})

    async def model_metadata(self, model_name: ModelName) -> Response:
        """Inputs, outputs and versions of the newest model."""
        return await self._metadata(model_name, None)

    async def version_metadata(self, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Inputs and outputs of a version."""
        return await self._metadata(model_name, model_version)

    async def repository_index(self) -> Response:
        """All versions in the store."""
        versions = await self._endpoints.versions()
        return json_response([
            {"name": self._topic, "version": str(version), "state": "READY", "reason": ""} for version in versions
        ])  # fmt: skip

    async def infer(self, request: Request) -> Response:
        """Coordinates, squared distances, reconstructions, scores or p-values of vectors, by the newest model."""
        return await self._infer(request, None)

    async def infer_version(self, request: Request) -> Response:
        """Coordinates and others of vectors by a version of the model."""
        text = request.path_params["model_version"]
        if not (text.isdecimal() and len(text) < 19):
            raise RequestError(404, f"there is no model version {text[:40]}; versions are numbers of messages")
        return await self._infer(request, int(text))

    async def ping(self) -> Response:
        """Whether to send requests here, as /readyz says."""
        self._endpoints.check_ready()
        return Response("\n", media_type="text/plain")

    async def version(self) -> Response:
        """The version of this server."""
        return Response(__version__, media_type="text/plain")

    async def invocations(self, request: Request) -> Response:
        """Coordinates of vectors, as MLflow's scoring server answers."""
        return await self._endpoints.act(request, "project", mlflow.parse, mlflow.predict, mlflow.respond)

    async def _infer(self, request: Request, version: int | None) -> Response:
        self._check(request.path_params["model_name"])

        def parse(raw: RawRequest, limits: Limits) -> Inference:
            return messages.parse(raw, version, limits)

        def respond(inference: Inference, answer: Answer, raw: RawRequest) -> Response:
            return messages.respond(self._topic, inference, answer, raw)

        return await self._endpoints.act(request, "project", parse, messages.infer, respond, if_quick=True)

    async def _metadata(self, name: str, version: int | None) -> Response:
        self._check(name)
        published = await self._endpoints.find(version)
        d, k = published.model.dimensions, published.model.n_components
        shapes = {"coordinates": [-1, k], "reconstruction": [-1, d]}
        versions = [version] if version is not None else await self._endpoints.versions()
        metadata = ModelMetadata(
            name=name,
            versions=[str(each) for each in versions],
            platform="streampca",
            inputs=[ModelTensor(name="vectors", datatype="FP64", shape=[-1, d])],
            outputs=[ModelTensor(name=n, datatype="FP64", shape=shapes.get(n, [-1])) for n in messages.OUTPUTS],
        )
        return json_response(metadata.model_dump(), headers=version_header(published.version))

    def _ready(self, named: dict[str, str]) -> Response:
        self._endpoints.check_ready()
        return json_response({**named, "ready": True})

    def _check(self, name: str) -> None:
        if name != self._topic:
            raise RequestError(404, f"there is no model {name[:80]!r}; this sidecar serves {self._topic!r}")
