"""Exports a model to ONNX. The extra `export` installs the packages for it."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.fold.model_file import PublishedModel
from streampca.pca.missing_values import MissingValues

# The graph of a model, with versions of ONNX of 2023, which today's runtimes read. It computes for vectors Y
#     centred = Y − mean, or (Y − mean)·scale
#     coordinates = centred·axes
#     residual = ‖centred − coordinates·components‖² of each row
# This and the next templates refer to constants of the graph by name: mean, axes and so on.
_ONNX = """
<ir_version: 9, opset_import: ["" : 18]>
streampca (double[n, {d}] vectors) => (double[n, {k}] coordinates, double[n] residual)
{{
    {missing_to_nan}
    {centre}
    coordinates = MatMul (centred, axes)
    projection = MatMul (coordinates, components)
    difference = Sub (centred, projection)
    residual = ReduceSumSquare <keepdims = 0> (difference, along)
}}
"""
# The vectors are centred by one of these two texts: the second is for a model with a scale, or with dimensions that
# were never seen.
_CENTRE = "centred = Sub ({vectors}, mean)"
_STANDARDIZE = "deviation = Sub ({vectors}, mean) centred = Mul (deviation, scale)"
# In the vectors `before`, NaN replaces each entry that is one of the missing values in this precision:
# filled = where(an entry equals any missing value, nan, before).
_MISSING_TO_NAN = """
    given_{precision} = Cast <to = {precision_type}> ({before})
    entries_{precision} = Unsqueeze (given_{precision}, last)
    equal_{precision} = Equal (entries_{precision}, missing_{precision})
    counts_{precision} = Cast <to = {int64_type}> (equal_{precision})
    count_{precision} = ReduceMax <keepdims = 0> (counts_{precision}, last)
    found_{precision} = Cast <to = {bool_type}> (count_{precision})
    filled_{precision} = Where (found_{precision}, nan, {before})
