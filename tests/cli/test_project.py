"""A model of a file can be continued, projected with and served; files go in and out in every format."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampca.fold import model_file
from streampca.fold.model_file import PublishedModel
from streampca.formats.arrow import column_of
from streampca.pca.arrays import F64
from tests.command_line import assert_one_line, printed, run
from tests.example_models import models_in
from tests.forked import ForkedProcess
from tests.waiting import wait_until

D, K = 8, 3


def low_rank(n: int, seed: int = 0) -> F64:
    basis = np.random.default_rng(0).standard_normal((K, D))
    chance = np.random.default_rng(seed)
    return chance.standard_normal((n, K)) @ basis + 0.01 * chance.standard_normal((n, D)) + 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors as `v` with every suffix, and their model."""
    path = tmp_path_factory.mktemp("project")
    Y = low_rank(6000)
    np.save(path / "v.npy", Y)
    np.savetxt(path / "v.csv", Y, fmt="%.17g", delimiter=",")
    (path / "v.jsonl").write_text("\n".join(map(json.dumps, Y.tolist())))
    pq.write_table(pa.table({"id": range(6000), "vector": column_of(Y)}), path / "v.parquet", row_group_size=999)
    printed("fit", path / "v.parquet", "--field", "vector", "-o", path / "model.npz", "--components", K)
    return path


@pytest.fixture(scope="module")
def sidecar(folder: Path) -> Iterator[str]:
    """The URL of a sidecar that serves the model file."""
    arguments = ["serve", "--model", str(folder / "model.npz"), "--port", "0"]
    log = folder / "log"
    process = ForkedProcess(arguments, {}, folder / "out", log)
    try:
        wait_until(lambda: '"serving"' in log.read_text(), what="serving")
        yield json.loads(log.read_text().splitlines()[-1])["url"]
    finally:
        process.kill()
        process.wait()


def model_of(path: Path) -> PublishedModel:
    return model_file.decode(path.read_bytes())


def of_csv(path: Path) -> tuple[F64, F64]:
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    return rows[:, :K], rows[:, K]


def of_jsonl(path: Path) -> tuple[F64, F64]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return np.array([row["coordinates"] for row in rows]), np.array([row["residual"] for row in rows])


def of_parquet(path: Path) -> tuple[F64, F64]:
    table = pq.read_table(path)
    assert table["id"].to_pylist() == list(range(6000))
    return np.array(table["coordinates"].to_pylist()), table["residual"].to_numpy()


@pytest.mark.parametrize(
    ("by", "suffix", "read"),
    [("model.npz", "csv", of_csv), ("store", "jsonl", of_jsonl), ("sidecar", "parquet", of_parquet)],
)
def test_every_format_holds_what_the_model_computes_wherever_it_is(
    folder: Path, sidecar: str, tmp_path: Path, by: str, suffix: str, read: Callable[[Path], tuple[F64, F64]]
) -> None:
    published = model_of(folder / "model.npz")
    models_in(tmp_path / "store").save(published)
    location = {"store": tmp_path / "store", "sidecar": sidecar}.get(by, folder / by)
    field = ["--field", "vector"] if suffix == "parquet" else []
    out = tmp_path / f"out.{suffix}"
    words = ("project", "--model", location, "--basis", "whitened")
    output = printed(*words, folder / f"v.{suffix}", "-o", out, *field)
    assert "6,000 vectors projected by version 6000" in output
    projected = published.project(np.load(folder / "v.npy"))
    coordinates = projected.in_basis("whitened")
    assert np.array_equal(read(out)[0], coordinates)
    assert np.array_equal(read(out)[1], projected.residual)
    printed(*words, folder / "v.npy", "-o", tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), coordinates)


def test_a_model_is_continued(folder: Path, tmp_path: Path) -> None:
    later, both = low_rank(3000, seed=1), tmp_path / "both.npz"
    np.save(tmp_path / "later.npy", later)
    output = printed("fit", tmp_path / "later.npy", "-o", both, "--start-from", folder / "model.npz")
    assert "3,000 vectors of 8 dimensions" in output
    continued, Y = model_of(both), np.concatenate([np.load(folder / "v.npy"), later])
    assert (continued.version, continued.model.weight) == (9000, 9000.0)
    np.testing.assert_allclose(continued.model.mean, Y.mean(axis=0), rtol=1e-9)
    exact = np.linalg.eigvalsh(np.cov(Y.T, bias=True))[::-1]
    np.testing.assert_allclose(continued.model.explained_variance, exact[:K], rtol=1e-3)
    np.testing.assert_allclose(continued.model.total_variance, exact.sum(), rtol=1e-9)


def test_errors_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros((3, 2)))
    vectors, out, model = folder / "v.npy", tmp_path / "out.npy", folder / "model.npz"
    other = "holds vectors of 2 numbers, not of 8"
    assert_one_line(run("project", tmp_path / "short.npy", "--model", model, "-o", out), other)
    assert_one_line(run("project", vectors, "--model", "http://127.0.0.1:9", "-o", out), "http://127.0.0.1:9: ")
    for name, text in (("out.txt", "only .npy, .csv, .jsonl and .parquet files can be"), ("no/v.npy", "cannot write")):
        assert_one_line(run("project", vectors, "--model", model, "-o", tmp_path / name), text)
    assert_one_line(run("project", vectors, "--model", model, "-o", out, "--basis", "x"), "must be", code=2)
    continued = run("fit", vectors, "-o", out, "--start-from", model, "--components", 2)
    assert_one_line(continued, "give no others", code=2)
    assert {path.name for path in tmp_path.iterdir()} == {"short.npy"}
