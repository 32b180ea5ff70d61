"""A converter of the estimator for skl2onnx: after `register()`, `skl2onnx.to_onnx` takes pipelines with it.

Needs `pip install 'streampca[export,sklearn]'`.
"""

from typing import Any

import numpy as np


def register() -> None:
    """Let skl2onnx convert `ImplicitKrasulina`. Rows with gaps cannot be converted: NaN becomes NaN."""
    from skl2onnx import update_registered_converter

    from streampca import ImplicitKrasulina

    update_registered_converter(ImplicitKrasulina, "StreampcaImplicitKrasulina", _shapes, _convert)


def _shapes(operator: Any) -> None:
    given = operator.inputs[0]
    operator.outputs[0].type = type(given.type)([given.get_first_dimension(), operator.raw_operator.n_components_])


def _convert(scope: Any, operator: Any, container: Any) -> None:
    from skl2onnx.algebra.onnx_ops import OnnxMatMul, OnnxSub
    from skl2onnx.common.data_types import DoubleTensorType

    estimator, version = operator.raw_operator, container.target_opset
    dtype = np.float64 if isinstance(operator.inputs[0].type, DoubleTensorType) else np.float32
    axes = estimator.components_.T
    if estimator.whiten:
        axes = estimator.model_.whiten(axes)
    centred = OnnxSub(operator.inputs[0], estimator.mean_.astype(dtype), op_version=version)
    found = OnnxMatMul(centred, axes.astype(dtype), op_version=version, output_names=operator.outputs[:1])
    found.add_to(scope, container)
