"""The Open Inference Protocol, version 2, of Triton's and KServe's clients. The model's name is the topic."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from streampca.sidecar.compute import Answer
from streampca.sidecar.engine import Engine, EngineDependency
from streampca.sidecar.errors import Problem, RequestError
from streampca.sidecar.inference_protocol import messages, schemas
from streampca.sidecar.openapi import binary_answer, body_of, errors_of
from streampca.sidecar.request import BYTES, RawRequest
from streampca.sidecar.responses import JSON, json_response, version_header
from streampca.sidecar.v1.schemas import ErrorResponse, VersionNumber
from streampca.version import __version__

Version = Annotated[VersionNumber, Path(alias="model_version", description="Version of the model.")]


async def _check_name(model_name: Annotated[str, Path(description="The topic.")], engine: EngineDependency) -> None:
    if model_name != engine.topic:
        text = f"there is no model {model_name[:80]!r}; this sidecar serves {engine.topic!r}"
        raise RequestError(Problem.UNKNOWN_MODEL, text)


router = APIRouter(prefix="/v2", tags=["open inference protocol"], responses=errors_of(ErrorResponse, JSON))
_model = APIRouter(prefix="/models/{model_name}", dependencies=[Depends(_check_name)])
_VERSION = "/versions/{model_version}"


@router.get("", response_model=schemas.ServerMetadata)
async def server_metadata() -> Response:
    """The name and the version of this server."""
    extensions = ["binary_tensor_data", "model_repository"]
    return json_response({"name": "streampca", "version": __version__, "extensions": extensions})


@router.get("/health/live", response_model=schemas.Live)
async def server_live() -> Response:
    """Whether the process responds."""
    return json_response({"live": True})


@router.get("/health/ready", response_model=schemas.Ready)
async def server_ready(engine: EngineDependency) -> Response:
    """Whether to send requests here, as /readyz says."""
    engine.check_ready()
    return json_response({"ready": True})


@router.post("/repository/index", response_model=list[schemas.RepositoryEntry])
async def repository_index(engine: EngineDependency) -> Response:
    """All versions in the store."""
    entry = {"name": engine.topic, "state": "READY", "reason": ""}
    return json_response([entry | {"version": str(version)} for version in await engine.versions()])


@_model.get("", response_model=schemas.ModelMetadata)
async def model_metadata(engine: EngineDependency) -> Response:
    """Inputs, outputs and versions of the newest model."""
    return await _metadata(engine, None)


@_model.get(_VERSION, response_model=schemas.ModelMetadata)
async def version_metadata(engine: EngineDependency, version: Version) -> Response:
    """Inputs and outputs of a version."""
    return await _metadata(engine, version)


@_model.get("/ready", response_model=schemas.Ready)
async def model_ready(engine: EngineDependency) -> Response:
    """Whether the newest version can be used."""
    engine.check_ready()
    return json_response({"name": engine.topic, "ready": True})


@_model.get(f"{_VERSION}/ready", response_model=schemas.Ready)
async def version_ready(engine: EngineDependency, version: Version) -> Response:
    """Whether a version can be used."""
    await engine.find(version)
    return await model_ready(engine)


@_model.post(
    "/infer", response_model=schemas.InferenceResponse, responses=binary_answer(BYTES),
    openapi_extra=body_of(schemas.InferenceRequest),
)  # fmt: skip
async def infer(request: Request, engine: EngineDependency) -> Response:
    """Coordinates, squared distances, reconstructions, scores or p-values of vectors, by the newest model."""
    return await _infer(request, engine, None)


@_model.post(
    f"{_VERSION}/infer", response_model=schemas.InferenceResponse, responses=binary_answer(BYTES),
    openapi_extra=body_of(schemas.InferenceRequest),
)  # fmt: skip
async def infer_version(request: Request, engine: EngineDependency, version: Version) -> Response:
    """Coordinates and others of vectors by a version of the model."""
    return await _infer(request, engine, version)


async def _infer(request: Request, engine: Engine, version: int | None) -> Response:
    def respond(inference: messages.Inference, answer: Answer, raw: RawRequest) -> Response:
        return messages.respond(engine.topic, inference, answer)

    parse = partial(messages.parse, version=version)
    return await engine.answer(
        request, operation="project", parse=parse, compute=messages.infer, respond=respond, if_quick=True
    )


async def _metadata(engine: Engine, version: int | None) -> Response:
    published = await engine.find(version)
    d, k = published.model.dimensions, published.model.n_components
    shapes = {"coordinates": [-1, k], "reconstruction": [-1, d]}
    metadata = {
        "name": engine.topic,
        "versions": [str(version) for version in ([version] if version is not None else await engine.versions())],
        "platform": "streampca",
        "inputs": [{"name": "vectors", "datatype": "FP64", "shape": [-1, d]}],
        "outputs": [{"name": name, "datatype": "FP64", "shape": shapes.get(name, [-1])} for name in messages.OUTPUTS],
    }
    return json_response(metadata, headers=version_header(published.version))


router.include_router(_model)
