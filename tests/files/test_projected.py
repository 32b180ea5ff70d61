"""Projected vectors are written beside the other columns of a table, so that they can be joined."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from streampca.cli import fit, project
from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.projected import projected_file
from tests.errors import refusal
from tests.files.test_rows import tables

COORDINATES = np.array([[0.1, 1e300], [-2.0, 5e-324], [3.0, 1 / 3]])


def write_projected(source: Path, output: Path) -> pa.Table:
    rows = open_rows(source, FileOptions("f_*", other_columns=True))
    others = {name: kind for name, kind in rows.other_types.items() if name != "v"}
    start = 0
    with projected_file(output, 2, others) as write:
        for chunk in rows.chunks():
            coordinates = COORDINATES[start : (start := start + len(chunk.vectors))]
            write(coordinates, coordinates[:, 0], chunk.other_columns)
    return pa.csv.read_csv(output) if output.suffix == ".csv" else pq.read_table(output)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_keeps_its_columns(tmp_path: Path, suffix: str) -> None:
    for source in tables(tmp_path):
        table = write_projected(source, tmp_path / f"out{suffix}")
        assert [str(number) for number in table["id"].to_pylist()] == ["7", "8", "9"]
        assert table["text"].to_pylist() == ["a, b", "", "ü"]
        assert table["residual"].to_pylist() == COORDINATES[:, 0].tolist()
        if suffix == ".parquet":
            assert table["coordinates"].to_pylist() == COORDINATES.tolist()
        else:
            assert [table[f"coordinate_{i}"].to_pylist() for i in (1, 2)] == COORDINATES.T.tolist()
    if suffix == ".parquet":
        assert table.schema.field("id").type == pa.int64()
        assert table.schema.field("at").type == pa.timestamp("ms")


def test_columns_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with (
        pytest.raises(InputError, match=r"a column residual would be written to .* has that column"),
        projected_file(out, 2, {"residual": None}),
    ):
        pass
    lists = pa.array([[1.0]])
    with (
        pytest.raises(InputError, match=r"column v, list<.*>, cannot be written as CSV: write a \.parquet file"),
        projected_file(out, 2, {"v": lists.type}) as write,
    ):
        write(COORDINATES[:1], COORDINATES[:1, 0], {"v": lists})
    assert not list(tmp_path.iterdir())


LINES = [
    {"id": 7, "text": "a, b", "at": 1.5, "flag": True, "tags": [1], "v": [1.0, 2.0]},
    {"id": 8, "at": 2, "v": None},
    {"id": None, "text": "ü", "more": {"x": None}, "v": [3.0, 4.5]},
    {"id": 2**60 + 1, "text": "\ud83d", "at": 0.25, "v": [3.5, 4.0]},
]


def project_lines(folder: Path, suffix: str, lines: list[Any] = LINES) -> Path:
    """The output for JSON Lines of the model of the two dimensions."""
    source, output, model = folder / "in.jsonl", folder / f"out{suffix}", folder / "m.npz"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    numbers = folder / "x.npy"
    np.save(numbers, np.random.default_rng(0).normal(size=(50, 2)))
    fit.run(numbers, str(model), fit.FitOptions(components=1), None, FileOptions())
    project.run(source, str(model), output, "principal", None, FileOptions("v"))
    return output


def test_json_lines_keep_all_their_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row with null instead of a vector is skipped and counted, as by `fit`."""
    written = [json.loads(line) for line in project_lines(tmp_path, ".jsonl").read_text().splitlines()]
    kept = [{name: value for name, value in line.items() if name != "v"} for line in LINES if line["v"]]
    assert [{k: v for k, v in row.items() if k not in ("coordinates", "residual")} for row in written] == kept
    assert all(len(row["coordinates"]) == 1 and row["residual"] >= 0 for row in written)
    printed = capsys.readouterr()
    assert "1 rows skipped: null instead of a vector" in printed.err
    assert "3 vectors projected" in " ".join(printed.out.split())


def test_a_table_keeps_the_text_and_the_numbers_of_the_first_row(tmp_path: Path) -> None:
    lines = LINES[:3]
    table = pq.read_table(project_lines(tmp_path, ".parquet", lines))
    assert table.column_names == ["id", "text", "at", "coordinates", "residual"]
    assert table.select([0, 1, 2]).to_pylist() == [
        {"id": 7, "text": "a, b", "at": 1.5}, {"id": None, "text": "ü", "at": None},
    ]  # fmt: skip
    out = project_lines(tmp_path, ".csv", lines).read_text().splitlines()
    assert [line.rsplit(",", 2)[0] for line in out] == ["id,text,at", '7,"a, b",1.5', ",ü,"]
    assert "write a .jsonl file" in refusal(
        InputError, project_lines, tmp_path, ".parquet", [*lines, {"id": "nine", "v": [1, 2]}]
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_field_of_the_name_of_a_result_is_refused(tmp_path: Path, suffix: str) -> None:
    lines = [{"v": [1, 2], "residual": 1}]
    assert "residual would be written" in refusal(InputError, project_lines, tmp_path, suffix, lines)
    assert np.load(project_lines(tmp_path, ".npy", lines)).shape == (1, 1)
