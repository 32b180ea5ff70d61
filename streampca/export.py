"""Exports a model to ONNX. The extra `export` installs the packages for it."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.fold.model_file import PublishedModel

# Versions of ONNX of 2023, which today's runtimes read.
_ONNX = """
<ir_version: 9, opset_import: ["" : 18]>
streampca (double[n, {d}] vectors) => (double[n, {k}] coordinates, double[n] residual)
{{
    {centre}
    coordinates = MatMul (centred, axes)
    projection = MatMul (coordinates, components)
    difference = Sub (centred, projection)
    residual = ReduceSumSquare <keepdims = 0> (difference, along)
}}
"""
_CENTRE = "centred = Sub (vectors, mean)"
_STANDARDIZE = "deviation = Sub (vectors, mean) centred = Mul (deviation, scale)"


def to_onnx(published: PublishedModel) -> bytes:
    """Return an ONNX model with the input `vectors` (n, d), the outputs `coordinates` (n, k) and `residual` (n,).

    All are float64.
    """
    from onnx import checker, helper, numpy_helper, parser

    model = published.model
    constants = {
        "mean": model.mean.astype(np.float64),
        "axes": np.ascontiguousarray(model.components.T, np.float64),
        "components": model.components.astype(np.float64),
        "along": np.array([1]),
    }
    centre = _CENTRE
    if model.scale is not None or model.seen is not None:
        centre = _STANDARDIZE
        # A dimension that was never seen counts for nothing.
        constants["scale"] = model.D if model.seen is None else model.D * model.seen
    onnx_model = parser.parse_model(_ONNX.format(d=model.dimensions, k=model.n_components, centre=centre))
    for name, array in constants.items():
        onnx_model.graph.initializer.append(numpy_helper.from_array(array, name))
    properties = {"topic": published.topic, "version": str(published.version)}
    if published.names is not None:
        properties["names"] = json.dumps(published.names)
    helper.set_model_props(onnx_model, properties)
    checker.check_model(onnx_model)
    return bytes(onnx_model.SerializeToString())


FORMATS: dict[str, Callable[[PublishedModel], bytes]] = {"onnx": to_onnx}


def register_with_skl2onnx() -> None:
    """Teach `skl2onnx.to_onnx` to convert pipelines with a `StreamingPCA`.

    The converted pipeline does not fill missing entries: NaN gives coordinates of NaN.
    """
    from skl2onnx import update_registered_converter

    from streampca import StreamingPCA

    update_registered_converter(StreamingPCA, "StreampcaStreamingPCA", _set_output_shape, _convert)


def _set_output_shape(operator: Any) -> None:
    """Declare that the coordinates are (n, k), of the type of the vectors."""
    vectors = operator.inputs[0]
    shape = [vectors.get_first_dimension(), operator.raw_operator.n_components_]
    operator.outputs[0].type = type(vectors.type)(shape)


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Add the graph of a fitted `StreamingPCA`: centre, divide by standard deviations, multiply with the axes."""
    from skl2onnx.algebra.onnx_ops import OnnxDiv, OnnxMatMul, OnnxSub
    from skl2onnx.common.data_types import DoubleTensorType

    estimator = operator.raw_operator
    version = container.target_opset
    dtype = np.float64 if isinstance(operator.inputs[0].type, DoubleTensorType) else np.float32
    axes = estimator.model_.components.T
    if estimator.whiten:
        axes = estimator.online_.unbiased.whiten(axes)
    centred = OnnxSub(operator.inputs[0], estimator.mean_.astype(dtype), op_version=version)
    if estimator.scale_ is not None:
        centred = OnnxDiv(centred, estimator.scale_.astype(dtype), op_version=version)
    coordinates = OnnxMatMul(centred, axes.astype(dtype), op_version=version, output_names=operator.outputs[:1])
    coordinates.add_to(scope, container)
