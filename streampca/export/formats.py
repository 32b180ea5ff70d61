"""A model in the format of another tool. The packages that it needs come with `pip install 'streampca[export]'`."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.stream.model_file import PublishedModel

_OPSET, _IR_VERSION = 18, 9  # of ONNX: those of 2023, which today's runtimes read


def to_npz(published: PublishedModel) -> bytes:
    """An .npz file for `numpy.load`: components, explained_variance, mean and others; coordinates are (v − mean) Cᵀ."""
    model, buffer = published.model, io.BytesIO()
    np.savez(
        buffer,
        allow_pickle=False,
        components=model.components,
        explained_variance=model.explained_variance,
        explained_variance_ratio=model.explained_variance_ratio,
        noise_variance=model.noise_variance,
        mean=model.mean,
        version=published.version,
        topic=published.topic,
    )
    return buffer.getvalue()


def to_onnx(published: PublishedModel) -> bytes:
    """A graph with the input `vectors` (n, d) and the outputs `coordinates` (n, k) and `residual` (n,), in float64."""
    from onnx import TensorProto, checker, helper, numpy_helper

    model = published.model
    constants = {
        "mean": model.mean.astype(np.float64),
        "axes": np.ascontiguousarray(model.components.T, np.float64),
        "components": model.components.astype(np.float64),
        "along": np.array([1]),
    }
    nodes = [
        helper.make_node("Sub", ["vectors", "mean"], ["centred"]),
        helper.make_node("MatMul", ["centred", "axes"], ["coordinates"]),
        helper.make_node("MatMul", ["coordinates", "components"], ["in_plane"]),
        helper.make_node("Sub", ["centred", "in_plane"], ["beside"]),
        helper.make_node("ReduceSumSquare", ["beside", "along"], ["residual"], keepdims=0),
    ]
    shapes: dict[str, list[str | int | None]] = {
        "vectors": ["n", model.dimensions],
        "coordinates": ["n", model.n_components],
        "residual": ["n"],
    }
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in shapes.items()]
    initial = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "streampca", infos[:1], infos[1:], initial)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    helper.set_model_props(whole, {"topic": published.topic, "version": str(published.version)})
    checker.check_model(whole)
    found: bytes = whole.SerializeToString()
    return found


def to_sklearn(published: PublishedModel) -> bytes:
    """A fitted `sklearn.decomposition.PCA` for `skops.io.load`; its variances are divided by n, not n − 1."""
    from sklearn.decomposition import PCA
    from skops import io as skops

    model = published.model
    pca = PCA(n_components=model.n_components)
    pca.components_, pca.mean_ = model.components.astype(np.float64), model.mean.astype(np.float64)
    pca.explained_variance_ = model.explained_variance.astype(np.float64)
    pca.explained_variance_ratio_ = np.asarray(model.explained_variance_ratio, np.float64)
    pca.singular_values_ = np.sqrt(pca.explained_variance_ * max(published.version, 1))
    pca.noise_variance_ = model.noise_variance
    pca.n_components_, pca.n_features_in_, pca.n_samples_ = model.n_components, model.dimensions, published.version
    found: bytes = skops.dumps(pca)
    return found


def to_faiss(published: PublishedModel) -> bytes:
    """A `LinearTransform` in float32 for `faiss.read_VectorTransform`, to put in front of an index."""
    import faiss

    model = published.model
    transform = faiss.LinearTransform(model.dimensions, model.n_components, True)
    shift = -(model.components.astype(np.float64) @ model.mean)
    faiss.copy_array_to_vector(np.ascontiguousarray(model.components, np.float32).ravel(), transform.A)
    faiss.copy_array_to_vector(shift.astype(np.float32), transform.b)
    transform.is_trained = True
    transform.set_is_orthonormal()
    writer: Any = faiss.VectorIOWriter()  # its functions take file names, too, and their types nothing else
    faiss.write_VectorTransform(transform, writer)
    found: bytes = faiss.vector_to_array(writer.data).tobytes()
    return found


FORMATS: dict[str, Callable[[PublishedModel], Any]] = {
    "npz": to_npz, "onnx": to_onnx, "sklearn": to_sklearn, "faiss": to_faiss,
}  # fmt: skip
