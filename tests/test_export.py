"""Exported models, read by the tools that they are for, compute what the model computes."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import skl2onnx
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from typer.testing import CliRunner

from streampca import StreamingPCA
from streampca.cli.app import app
from streampca.export import FORMATS, register_with_skl2onnx
from streampca.fold import checkpoint as checkpoints, model_file
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from tests.command_line import assert_one_line, run
from tests.example_models import TOPIC, K, models_in, numbered, standardised

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
VECTORS = np.random.default_rng(0).standard_normal((9, 5)) * 3


def without_a_dimension(published: PublishedModel) -> PublishedModel:
    """The model as if no message had shown its last dimension."""
    components = published.model.components.copy()
    components[:, -1] = 0.0
    components = np.linalg.qr(components.T)[0].T
    seen = np.arange(components.shape[1]) < components.shape[1] - 1
    return replace(published, model=replace(published.model, components=components, seen=seen))


def with_numpy(path: Path) -> tuple[F64, F64]:
    with np.load(path) as arrays:
        assert (int(arrays["version"]), str(arrays["topic"])) == (20, TOPIC)
        deviations, components = (VECTORS - arrays["mean"]) * arrays.get("scale", 1.0), arrays["components"]
        deviations = deviations * arrays.get("seen", 1.0)
    coordinates = deviations @ components.T
    return coordinates, np.square(deviations - coordinates @ components).sum(axis=1)


def with_onnxruntime(path: Path) -> tuple[F64, F64]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    coordinates, residual = session.run(["coordinates", "residual"], {"vectors": VECTORS})
    assert session.get_modelmeta().custom_metadata_map == {"topic": TOPIC, "version": "20"}
    return coordinates, residual


def test_names_of_the_dimensions_are_exported(tmp_path: Path) -> None:
    names = ["temp", "hum", "Δp", "a.b", "x,y"]
    published = replace(numbered(20), names=names)
    (tmp_path / "model.npz").write_bytes(model_file.encode(published))
    with np.load(tmp_path / "model.npz") as arrays:
        assert arrays["names"].tolist() == names
    session = onnxruntime.InferenceSession(FORMATS["onnx"](published), providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["names"]) == names


@pytest.mark.parametrize(
    "published",
    [numbered(20), standardised(numbered(20)), without_a_dimension(numbered(20))],
    ids=["plain", "standardised", "a dimension never seen"],
)
@pytest.mark.parametrize(("kind", "read", "tolerance"), [("npz", with_numpy, 1e-12), ("onnx", with_onnxruntime, 1e-6)])
def test_the_tool_projects_as_the_model_does(
    tmp_path: Path, kind: str, read: Callable[[Path], tuple[F64, F64]], tolerance: float, published: PublishedModel
) -> None:
    models = models_in(tmp_path / "store")
    for each in (numbered(10), published):
        models.save(each)
    (tmp_path / "model.npz").write_bytes(model_file.encode(published))
    for source in ("store", "model.npz"):
        out = tmp_path / f"out-{source}.onnx"
        if kind == "onnx":
            done = CliRunner().invoke(app, ["export", str(tmp_path / source), "--to", kind, "-o", str(out)])
            assert done.exit_code == 0, done.output
        else:  # any model's file
            out = next((tmp_path / "store").rglob("*20.npz")) if source == "store" else tmp_path / source
        (coordinates, residual), expected = read(out), published.model.project(VECTORS)
        assert coordinates.shape == (9, K)
        assert coordinates == pytest.approx(expected.coordinates, rel=tolerance, abs=tolerance)
        assert residual == pytest.approx(expected.residual, rel=1e-6, abs=1e-12)


MISSING = "-9999, 0.1, 1.7976931348623157e+308"
# 0.1 as float32 is one of them only in the precision of float32.
WITH_MISSING = np.array([[1, 2, 3, 4, 5], [1, -9999, 3, 4, 5], [1, 2, 3, 4, np.float32(0.1)], [0.1, 2, 3, 4, 5],
                         [1, 2, np.finfo(float).max, 4, 5], [1, 2, 3, 4, -9998]])  # fmt: skip


@pytest.mark.parametrize("missing_values", ["", MISSING])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("scaled", [False, True])
def test_missing_values_of_the_model_give_nan_as_nan_does(dtype: str, missing_values: str, scaled: bool) -> None:
    published = standardised(numbered(20)) if scaled else numbered(20)
    settings = published.settings | {"dtype": dtype, "missing_values": missing_values}
    published = replace(published, settings=settings)
    session = onnxruntime.InferenceSession(FORMATS["onnx"](published), providers=["CPUExecutionProvider"])
    coordinates, residual = session.run(None, {"vectors": WITH_MISSING})
    has_gap = np.isnan(published.missing_values.to_nan(WITH_MISSING)).any(axis=1)
    assert has_gap.sum() == (0 if not missing_values else 4 if dtype == "float32" else 3)
    assert np.isnan(coordinates).all(axis=1).tolist() == np.isnan(residual).tolist() == has_gap.tolist()
    projected = published.model.project(WITH_MISSING[[0, 5]])
    assert coordinates[[0, 5]] == pytest.approx(projected.coordinates, rel=1e-6)


@pytest.mark.parametrize("published", [numbered(20), standardised(numbered(20))], ids=["plain", "standardised"])
@pytest.mark.parametrize("tool", ["onnxruntime", "sklearn", "faiss"])
def test_the_recipes_project_as_the_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, published: PublishedModel
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, write in {**FORMATS, "npz": model_file.encode}.items():
        Path(f"model.{kind}").write_bytes(write(published))
    [code] = [code for code in RECIPES if re.search(rf"^(import|from) {tool}\b", code, re.MULTILINE)]
    names = {"Y": VECTORS}
    exec(code, names)  # noqa: S102 - our own page
    coordinates = published.model.project(VECTORS).coordinates
    assert names["coordinates"] == pytest.approx(coordinates, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--to", "sklearn"], "--to sklearn: must be one of onnx; a model's own file is a NumPy .npz file"),
        (["--to", "onnx"], "holds 2 topics (other, readings): name one by --topic"),
        (["--to", "onnx", "--topic", "nothing"], "nothing holds no model; the store has models of other, readings"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, words: list[str], text: str) -> None:
    for topic in (TOPIC, "other"):
        models_in(tmp_path / "store", topic).save(numbered(20))
    done = CliRunner().invoke(app, ["export", str(tmp_path / "store"), *words, "-o", str(tmp_path / "out")])
    assert text in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, VECTORS)
    checkpoint = tmp_path / "checkpoint.npz"
    fold = FoldConfig(LearningConfig(5, 2))
    checkpoint.write_bytes(checkpoints.encode(Checkpoint(TOPIC, "", 0, Fold.empty(fold.learning), fold.as_dict())))
    for command in (["export", "--to", "onnx", "-o", tmp_path / "out"], ["serve", "--model"]):
        for file, text in ((path, "is not a model of streampca; it is an .npy array. `streampca fit` makes a model"),
                           (checkpoint, "this is a checkpoint file, not a model file")):  # fmt: skip
            assert_one_line(run(*command, file), text)
            assert str(file) in run(*command, file).stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("whiten", "standardize"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-6), (np.float32, 1e-4)])
def test_a_pipeline_with_the_estimator_becomes_onnx(
    whiten: bool, standardize: bool, dtype: type, tolerance: float
) -> None:
    register_with_skl2onnx()
    X = (np.random.default_rng(0).standard_normal((500, 6)) * np.arange(1, 7) + 3).astype(dtype)
    scaler = MinMaxScaler() if standardize else StandardScaler()
    pipeline = make_pipeline(scaler, StreamingPCA(3, whiten=whiten, standardize=standardize)).fit(X)
    graph = skl2onnx.to_onnx(pipeline, X[:1])
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (projected,) = session.run(None, {"X": X})
    assert projected.dtype == dtype
    assert projected == pytest.approx(pipeline.transform(X), rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("learned_as", ["float64", "float32"])
def test_missing_values_of_the_estimator_give_nan(dtype: type, learned_as: str) -> None:
    register_with_skl2onnx()
    X = (np.random.default_rng(0).standard_normal((500, 5)) * np.arange(1, 6) + 3).astype(dtype)
    missing_values = [float(word) for word in MISSING.split(",")]
    pca = StreamingPCA(2, dtype=learned_as, missing="impute", missing_values=missing_values).fit(X)
    graph = skl2onnx.to_onnx(pca, X[:1])
    with np.errstate(over="ignore"):
        rows = WITH_MISSING.astype(dtype)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (projected,) = session.run(None, {"X": rows})
    is_kept = np.isfinite(projected).all(axis=1)
    in_float32 = "float32" in (learned_as, np.dtype(dtype).name)
    assert is_kept.tolist() == [True, False, not in_float32, False, False, True]
    assert projected[is_kept] == pytest.approx(pca.transform(rows[is_kept]), rel=1e-4)
