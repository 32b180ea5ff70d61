"""Vectors read from files, and errors that name the bad row."""

import json
from pathlib import Path

import numpy as np
import pytest

from streampca.errors import InputError
from streampca.files.rows import open_rows


def read(path: Path) -> tuple[np.ndarray, list[float]]:
    pieces = list(open_rows(path).pieces())
    return np.concatenate([vectors for vectors, _ in pieces]), [share for _, share in pieces]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
def test_npy_in_pieces(dtype: str, tmp_path: Path) -> None:
    Y = (np.arange(30_000).reshape(10_000, 3) % 100).astype(dtype)
    np.save(tmp_path / "v.npy", Y)
    rows = open_rows(tmp_path / "v.npy")
    vectors, shares = read(tmp_path / "v.npy")
    assert (rows.count, rows.dimensions) == (10_000, 3)
    assert np.array_equal(vectors, Y)
    assert vectors.dtype.kind == "f"
    assert len(shares) == 3
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_npy_is_not_read_into_memory(tmp_path: Path) -> None:
    file = np.lib.format.open_memmap(tmp_path / "v.npy", mode="w+", dtype="float64", shape=(200_000_000, 8))
    del file  # 12 GB, sparse
    vectors, share = next(open_rows(tmp_path / "v.npy").pieces())
    assert vectors.nbytes < 2**21
    assert share < 1e-3


def test_csv(tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", "\ufeffa,b\n1,2\n\n3.5,-4e2\n")
    vectors, shares = read(path)
    assert vectors.tolist() == [[1, 2], [3.5, -400]]
    assert shares == [1.0]


def test_csv_without_header(tmp_path: Path) -> None:
    assert read(write(tmp_path / "v.csv", "1,2\n3,4"))[0].tolist() == [[1, 2], [3, 4]]


def test_jsonl_in_pieces(tmp_path: Path) -> None:
    Y = np.arange(20_000).reshape(10_000, 2)
    path = write(tmp_path / "v.jsonl", "\n".join(json.dumps(row) for row in Y.tolist()))
    vectors, shares = read(path)
    assert np.array_equal(vectors, Y)
    assert len(shares) == 3
    assert 0 < shares[0] < shares[1] < shares[2] == 1.0


@pytest.mark.parametrize(
    ("name", "text", "needle"),
    [
        ("v.csv", "a,b\n1,2\n3,x\n", "row 2: column 2 (b) is no number: 'x'"),
        ("v.csv", "1,2\n3\n", "row 2: 1 numbers, but 2"),
        ("v.csv", "1,2\n3,nan\n", "row 2: number 2 is nan"),
        ("v.csv", "1,2\n3,inf\n", "row 2: number 2 is inf"),
        ("v.csv", "", "holds no vectors"),
        ("v.csv", "a,b\n", "holds no vectors"),
        ("v.jsonl", "[1, 2]\n[3, 4\n", "row 2: "),
        ("v.jsonl", '[1, 2]\n{"a": 1}\n', "row 2: expected a JSON array of numbers, not an object"),
        ("v.jsonl", "[1, true]\n", "row 1: entry 1 must be a number, not a boolean"),
        ("v.jsonl", "[1, 1e999]\n", "row 1: not JSON: number is infinity"),
        ("v.txt", "1,2\n", "only .npy, .csv, .jsonl and .parquet"),
        ("v.npy", "not numpy", "is not an .npy array of numbers, as numpy.save writes it: the magic string"),
        ("v.npy", "PK\3\4 an archive", "is not an .npy array of numbers, as numpy.save writes it: the magic string"),
        ("v.npy", "", "is not an .npy array of numbers, as numpy.save writes it: EOF"),
    ],
)
def test_invalid_files_are_refused(name: str, text: str, needle: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"v\.") as caught:
        read(write(tmp_path / name, text))
    assert needle in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("array", "needle"),
    [
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((0, 3)), "holds no vectors"),
        (np.zeros((3, 2), complex), "complex128"),
        (np.array([["a"]]), "real numbers"),
    ],
)
def test_invalid_arrays_are_refused(array: np.ndarray, needle: str, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", array)
    with pytest.raises(InputError, match=needle):
        open_rows(tmp_path / "v.npy")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([[{"a": 1}]], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"not an \.npy array of numbers"):
        open_rows(tmp_path / "v.npy")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        open_rows(tmp_path / "none.csv")
