"""The Open Inference Protocol, version 2, which clients of Triton and KServe use. The name of the model is the topic.

A request or an answer is JSON, or JSON followed by the bytes of tensors. The header `Inference-Header-Content-Length`
says where the JSON ends, and `binary_data_size` in the JSON says how many bytes a tensor has.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, get_args

import numpy as np
from fastapi import FastAPI, Path, Request, Response

from streampca.fold.model_file import PublishedModel
from streampca.pca.arrays import Array
from streampca.sidecar import compute
from streampca.sidecar.engine import JSON, Endpoints, bytes_response, encode_json, json_response, version_header
from streampca.sidecar.errors import Problem, RequestError, invalid
from streampca.sidecar.inference_protocol import schemas
from streampca.sidecar.openapi import describe_binary_answer, describe_errors, describe_request
from streampca.sidecar.parsing import Limits, pack_rows, parse_json_object, refuse_query, validate
from streampca.sidecar.request import JSON_LENGTH_HEADER, OCTET_STREAM, RawRequest
from streampca.sidecar.schemas import SCORES, PathVersion, ProjectRequest
from streampca.version import __version__

ModelName = Annotated[str, Path(description="The topic.")]
ModelVersion = Annotated[PathVersion, Path(description="Version of the model, the name of a pin, or latest.")]

_DATATYPES = {"FP32": "<f4", "FP64": "<f8"}
_DEFAULT_OUTPUTS: tuple[schemas.OutputName, ...] = ("coordinates", "residual")


class InferenceEndpoints(Endpoints):
    """The endpoints of the protocol."""

    def add_to(self, app: FastAPI) -> None:
        """Add the endpoints to the application."""
        options: dict[str, Any] = {"tags": ["open inference protocol"], "responses": describe_errors(JSON)}
        model_path = "/v2/models/{model_name}"
        version_path = model_path + "/versions/{model_version}"
        for path, endpoint, response_model in (
            ("/v2", self.server_metadata, schemas.ServerMetadata),
            ("/v2/health/live", self.server_live, schemas.Live),
            ("/v2/health/ready", self.server_ready, schemas.Ready),
            (model_path, self.model_metadata, schemas.ModelMetadata),
            (version_path, self.version_metadata, schemas.ModelMetadata),
            (f"{model_path}/ready", self.model_ready, schemas.Ready),
            (f"{version_path}/ready", self.version_ready, schemas.Ready),
        ):
            app.get(path, response_model=response_model, **options)(endpoint)
        app.post("/v2/repository/index", response_model=list[schemas.RepositoryEntry], **options)(self.repository_index)
        infer_options = options | {
            "responses": options["responses"] | describe_binary_answer(OCTET_STREAM),
            "response_model": schemas.InferenceResponse,
            "openapi_extra": describe_request(schemas.InferenceRequest),
        }
        app.post(f"{model_path}/infer", **infer_options)(self.infer)
        app.post(f"{version_path}/infer", **infer_options)(self.infer_version)

    async def server_metadata(self) -> Response:
        """The name and the version of this server."""
        extensions = ["binary_tensor_data", "model_repository"]
        return json_response({"name": "streampca", "version": __version__, "extensions": extensions})

    async def server_live(self) -> Response:
        """Answer as long as the process responds."""
        return json_response({"live": True})

    async def server_ready(self, request: Request) -> Response:
        """Succeed if requests should be sent here, as /readyz does."""
        self._engine.check_ready(request)
        return json_response({"ready": True})

    async def model_ready(self, request: Request, model_name: ModelName) -> Response:
        """Succeed if the newest version can be used."""
        self._check_name(model_name)
        self._engine.check_ready(request)
        return json_response({"name": model_name, "ready": True})

    async def version_ready(self, request: Request, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Succeed if a version can be used."""
        await self._engine.find(model_version)
        return await self.model_ready(request, model_name)

    async def model_metadata(self, model_name: ModelName) -> Response:
        """Inputs, outputs and versions of the newest model."""
        self._check_name(model_name)
        published = await self._engine.find(None)  # the newest
        versions = await self._engine.versions()
        # The files of a model in use may have been removed.
        return _describe(published, model_name, versions or [published.version])

    async def version_metadata(self, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Inputs and outputs of a version."""
        self._check_name(model_name)
        published = await self._engine.find(model_version)
        return _describe(published, model_name, [published.version])

    async def repository_index(self) -> Response:
        """All versions in the store."""
        versions = await self._engine.versions()
        topic = self._engine.topic
        return json_response(
            [{"name": topic, "version": str(version), "state": "READY", "reason": ""} for version in versions]
        )

    async def infer(self, request: Request, model_name: ModelName) -> Response:
        """Coordinates, squared distances, reconstructions, scores or p-values of vectors, by the newest model."""
        return await self.infer_version(request, model_name, None)

    async def infer_version(self, request: Request, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Coordinates, squared distances, reconstructions, scores or p-values of vectors, by a version of the model."""
        self._check_name(model_name)
        return await self._engine.answer(
            request,
            operation="project",  # for the metrics
            parse=partial(parse, version=model_version),
            compute=infer,
            respond=partial(respond, model=model_name),
            run_on_loop_if_quick=True,  # waking a thread takes as long as a quick request
        )

    def _check_name(self, name: str) -> None:
        """Raise `RequestError` if the model's name is not the topic of this sidecar."""
        if name != self._engine.topic:
            raise RequestError(
                Problem.UNKNOWN_MODEL, f"there is no model {name[:80]!r}; this sidecar serves {self._engine.topic!r}"
            )


def _describe(published: PublishedModel, name: str, versions: Sequence[int]) -> Response:
    """Return a response with a model's name, versions, and the shapes of its inputs and outputs."""
    any_number = -1  # in the protocol, a size that is not fixed
    d = published.model.dimensions
    shapes = {"coordinates": [any_number, published.model.n_components], "reconstruction": [any_number, d]}
    outputs = []
    for output in get_args(schemas.OutputName):
        shape = shapes.get(output, [any_number])
        outputs.append({"name": output, "datatype": "FP64", "shape": shape})
    metadata = {
        "name": name,
        "versions": [str(version) for version in versions],
        "platform": "streampca",
        "inputs": [{"name": "vectors", "datatype": "FP64", "shape": [any_number, d]}],
        "outputs": outputs,
    }
    return json_response(metadata, version_header(published.version))


class Inference(ProjectRequest):
    """A parsed request to infer. Its `fields` are the scores among its outputs."""

    id: str | None
    outputs: Mapping[schemas.OutputName, bool]  # name → whether the output is sent as bytes, and not as JSON


def parse(raw: RawRequest, limits: Limits, version: int | str | None) -> Inference:
    """Parse a body: JSON, and after it maybe the bytes of the vectors. Raises `RequestError`."""
    is_json_with_bytes = raw.media_type == OCTET_STREAM  # clients send JSON that is followed by bytes as this type
    if not is_json_with_bytes:
        raw.require_json(also_named_in_error=[OCTET_STREAM])
    refuse_query(list(raw.query), instead="write a version into the path, and everything else into the body")
    json_text = raw.body[: raw.json_length]
    request = validate(schemas.InferenceRequest, parse_json_object(json_text, limits))
    vectors = _parse_tensor(request.inputs[0], after_json=raw.body[len(json_text) :])
    bytes_by_default = request.parameters.binary_data_output
    as_bytes_by_output: dict[schemas.OutputName, bool] = {}
    for output in request.outputs:
        as_bytes = output.parameters.binary_data
        as_bytes_by_output[output.name] = bytes_by_default if as_bytes is None else as_bytes
    if not as_bytes_by_output:  # the request names no outputs
        as_bytes_by_output = dict.fromkeys(_DEFAULT_OUTPUTS, bytes_by_default)
    return Inference.model_construct(  # the fields are valid already
        version=version,
        id=request.id,
        vectors=vectors,
        basis=request.parameters.basis,
        fields=[name for name in SCORES if name in as_bytes_by_output],
        outputs=as_bytes_by_output,
    )


def _parse_tensor(tensor: schemas.Tensor, after_json: bytes) -> Array:
    """Return the vectors (n, d) of a tensor, from its data or its bytes. Raises `RequestError`."""
    stated_size = tensor.parameters.binary_data_size
    if stated_size is not None:
        return _parse_tensor_bytes(tensor, stated_size, after_json)
    if tensor.data is None or after_json:
        raise invalid("vectors: either data, or bytes behind the JSON and their binary_data_size")
    return _parse_tensor_data(tensor, tensor.data)


def _parse_tensor_bytes(tensor: schemas.Tensor, stated_size: int, content: bytes) -> Array:
    """Return the vectors (n, d) of a tensor from the bytes that follow the JSON.

    Raises `RequestError` unless the shape, `stated_size` and `content` agree on the number of bytes.
    """
    n, d = tensor.shape
    dtype = np.dtype(_DATATYPES[tensor.datatype])
    expected_size = n * d * dtype.itemsize
    if stated_size != len(content) or stated_size != expected_size:
        raise invalid(
            f"vectors: a {tensor.datatype} tensor of shape {tensor.shape} has {expected_size} bytes, "
            f"not {stated_size}, and {len(content)} follow the JSON"
        )
    return np.frombuffer(content, dtype).reshape(n, d)


def _parse_tensor_data(tensor: schemas.Tensor, data: list[Any]) -> Array:
    """Return the vectors (n, d) of a tensor from its data: rows, or all numbers in one list.

    Raises `RequestError`.
    """
    n, d = tensor.shape
    is_flat = isinstance(data, list) and (len(data) == 0 or not isinstance(data[0], list))
    if is_flat:
        rows = pack_rows([data], "vectors")
        has_shape = rows.size == n * d
    else:
        rows = pack_rows(data, "vectors")  # raises if the data is not a list
        has_shape = rows.shape == (n, d)
    if not has_shape:
        raise invalid(f"vectors: data of shape {list(rows.shape)} are not a tensor of shape {tensor.shape}")
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite: `check_rows` refuses it
        return rows.reshape(n, d).astype(_DATATYPES[tensor.datatype], copy=False)


def infer(published: PublishedModel, inference: Inference, limits: Limits) -> compute.Answer:
    """Return the answer of /v1/project, with a reconstruction if the request asks for one.

    Raises `RequestError`.
    """
    answer = compute.project(published, inference, limits)
    if "p" in inference.outputs and answer.fields["p"] is None:
        raise invalid(f"version {answer.version} has no past scores yet, so it knows no p")
    projected = answer.projected  # set by `compute.project`; "is not None" below is only for the type checker
    if "reconstruction" in inference.outputs and projected is not None:
        answer.fields["reconstruction"] = compute.reconstruct_projected(projected)
    return answer


def respond(inference: Inference, answer: compute.Answer, raw: RawRequest, model: str) -> Response:
    """Return the response: JSON that describes all outputs, followed by the binary ones."""
    tensors: list[dict[str, Any]] = []
    binary_parts: list[bytes | memoryview] = []
    for name, as_bytes in inference.outputs.items():
        array = answer.fields[name]
        tensor: dict[str, Any] = {"name": name, "datatype": "FP64", "shape": array.shape}
        if as_bytes:
            binary_parts.append(_view_bytes(array))
            tensor["parameters"] = {"binary_data_size": array.nbytes}
        else:
            tensor["data"] = array.reshape(-1)
        tensors.append(tensor)
    content: dict[str, Any] = {"model_name": model, "model_version": str(answer.version), "outputs": tensors}
    if inference.id is not None:
        content["id"] = inference.id
    json_part = encode_json(content)
    headers = version_header(answer.version)
    if not binary_parts:
        return bytes_response([json_part], JSON, headers)
    headers[JSON_LENGTH_HEADER] = str(len(json_part))
    return bytes_response([json_part, *binary_parts], OCTET_STREAM, headers)


def _view_bytes(array: Array) -> bytes | memoryview:
    """Return the numbers of an array as little-endian bytes."""
    if array.size == 0:  # an empty memoryview cannot be cast
        return b""
    return array.astype("<f8", copy=False).data.cast("B")
