"""`--field` in files, and rows that are read by the names that a model has learned."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from tests.errors import refusal

ROWS = [{"id": i, "at": {"x": i + 0.5, "y": 2.0 * i}, "v": [i, 1, 2], "x*": 3 * i} for i in range(5)]


def files(folder: Path, rows: list[dict[str, object]]) -> list[Path]:
    """The same rows in every kind that has columns."""
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "v.parquet", row_group_size=2)
    feather.write_feather(table, folder / "v.feather", chunksize=3)
    with pa.OSFile(str(folder / "v.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    (folder / "v.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [folder / f"v.{suffix}" for suffix in ("parquet", "feather", "arrow", "jsonl")]


def vectors(path: Path, options: FileOptions) -> list[list[float]]:
    return np.concatenate([chunk.vectors for chunk in open_rows(path, options).chunks()]).tolist()


@pytest.mark.parametrize(
    ("field", "names", "last"),
    [
        ("v", None, [4, 1, 2]),
        ("at.x,id", ["x", "id"], [4.5, 4]),
        ("at.*", ["x", "y"], [4.5, 8]),
        ("a?.[xy]", ["x", "y"], [4.5, 8]),
        ("x*", ["x*"], [12]),  # the very name, not a pattern
        ("`x*`,i*", ["x*", "id"], [12, 4]),
    ],
)
def test_field_means_the_same_in_all_kinds_of_files(
    tmp_path: Path, field: str, names: list[str] | None, last: list[float]
) -> None:
    for path in files(tmp_path, ROWS):  # type: ignore[arg-type]
        rows = open_rows(path, FileOptions(field))
        assert (rows.names, rows.dimensions) == (names, len(last)), path
        assert vectors(path, FileOptions(field))[-1] == last


@pytest.mark.parametrize(
    ("field", "needle"),
    [
        ("", "column (at|v) holds no numbers: say by --field which columns hold the numbers: id, at"),
        ("w", r"has no column w; there are id, at, v, x\*"),
        ("at.z", "has no column z; there are x, y"),
        ("`i*`", r"has no column i\*"),
        ("a..b", "not a path"),
        ("at", "not an object with"),
    ],
)
def test_wrong_fields_are_refused(tmp_path: Path, field: str, needle: str) -> None:
    for path in files(tmp_path, ROWS):  # type: ignore[arg-type]
        assert re.search(needle, refusal(InputError, open_rows, path, FileOptions(field)))


def test_columns_are_read_by_the_names_learned(tmp_path: Path) -> None:
    numbers: list[dict[str, object]] = [{"b": 2, "a": 1, "c": 3.5}] * 4
    (tmp_path / "v.csv").write_text("b,a,c\n" + "2,1,3.5\n" * 4)
    for path in [*files(tmp_path, numbers), tmp_path / "v.csv"]:
        for field in ("", "*", "a,b,c"):
            options = FileOptions(field, dimensions=2, names=["c", "a"])
            assert open_rows(path, options).names == ["c", "a"]
            assert vectors(path, options)[0] == [3.5, 1]
        assert "columns b, a, c, but the dimensions are a, d" in refusal(
            InputError, open_rows, path, FileOptions("*", dimensions=2, names=["a", "d"])
        )
    np.save(tmp_path / "v.npy", np.ones((3, 2)))
    rows = open_rows(tmp_path / "v.npy", FileOptions(dimensions=2, names=["a", "d"]))
    assert (rows.names, rows.notes) == (None, "its columns have no names, so they are read in their order")


@pytest.mark.parametrize("around", [False, True])
def test_sparse_vectors_in_columns_are_refused_and_dense_ones_are_read(tmp_path: Path, around: bool) -> None:
    columns = {"indices": pa.array([None, [1]]), "values": pa.array([[1.0, 2.0], [3.0, 4.0]])}
    if around:
        columns = {"v": pa.StructArray.from_arrays(list(columns.values()), list(columns))}
    table, options = pa.table(columns), FileOptions("v.values" if around else "values")
    pq.write_table(table.slice(0, 1), tmp_path / "dense.parquet")
    pq.write_table(table, tmp_path / "sparse.parquet")
    [chunk] = open_rows(tmp_path / "dense.parquet", options).chunks()
    assert chunk.vectors.tolist() == [[1, 2]]
    message = refusal(InputError, lambda: list(open_rows(tmp_path / "sparse.parquet", options).chunks()))
    assert "row 2: a sparse vector" in message


def test_a_column_that_is_kept_may_hold_text_in_any_encoding(tmp_path: Path) -> None:
    text = pa.array([b"Stra\xdfe"]).view(pa.string())
    table = pa.table({"v": [[1.0, 2.0]], "s": pa.StructArray.from_arrays([text], ["text"]), "text": text})
    with pa.ipc.new_stream(tmp_path / "v.arrow", table.schema) as writer:
        writer.write_table(table)
    [chunk] = open_rows(tmp_path / "v.arrow", FileOptions("v", other_columns=True)).chunks()
    assert (chunk.vectors.tolist(), list(chunk.other_columns)) == ([[1, 2]], ["s", "text"])


def test_a_row_may_hold_no_vector_or_several(tmp_path: Path) -> None:
    rows = [{"e": None}, {"e": [[1, 2], [3, 4]]}, {"e": [[5, 6]]}]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chunks = list(open_rows(tmp_path / "v.jsonl").chunks(skip_nulls=True))
    assert [(c.vectors.tolist(), c.rows.tolist(), c.skipped) for c in chunks] == [
        ([[1, 2], [3, 4], [5, 6]], [2, 2, 3], {"no_value": 1})
    ]
    assert "row 1: the field 'e' is null" in refusal(InputError, list, open_rows(tmp_path / "v.jsonl").chunks())


@pytest.mark.parametrize(
    ("field", "first"),
    [("p.*", {"p": None}), ("p.a,p.b", {"p": {"a": None, "b": None}}), ("p.b,p.*", {"p": None}), ("p.e", {"p": None})],
)
@pytest.mark.parametrize("dimensions", [None, 2])
def test_rows_before_the_first_vector_do_not_choose_the_columns(
    tmp_path: Path, field: str, first: dict[str, object], dimensions: int | None
) -> None:
    """A path may be null, or an array without elements, before a row shows what is there."""
    rows: list[dict[str, object]] = [first, {"p": {"a": 1, "b": 2}} if field != "p.e" else {"p": {"e": [1, 2]}}]
    (tmp_path / "v.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in [None, *rows]))
    options = FileOptions(field, dimensions=dimensions, impute=True)
    chunks = list(open_rows(tmp_path / "v.jsonl", options).chunks(skip_nulls=True))
    assert chunks[0].vectors[-1].tolist() == ([2.0, 1] if field == "p.b,p.*" else [1, 2])
    rows = [{"p": []}, {"p": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}]
    (tmp_path / "v.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert vectors(tmp_path / "v.jsonl", FileOptions("p.x,p.y", dimensions=dimensions)) == [[1, 2], [3, 4]]


def test_arrays_that_are_too_deep_are_refused(tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text("[1,2]\n" + "[" * 1000 + "]" * 1000)
    assert re.search(r"row 2: .*(deep|array)", refusal(InputError, vectors, tmp_path / "v.jsonl", FileOptions()))


def test_an_index_of_pandas_is_not_read_as_a_dimension(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0], "__index_level_0__": [7]}), tmp_path / "v.parquet")
    assert "a column has no name" in refusal(InputError, open_rows, tmp_path / "v.parquet")


def test_bytes_may_be_numbers_of_two_sizes(tmp_path: Path) -> None:
    for n in (3, 4):
        data = np.arange(n, dtype="<f4").tobytes()
        (tmp_path / f"{n}.jsonl").write_text(json.dumps({"e": base64.b64encode(data).decode()}))
        pq.write_table(pa.table({"e": [data]}), tmp_path / f"{n}.parquet")
        for path in (tmp_path / f"{n}.jsonl", tmp_path / f"{n}.parquet"):
            assert vectors(path, FileOptions("e", dimensions=n)) == [list(range(n))]
    for suffix in ("jsonl", "parquet"):
        assert vectors(tmp_path / f"3.{suffix}", FileOptions("e")) == [[0, 1, 2]]
        assert "16 bytes may be 4 numbers of 4 or 2 of 8: say --dimensions" in refusal(
            InputError, open_rows, tmp_path / f"4.{suffix}", FileOptions("e")
        )


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", ["a map", "texts of JSON"])
def test_a_pattern_whose_names_are_only_in_rows_is_refused(tmp_path: Path, suffix: str, kind: str) -> None:
    records = [{"f_x": 1.0, "f_y": 2.0}, {"f_x": 3.0, "f_y": 4.0}]
    if kind == "a map":
        column = pa.array([list(record.items()) for record in records], pa.map_(pa.string(), pa.float64()))
    else:
        column = pa.array([json.dumps(record) for record in records])
    path = tmp_path / f"v.{suffix}"
    write = pq.write_table if suffix == "parquet" else feather.write_feather
    write(pa.table({"m": column}), path)
    assert "pattern m.f_* is not known: write each name" in refusal(InputError, open_rows, path, FileOptions("m.f_*"))
    rows = open_rows(path, FileOptions("m.f_x,m.f_y"))
    assert np.concatenate([chunk.vectors for chunk in rows.chunks()]).tolist() == [[1, 2], [3, 4]]
