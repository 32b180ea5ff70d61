"""This project's own dialect, `/v1`."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import WithJsonSchema

from streampca.sidecar import compute
from streampca.sidecar.compute import Answer
from streampca.sidecar.engine import EngineDependency
from streampca.sidecar.errors import Problem, RequestError
from streampca.sidecar.openapi import binary_answer, body_of, errors_of
from streampca.sidecar.parsing import parse
from streampca.sidecar.request import BINARY, NPY, RawRequest
from streampca.sidecar.responses import NPZ, accepts, answer_response, bytes_response, json_response, version_header
from streampca.sidecar.v1 import schemas
from streampca.sidecar.v1.schemas import ANY_VERSION, AnyVersion, RowsRequest

VersionQuery = Annotated[AnyVersion, Query(description="Version of the model; the newest if absent.")]
VersionPath = Annotated[str, WithJsonSchema(ANY_VERSION), Path(description="Version of the model, or latest.")]

router = APIRouter(prefix="/v1", responses=errors_of(schemas.ErrorResponse))


@router.post(
    "/project", tags=["vectors"], response_model=schemas.ProjectResponse, responses=binary_answer(NPZ),
    openapi_extra=body_of(schemas.ProjectRequest, *BINARY),
)  # fmt: skip
async def project(
    request: Request, engine: EngineDependency, query: Annotated[schemas.ProjectQuery, Query()]
) -> Response:
    """Coordinates of vectors in the basis of the components, and each vector's distance from their subspace."""
    read = partial(parse, schema=schemas.ProjectRequest, query=query)
    return await engine.answer(
        request, operation="project", parse=read, compute=compute.project, respond=_respond, if_quick=True
    )


@router.post(
    "/reconstruct", tags=["vectors"], response_model=schemas.ReconstructResponse, responses=binary_answer(NPZ),
    openapi_extra=body_of(schemas.ReconstructRequest, *BINARY),
)  # fmt: skip
async def reconstruct(
    request: Request, engine: EngineDependency, query: Annotated[schemas.ReconstructQuery, Query()]
) -> Response:
    """Vectors from coordinates; or vectors as the components reconstruct them, with the squared error of each."""
    read = partial(parse, schema=schemas.ReconstructRequest, query=query)
    return await engine.answer(
        request, operation="reconstruct", parse=read, compute=compute.reconstruct, respond=_respond
    )


@router.post(
    "/score", tags=["vectors"], response_model=schemas.ScoreResponse, responses=binary_answer(NPZ),
    openapi_extra=body_of(schemas.ScoreRequest, *BINARY),
)  # fmt: skip
async def score(request: Request, engine: EngineDependency, query: Annotated[schemas.ScoreQuery, Query()]) -> Response:
    """How unusual vectors are: T², squared distance, score, p-values, and the dimensions that contribute most."""
    read = partial(parse, schema=schemas.ScoreRequest, query=query)
    return await engine.answer(request, operation="score", parse=read, compute=compute.score, respond=_respond)


def _respond(_: RowsRequest, answer: Answer, raw: RawRequest) -> Response:
    return answer_response(answer, raw.header(b"accept"))


@router.get("/model", tags=["model"], response_model=schemas.ModelResponse)
async def model(request: Request, engine: EngineDependency, version: VersionQuery = None) -> Response:
    """A model's dimensions, variances, losses and position in the stream."""
    published = await engine.find(version)
    etag = f'"{published.version}-{published.published_at:.3f}"'
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"ETag": etag})
    response = answer_response(compute.model_info(published))
    response.headers["ETag"] = etag
    return response


@router.get(
    "/model/components", tags=["model"], response_model=schemas.ComponentsResponse, responses=binary_answer(NPY)
)
async def components(request: Request, engine: EngineDependency, version: VersionQuery = None) -> Response:
    """The axes: JSON with variances and mean, or (Accept: application/x-npy) the matrix alone for `numpy.load`."""
    published = await engine.find(version)
    if not accepts(request.headers.get("accept", ""), NPY):
        return await engine.in_thread(lambda: answer_response(compute.components(published, engine.limits)))
    disposition = {"Content-Disposition": f'attachment; filename="components-{published.version}.npy"'}
    return bytes_response(compute.components_npy(published), NPY, version_header(published.version) | disposition)


@router.get("/models", tags=["model"], response_model=schemas.ModelsResponse)
async def models(engine: EngineDependency) -> Response:
    """The versions in the store."""
    versions, current = await engine.versions(), engine.current_version
    return json_response({"version": current, "versions": versions}, headers=version_header(current))


@router.get("/models/{version}", tags=["model"], response_model=schemas.ModelResponse)
async def model_version(request: Request, engine: EngineDependency, version: VersionPath) -> Response:
    """Dimensions, variances, losses and position of a version, or of `latest`."""
    if version != "latest" and not (version.isdecimal() and len(version) < 20):
        text = f"{version[:40]!r} is no version, but a number is, or latest"
        raise RequestError(Problem.UNKNOWN_VERSION, f"{text}; {_use_v2(engine.topic)}")
    return await model(request, engine, None if version == "latest" else int(version))


@router.post("/models/{name}:predict", include_in_schema=False)
async def predict(engine: EngineDependency) -> Response:
    """Refuse a request of KServe's first protocol."""
    raise RequestError(Problem.UNKNOWN_PATH, f"there is no :predict here; {_use_v2(engine.topic)}/infer")


def _use_v2(topic: str) -> str:
    return f"of KServe's protocols this sidecar speaks version 2: use /v2/models/{topic}"
