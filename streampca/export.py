"""A model in the format of another tool. The extra `export` has the packages that it needs."""

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
    """A graph with the input `vectors` (n, d) and the outputs `coordinates` (n, k) and `residual` (n,), in float64."""
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
        centre, constants["scale"] = _STANDARDIZE, model.D if model.seen is None else model.D * model.seen
    whole = parser.parse_model(_ONNX.format(d=model.dimensions, k=model.n_components, centre=centre))
    whole.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    properties = {"topic": published.topic, "version": str(published.version), "names": json.dumps(published.names)}
    helper.set_model_props(whole, {name: text for name, text in properties.items() if text != "null"})
    checker.check_model(whole)
    return bytes(whole.SerializeToString())


FORMATS: dict[str, Callable[[PublishedModel], bytes]] = {"onnx": to_onnx}


def register_with_skl2onnx() -> None:
    """Let `skl2onnx.to_onnx` convert pipelines with a `StreamingPCA`. NaN becomes NaN: gaps are not filled."""
    from skl2onnx import update_registered_converter

    from streampca import StreamingPCA

    update_registered_converter(StreamingPCA, "StreampcaStreamingPCA", _shapes, _convert)


def _shapes(operator: Any) -> None:
    vectors = operator.inputs[0]
    operator.outputs[0].type = type(vectors.type)([vectors.get_first_dimension(), operator.raw_operator.n_components_])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    from skl2onnx.algebra.onnx_ops import OnnxDiv, OnnxMatMul, OnnxSub
    from skl2onnx.common.data_types import DoubleTensorType

    estimator, version = operator.raw_operator, container.target_opset
    dtype = np.float64 if isinstance(operator.inputs[0].type, DoubleTensorType) else np.float32
    axes = estimator.model_.components.T
    if estimator.whiten:
        axes = estimator.online_.unbiased.whiten(axes)
    centred = OnnxSub(operator.inputs[0], estimator.mean_.astype(dtype), op_version=version)
    if estimator.scale_ is not None:
        centred = OnnxDiv(centred, estimator.scale_.astype(dtype), op_version=version)
    coordinates = OnnxMatMul(centred, axes.astype(dtype), op_version=version, output_names=operator.outputs[:1])
    coordinates.add_to(scope, container)
