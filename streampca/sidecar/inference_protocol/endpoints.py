"""The Open Inference Protocol, version 2, of Triton's and KServe's clients. The model's name is the topic.

A message is JSON, or JSON with the tensors' bytes behind it: the header `Inference-Header-Content-Length` says where
the JSON ends, and `binary_data_size` how many bytes a tensor has.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, get_args

import numpy as np
from fastapi import FastAPI, Path, Request, Response

from streampca.fold.model_file import PublishedModel
from streampca.pca.arrays import Array
from streampca.sidecar import compute
from streampca.sidecar.engine import JSON, Dialect, bytes_response, json_bytes, json_response, version_header
from streampca.sidecar.errors import Problem, RequestError, invalid
from streampca.sidecar.inference_protocol import schemas
from streampca.sidecar.openapi import binary_answer, body_of, errors_of
from streampca.sidecar.parsing import Limits, json_object, pack_rows, validate
from streampca.sidecar.request import BYTES, LENGTH, RawRequest
from streampca.sidecar.schemas import SCORES, PathVersion, ProjectRequest
from streampca.version import __version__

ModelName = Annotated[str, Path(description="The topic.")]
ModelVersion = Annotated[PathVersion, Path(description="Version of the model, the name of a pin, or latest.")]

_DATATYPES = {"FP32": "<f4", "FP64": "<f8"}
_DEFAULT: tuple[schemas.OutputName, ...] = ("coordinates", "residual")


class InferenceEndpoints(Dialect):
    def add_to(self, app: FastAPI) -> None:
        options: dict[str, Any] = {"tags": ["open inference protocol"], "responses": errors_of(JSON)}
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
        app.post("/v2/repository/index", response_model=list[schemas.RepositoryEntry], **options)(self.repository_index)
        options["responses"] |= binary_answer(BYTES)
        options |= {"response_model": schemas.InferenceResponse, "openapi_extra": body_of(schemas.InferenceRequest)}
        app.post(f"{model}/infer", **options)(self.infer)
        app.post(f"{version}/infer", **options)(self.infer_version)

    async def server_metadata(self) -> Response:
        """The name and the version of this server."""
        return json_response(
            {
                "name": "streampca",
                "version": __version__,
                "extensions": ["binary_tensor_data", "model_repository"],
            }
        )

    async def server_live(self) -> Response:
        """Answer as long as the process responds."""
        return json_response({"live": True})

    async def server_ready(self, request: Request) -> Response:
        """Succeed if requests should be sent here, as /readyz does."""
        self._engine.check_ready(request)
        return json_response({"ready": True})

    async def model_ready(self, request: Request, model_name: ModelName) -> Response:
        """Succeed if the newest version can be used."""
        self._check(model_name)
        self._engine.check_ready(request)
        return json_response({"name": model_name, "ready": True})

    async def version_ready(self, request: Request, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Succeed if a version can be used."""
        await self._engine.find(model_version)
        return await self.model_ready(request, model_name)

    async def model_metadata(self, model_name: ModelName) -> Response:
        """Inputs, outputs and versions of the newest model."""
        return await self._metadata(model_name, None, await self._engine.versions())

    async def version_metadata(self, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Inputs and outputs of a version."""
        return await self._metadata(model_name, model_version)

    async def repository_index(self) -> Response:
        """All versions in the store."""
        return json_response(
            [
                {"name": self._engine.topic, "version": str(version), "state": "READY", "reason": ""}
                for version in await self._engine.versions()
            ]
        )

    async def infer(self, request: Request, model_name: ModelName) -> Response:
        """Coordinates, squared distances, reconstructions, scores or p-values of vectors, by the newest model."""
        return await self.infer_version(request, model_name, None)

    async def infer_version(self, request: Request, model_name: ModelName, model_version: ModelVersion) -> Response:
        """Coordinates and others of vectors by a version of the model."""
        self._check(model_name)
        return await self._engine.answer(
            request, operation="project", parse=partial(parse, version=model_version), compute=infer,
            respond=partial(respond, model=model_name), if_quick=True,
        )  # fmt: skip

    async def _metadata(self, name: str, version: int | str | None, versions: Sequence[int] = ()) -> Response:
        self._check(name)
        published = await self._engine.find(version)
        d, k = published.model.dimensions, published.model.n_components
        shapes = {"coordinates": [-1, k], "reconstruction": [-1, d]}
        about = {
            "name": name,
            "versions": [*map(str, versions or [published.version])],
            "platform": "streampca",
            "inputs": [{"name": "vectors", "datatype": "FP64", "shape": [-1, d]}],
            "outputs": [
                {"name": n, "datatype": "FP64", "shape": shapes.get(n, [-1])} for n in get_args(schemas.OutputName)
            ],
        }
        return json_response(about, version_header(published.version))

    def _check(self, name: str) -> None:
        if name != self._engine.topic:
            raise RequestError(
                Problem.UNKNOWN_MODEL, f"there is no model {name[:80]!r}; this sidecar serves {self._engine.topic!r}"
            )


class Inference(ProjectRequest):
    """A parsed request: vectors, and the outputs to answer with."""

    id: str | None
    outputs: Mapping[schemas.OutputName, bool]  # name → as bytes, not as JSON


def parse(raw: RawRequest, limits: Limits, version: int | str | None) -> Inference:
    """The request in a body. Raises `RequestError`."""
    text = raw.body[: raw.json_bytes]
    request = validate(schemas.InferenceRequest, json_object(text, limits))
    vectors = _array(request.inputs[0], raw.body[len(text) :])
    by_default = request.parameters.binary_data_output
    outputs = {
        output.name: by_default if (own := output.parameters.binary_data) is None else own for output in request.outputs
    }
    return Inference.model_construct(
        version=version, id=request.id, vectors=vectors, basis=request.parameters.basis,
        fields=[name for name in SCORES if name in outputs], outputs=outputs or dict.fromkeys(_DEFAULT, by_default),
    )  # fmt: skip


def _array(tensor: schemas.Tensor, rest: bytes) -> Array:
    """The vectors of the request's only input, (n, d); `rest` are the bytes behind the JSON."""
    n, d = tensor.shape
    dtype, size = np.dtype(_DATATYPES[tensor.datatype]), tensor.parameters.binary_data_size
    if size is not None:
        if size != len(rest) or size != n * d * dtype.itemsize:
            text = f"a {tensor.datatype} tensor of shape {tensor.shape} has {n * d * dtype.itemsize} bytes"
            raise invalid(f"vectors: {text}, not {size}, and {len(rest)} follow the JSON")
        return np.frombuffer(rest, dtype).reshape(n, d)
    if tensor.data is None or rest:
        raise invalid("vectors: either data, or bytes behind the JSON and their binary_data_size")
    is_flat = isinstance(tensor.data, list) and not (tensor.data and isinstance(tensor.data[0], list))
    rows = pack_rows([tensor.data] if is_flat else tensor.data, "vectors")
    if rows.size != n * d or not (is_flat or rows.shape == (n, d)):
        raise invalid(f"vectors: data of shape {list(rows.shape)} are not a tensor of shape {tensor.shape}")
    with np.errstate(over="ignore"):
        return rows.reshape(n, d).astype(dtype, copy=False)


def infer(published: PublishedModel, inference: Inference, limits: Limits) -> compute.Answer:
    """The fields that the outputs name, and the fields of /v1/project."""
    answer = compute.project(published, inference, limits)
    if "p" in inference.outputs and answer.fields["p"] is None:
        raise invalid(f"version {answer.version} has no past scores yet, so it knows no p")
    if "reconstruction" in inference.outputs and answer.projected:
        answer.fields["reconstruction"] = compute.reconstruction(answer.projected)
    return answer


def respond(inference: Inference, answer: compute.Answer, raw: RawRequest, model: str) -> Response:
    """The outputs, in the request's order."""
    tensors, parts = [], []
    for name, as_bytes in inference.outputs.items():
        array = answer.fields[name]
        tensor: dict[str, Any] = {"name": name, "datatype": "FP64", "shape": array.shape}
        if as_bytes:
            parts.append(memoryview(array.astype("<f8", copy=False)).cast("B") if array.size else memoryview(b""))
            tensor["parameters"] = {"binary_data_size": array.nbytes}
        else:
            tensor["data"] = array.reshape(-1)
        tensors.append(tensor)
    header = {"model_name": model, "model_version": str(answer.version), "outputs": tensors}
    text = json_bytes(header if inference.id is None else header | {"id": inference.id})
    headers = version_header(answer.version) | ({LENGTH: str(len(text))} if parts else {})
    return bytes_response([memoryview(text), *parts], BYTES if parts else JSON, headers)