"""


def to_onnx(published: PublishedModel) -> bytes:
    """Return an ONNX model with the input `vectors` (n, d) and the outputs `coordinates` (n, k) and `residual` (n,).

    All numbers are float64. A vector with NaN, or with a number that means "missing", gives NaN.
    """
    from onnx import checker, helper, numpy_helper, parser

    model = published.model
    # The text of the graph has three parts: it replaces missing values by NaN, centres the vectors, and projects them.
    # The text refers to these constants by name.
    constants: dict[str, NDArray[Any]] = {
        "mean": model.mean.astype(np.float64),
        "axes": np.ascontiguousarray(model.components.T, np.float64),  # (d, k): coordinates = centred · axes
        "components": model.components.astype(np.float64),  # (k, d): projection = coordinates · components
        "along": np.array([1]),  # the axis along which the squares of a residual are summed
    }
    centring_text = _CENTRE
    if model.scale is not None or model.seen is not None:
        centring_text = _STANDARDIZE
        # `model.D` has the factor that standardises each dimension, or 1 if the model does not standardise. A dimension
        # that was never seen gets the factor 0, so that its entries do not count.
        constants["scale"] = model.D if model.seen is None else model.D * model.seen
    missing_to_nan = _make_missing_to_nan(published.missing_values)
    constants |= missing_to_nan.constants
    text = _ONNX.format(
        d=model.dimensions,
        k=model.n_components,
        missing_to_nan=missing_to_nan.text,
        centre=centring_text.format(vectors=missing_to_nan.output_name),  # centres the output of the part before it
    )
    onnx_model = parser.parse_model(text)
    for name, array in constants.items():
        onnx_model.graph.initializer.append(numpy_helper.from_array(array, name))
    properties = {"topic": published.topic, "version": str(published.version)}
    if published.names is not None:
        properties["names"] = json.dumps(published.names)
    helper.set_model_props(onnx_model, properties)
    checker.check_model(onnx_model)
    return bytes(onnx_model.SerializeToString())


class _MissingToNan(NamedTuple):
    """The part of the graph that replaces missing values by NaN."""

    text: str
    constants: dict[str, NDArray[Any]]
    output_name: str  # of the vectors after the replacement


def _make_missing_to_nan(missing: MissingValues) -> _MissingToNan:
    """Return the part of the graph that replaces missing values by NaN; it is empty if there are none."""
    from onnx import helper

    name_of_vectors = "vectors"  # in the graph: first its input, then the vectors after each step
    if not missing.numbers:
        return _MissingToNan("", constants={}, output_name=name_of_vectors)
    text = ""
    constants: dict[str, NDArray[Any]] = {
        # The axis of the missing values: the template makes the vectors (n, d, 1), and compares each entry along it.
        "last": np.array([2]),
        "nan": np.array(np.nan),
    }
    # An entry is compared with the missing values in float64, then in the model's type. In float32, the entry
    # float32(0.1) equals the missing value 0.1; and 1e300 is too large for float32, so it is found only in float64.
    for precision in dict.fromkeys(("float64", missing.dtype)):
        text += _MISSING_TO_NAN.format(
            before=name_of_vectors,
            precision=precision,
            precision_type=helper.np_dtype_to_tensor_dtype(np.dtype(precision)),
            int64_type=helper.np_dtype_to_tensor_dtype(np.dtype(np.int64)),
            bool_type=helper.np_dtype_to_tensor_dtype(np.dtype(np.bool_)),
        )
        constants[f"missing_{precision}"] = missing.rounded_to(np.dtype(precision))
        name_of_vectors = f"filled_{precision}"
    return _MissingToNan(text, constants, output_name=name_of_vectors)


FORMATS: dict[str, Callable[[PublishedModel], bytes]] = {"onnx": to_onnx}


def register_with_skl2onnx() -> None:
    """Teach `skl2onnx.to_onnx` to convert pipelines with a `StreamingPCA`.

    The converted pipeline does not fill missing entries: their coordinates are NaN.
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
    """Add the graph of a fitted `StreamingPCA` to an ONNX container of skl2onnx."""
    from skl2onnx.algebra.onnx_ops import OnnxDiv, OnnxMatMul, OnnxSub
    from skl2onnx.common.data_types import DoubleTensorType

    estimator = operator.raw_operator
    opset = container.target_opset
    dtype = np.float64 if isinstance(operator.inputs[0].type, DoubleTensorType) else np.float32
    axes = estimator.model_.components.T
    if estimator.whiten:
        # scikit-learn's variances have ddof=1.
        axes = estimator.online_.unbiased_model.whiten(axes)
    vectors = _replace_missing_values(operator.inputs[0], estimator, dtype, opset)
    centred = OnnxSub(vectors, estimator.mean_.astype(dtype), op_version=opset)
    if estimator.scale_ is not None:
        centred = OnnxDiv(centred, estimator.scale_.astype(dtype), op_version=opset)
    coordinates = OnnxMatMul(centred, axes.astype(dtype), op_version=opset, output_names=[operator.outputs[0]])
    coordinates.add_to(scope, container)  # with all operations from the input to the coordinates


def _replace_missing_values(vectors: Any, estimator: Any, dtype: Any, opset: int) -> Any:
    """Return the operations that replace an estimator's missing values in vectors of this dtype by NaN.

    An entry is missing if it equals a missing value that is rounded to this dtype. An estimator with float32 rounds
    float64 vectors to float32. An entry of such a vector is also missing if the rounded entry equals a rounded missing
    value.
    """
    from onnx.helper import np_dtype_to_tensor_dtype
    from skl2onnx.algebra.onnx_ops import OnnxCast, OnnxEqual, OnnxWhere

    config = estimator.online_.config.learning
    missing = MissingValues.of(config.missing_values, config.dtype)
    precisions = [dtype]
    if config.dtype == "float32" and dtype != np.float32:
        precisions.append(np.float32)
    for precision in precisions:
        for number in missing.rounded_to(np.dtype(precision)):
            rounded = OnnxCast(vectors, to=np_dtype_to_tensor_dtype(np.dtype(precision)), op_version=opset)
            is_missing = OnnxEqual(rounded, np.array([number]), op_version=opset)
            vectors = OnnxWhere(is_missing, np.array([np.nan], dtype), vectors, op_version=opset)
    return vectors
