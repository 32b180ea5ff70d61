"""Projected vectors are written beside the other columns of a table, so that they can be joined."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.projected import projected_file
from tests.files.test_rows import tables

COORDINATES = np.array([[0.1, 1e300], [-2.0, 5e-324], [3.0, 1 / 3]])


def write_projected(source: Path, output: Path) -> pa.Table:
    rows = open_rows(source, FileOptions("f_*", others=True))
    others = {name: kind for name, kind in rows.others.items() if name != "v"}
    start = 0
    with projected_file(output, 2, others) as write:
        for chunk in rows.chunks():
            coordinates = COORDINATES[start : (start := start + len(chunk.vectors))]
            write(coordinates, coordinates[:, 0], chunk.others)
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
