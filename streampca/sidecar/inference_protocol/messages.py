"""Requests and answers of the Open Inference Protocol, version 2: JSON, or JSON with the tensors' bytes behind it.

The header `Inference-Header-Content-Length` says where the JSON ends; `binary_data_size` how many bytes a tensor has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from fastapi import Response

from streampca.fold.model_file import PublishedModel
from streampca.pca.arrays import Array
from streampca.sidecar import compute, request_arrays
from streampca.sidecar.compute import Answer
from streampca.sidecar.errors import invalid
from streampca.sidecar.inference_protocol.schemas import InferenceRequest, OutputName, Tensor
from streampca.sidecar.parsing import check_values, json_object, validate
from streampca.sidecar.request import BYTES, LENGTH, RawRequest
from streampca.sidecar.request_arrays import Limits
from streampca.sidecar.responses import JSON, bytes_response, json_bytes, version_header
from streampca.sidecar.v1.schemas import SCORES, ProjectRequest, ReconstructRequest

DATATYPES = {"FP32": "<f4", "FP64": "<f8"}
OUTPUTS: tuple[OutputName, ...] = get_args(OutputName)
_DEFAULT: tuple[OutputName, ...] = ("coordinates", "residual")


@dataclass(frozen=True, slots=True)
class Inference:
    """A parsed request: vectors, and the outputs to answer with."""

    version: int | None
    id: str | None
    project: ProjectRequest
    outputs: Mapping[OutputName, bool]  # name → as bytes, not as JSON


def parse(raw: RawRequest, limits: Limits, version: int | None) -> Inference:
    """The request in a body. Raises `RequestError`."""
    text = raw.body[: raw.json_bytes]
    check_values(text, limits)
    request = validate(InferenceRequest, json_object(text))
    vectors = _array(request.inputs[0], raw.body[len(text) :])
    by_default = request.parameters.binary_data_output
    outputs = {
        output.name: by_default if (own := output.parameters.binary_data) is None else own for output in request.outputs
    }
    project = ProjectRequest.model_construct(
        vectors=vectors,
        basis=request.parameters.basis,
        fields=[name for name in SCORES if name in outputs],
    )
    return Inference(version, request.id, project, outputs or dict.fromkeys(_DEFAULT, by_default))


def _array(tensor: Tensor, rest: bytes) -> Array:
    """The vectors of the request's only input, (n, d); `rest` are the bytes behind the JSON."""
    n, d = tensor.shape
    dtype, size = np.dtype(DATATYPES[tensor.datatype]), tensor.parameters.binary_data_size
    if size is not None:
        if size != len(rest) or size != n * d * dtype.itemsize:
            text = f"a {tensor.datatype} tensor of shape {tensor.shape} has {n * d * dtype.itemsize} bytes"
            raise invalid(f"vectors: {text}, not {size}, and {len(rest)} follow the JSON")
        return np.frombuffer(rest, dtype).reshape(n, d)
    if tensor.data is None or rest:
        raise invalid("vectors: either data, or bytes behind the JSON and their binary_data_size")
    is_flat = isinstance(tensor.data, list) and not (tensor.data and isinstance(tensor.data[0], list))
    rows = request_arrays.rows([tensor.data] if is_flat else tensor.data, "vectors")
    if rows.size != n * d or not (is_flat or rows.shape == (n, d)):
        raise invalid(f"vectors: data of shape {list(rows.shape)} are not a tensor of shape {tensor.shape}")
    with np.errstate(over="ignore"):
        return rows.reshape(n, d).astype(dtype, copy=False)


def infer(published: PublishedModel, inference: Inference, limits: Limits) -> Answer:
    """The fields that the outputs name, and those of /v1/project."""
    answer = compute.project(published, inference.project, limits)
    if "p" in inference.outputs and answer.fields["p"] is None:
        raise invalid(f"version {answer.version} has no past scores yet, so it knows no p")
    if "reconstruction" in inference.outputs:
        request = ReconstructRequest.model_construct(vectors=inference.project.vectors)
        answer.fields["reconstruction"] = compute.reconstruct(published, request, limits).fields["vectors"]
    return answer


def respond(inference: Inference, answer: Answer, raw: RawRequest, model: str) -> Response:
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
