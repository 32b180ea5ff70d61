"""Vectors read from files, and errors that name the bad row."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from tests.errors import refusal


def read(path: Path) -> tuple[np.ndarray, list[float]]:
    chunks = list(open_rows(path).chunks())
    return np.concatenate([chunk.vectors for chunk in chunks]), [chunk.progress for chunk in chunks]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
@pytest.mark.parametrize(("name", "count"), [("v.npy", 3), ("v.jsonl", 40)])
def test_files_are_read_in_chunks(dtype: str, tmp_path: Path, name: str, count: int) -> None:
    Y = (np.arange(30_000).reshape(10_000, 3) % 100).astype(dtype)
    np.save(tmp_path / "v.npy", Y)
    (tmp_path / "v.jsonl").write_text("\n".join(map(json.dumps, Y.tolist())))
    vectors, shares = read(tmp_path / name)
    assert open_rows(tmp_path / name).dimensions == 3
    assert np.array_equal(vectors, Y)
    assert (vectors.dtype.kind, len(shares)) == ("f", count)
    assert 0 < shares[0] < shares[count // 2] < shares[-1] == 1.0
    assert shares == sorted(shares)


def test_npy_is_not_read_into_memory(tmp_path: Path) -> None:
    file = np.lib.format.open_memmap(tmp_path / "v.npy", mode="w+", dtype="float64", shape=(200_000_000, 8))
    del file  # 12 GB, sparse
    chunk = next(open_rows(tmp_path / "v.npy").chunks())
    assert chunk.vectors.nbytes < 2**21
    assert chunk.progress < 1e-3


@pytest.mark.parametrize("text", ["\ufeffa,b\n1,2\n\n3.5,-4e2\n", "1,2\n3.5,-400"], ids=["a header", "none"])
def test_csv_is_read_with_or_without_a_header(text: str, tmp_path: Path) -> None:
    vectors, shares = read(write(tmp_path / "v.csv", text))
    assert vectors.tolist() == [[1, 2], [3.5, -400]]
    assert shares == [1.0]


@pytest.mark.parametrize(
    ("name", "text", "needle"),
    [
        ("v.csv", "a,b\n1,2\n3,x\n", "row 2: column 2 (b) is not a number: 'x'"),
        ("v.csv", "1,2\n3\n", "row 2: 1 cells, not 2 (cells are separated by ',')"),
        ("v.csv", '"1,2\n3\n', "cannot be read: unexpected end of data"),
        ("v.csv", "1,2\n3,nan\n", "row 2: number 2 is nan (missing=impute learns vectors with gaps)"),
        ("v.csv", "1,2\n3,inf\n", "row 2: number 2 is inf"),
        ("v.csv", "", "holds no vectors"),
        ("v.csv", "a,b\n", "holds no vectors"),
        ("v.jsonl", "[1, 2]\n[3, 4\n", "row 2: "),
        ("v.jsonl", '[1, 2]\n{"a": 1}\n', "row 2: expected an array of numbers, not an object with 'a'"),
        ("v.jsonl", "[1, 1e999]\n", "row 1: number 2 is inf"),
        ("v.txt", "1,2\n", "its suffix is none of those that can be read: .npy, .csv, .tsv, .jsonl, "),
        ("v.npy", "not numpy", "is not an .npy array of numbers, as numpy.save writes it: the magic string"),
        ("v.npy", "PK\3\4 an archive", "is not an .npy array of numbers, as numpy.save writes it: the magic string"),
        ("v.parquet", "PAR1 no", "v.parquet cannot be read: "),
        ("v.npy", "", "is not an .npy array of numbers, as numpy.save writes it: EOF"),
    ],
)
def test_invalid_files_are_refused(name: str, text: str, needle: str, tmp_path: Path) -> None:
    message = refusal(InputError, read, write(tmp_path / name, text))
    assert name in message
    assert needle in message


@pytest.mark.parametrize(
    ("array", "needle"),
    [
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((0, 3)), "holds no vectors"),
        (np.zeros((3, 2), complex), "complex128"),
        (np.array([["a"]]), "real numbers"),
        (np.array([[{"a": 1}]], dtype=object), r"not an \.npy array of numbers"),  # it would be unpickled
    ],
)
def test_invalid_arrays_are_refused(array: np.ndarray, needle: str, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", array, allow_pickle=True)
    with pytest.raises(InputError, match=needle):
        list(open_rows(tmp_path / "v.npy").chunks())


TABLE = pa.table({
    "id": [7, 8, 9], "f_0": [1, 2, None], "at": pa.array([0, 1, 2], pa.timestamp("ms")), "f_1": [3.0, 4.0, 5.0],
    "text": ["a, b", "", "ü"], "v": pa.array([[1.0], [2.0], [3.0]]),
})  # fmt: skip


def tables(folder: Path) -> list[Path]:
    """The same table, without a missing number, as CSV and as Parquet."""
    whole = TABLE.set_column(1, "f_0", pa.array([1, 2, 3]))
    pq.write_table(whole, folder / "v.parquet", row_group_size=2)
    pa.csv.write_csv(whole.drop_columns(["v"]), folder / "v.csv")
    return [folder / "v.csv", folder / "v.parquet"]


def test_field_chooses_the_numbers_and_others_the_further_columns(tmp_path: Path) -> None:
    assert "leave --field and --where away" in refusal(InputError, open_rows, tmp_path / "v.npy", FileOptions("f_*"))
    for path in tables(tmp_path):
        rows = open_rows(path, FileOptions("f_*", other_columns=True))
        chunks = list(rows.chunks())
        assert np.concatenate([chunk.vectors for chunk in chunks]).tolist() == [[1, 3], [2, 4], [3, 5]]
        assert list(rows.other_types)[:3] == ["id", "at", "text"]
        assert [str(text) for chunk in chunks for text in chunk.other_columns["text"]] == ["a, b", "", "ü"]
        assert not any(chunk.other_columns for chunk in open_rows(path, FileOptions("f_*")).chunks())
        with pytest.raises(InputError, match=r"v\.\w+.* has no column g; there are id, f_0"):
            open_rows(path, FileOptions("g"))


@pytest.mark.parametrize(("suffix", "hint"), [("parquet", ""), ("csv", " .missing=impute learns")])
def test_missing_numbers_of_a_table_are_refused_or_imputed(tmp_path: Path, suffix: str, hint: str) -> None:
    pq.write_table(TABLE, tmp_path / "v.parquet")
    pa.csv.write_csv(TABLE.drop_columns(["v"]), tmp_path / "v.csv")
    with pytest.raises(InputError, match=f"row 3: number 1 .f_0. is nan{hint}"):
        list(open_rows(tmp_path / f"v.{suffix}", FileOptions("f_*")).chunks())
    [chunk] = open_rows(tmp_path / f"v.{suffix}", FileOptions("f_*", impute=True)).chunks()
    np.testing.assert_array_equal(chunk.vectors, [[1, 3], [2, 4], [np.nan, 5]])


@pytest.mark.parametrize(
    ("columns", "field", "needle"),
    [
        ({"v": [[1.0, 2.0], [3.0]]}, "", "row 2: 1 numbers, not 2"),
        ({"f_0": ["x"], "f_1": [1.0]}, "f_*", "row 1: 'f_0' must be a number, not a string"),
        ({"v": pa.array([], pa.list_(pa.float64()))}, "", "holds no vectors"),
        ({"v": [None, [1.0]]}, "", "row 1: the row is null"),
        ({"id": [1], "v": [[1.0]]}, "id,v", "4 numbers|several paths lead to arrays: say by --dimensions"),
        ({"id": [1], "v": [[1.0]]}, "", "say by --field which columns hold the numbers: id, v"),
    ],
)
def test_invalid_tables_are_refused(columns: dict[str, Any], field: str, needle: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    with pytest.raises(InputError, match=needle):
        list(open_rows(tmp_path / "v.parquet", FileOptions(field)).chunks())


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("first", [{"p": None, "z": 4}, {"p": {"x": 1, "y": None}, "z": 4}])
def test_a_first_row_with_gaps_has_the_dimensions_of_all_rows(
    tmp_path: Path, suffix: str, first: dict[str, Any]
) -> None:
    rows = [first, {"p": {"x": 1, "y": 2}, "z": 5}]
    path = tmp_path / f"v.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["p", "z"], *([json.dumps(row["p"]), row["z"]] for row in rows)])
    opened = open_rows(path, FileOptions("p.x,p.y,z", impute=True))
    assert opened.names == ["x", "y", "z"]
    gap = np.nan
    x = gap if first["p"] is None else 1
    np.testing.assert_array_equal(
        np.concatenate([chunk.vectors for chunk in opened.chunks()]), [[x, gap, 4], [1, 2, 5]]
    )


@pytest.mark.parametrize("times", [0, 1, 2])
def test_rows_that_were_encoded_several_times_are_read_with_their_other_fields(tmp_path: Path, times: int) -> None:
    lines = []
    for i in range(3):
        line = json.dumps({"v": [i, 1], "id": f"row {i}", "at": i})
        for _ in range(times):
            line = json.dumps(line)
        lines.append(f"{line}\n")
    path = tmp_path / "v.jsonl"
    path.write_text("".join(lines))
    [chunk] = open_rows(path, FileOptions("v", other_columns=["id"])).chunks()
    assert chunk.vectors.tolist() == [[0, 1], [1, 1], [2, 1]]
    assert chunk.other_columns["id"].tolist() == ["row 0", "row 1", "row 2"]
    all_others = open_rows(path, FileOptions("v", other_columns=True))
    assert all_others.other_types == {"id": None, "at": "int64"}
    [chunk] = all_others.chunks()
    assert chunk.other_columns["at"].tolist() == [0, 1, 2]
