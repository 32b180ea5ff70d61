"""The rows of a file that count: those that meet the conditions of `--where`."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.settings.field_paths import parse_conditions
from tests.errors import refusal

SUFFIXES = (".csv", ".jsonl", ".parquet", ".arrow")
KINDS = ("cpu", "mem", None)


def write(path: Path, rows: list[tuple[str | None, float, float]]) -> Path:
    """Write rows of a kind and two numbers."""
    table = pa.table(
        {
            "kind": pa.array([kind for kind, _, _ in rows], pa.string()),
            "x": pa.array([x for _, x, _ in rows], pa.float64()),
            "y": pa.array([y for _, _, y in rows], pa.float64()),
        }
    )
    match path.suffix:
        case ".csv":
            pyarrow.csv.write_csv(table, path)
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        case ".parquet":
            pq.write_table(table, path)
        case ".arrow":
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
    return path


def read(path: Path, where: str) -> tuple[list[list[float]], int, list[int]]:
    """Return the vectors, the number of rows that were skipped, and the number of each vector's row."""
    options = FileOptions("x,y", where=parse_conditions(where), dimensions=2)
    chunks = list(open_rows(path, options).chunks())
    vectors = np.concatenate([chunk.vectors for chunk in chunks]).tolist()
    skipped = sum(chunk.skipped["where"] for chunk in chunks)
    return vectors, skipped, [int(row) for chunk in chunks for row in chunk.rows]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("where", "is_met"),
    [
        ("kind=cpu", lambda kind, x: kind == "cpu"),
        ("kind!=cpu", lambda kind, x: kind != "cpu"),  # an absent value equals nothing
        ("kind=cpu,kind!=cpu", lambda kind, x: False),
        ("kind!=disk", lambda kind, x: True),
    ],
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=12))
def test_the_rows_that_meet_the_conditions_are_read_and_the_rest_is_counted(
    tmp_path: Path, suffix: str, where: str, is_met: object, kinds: list[str | None]
) -> None:
    assert callable(is_met)
    rows = [(kind, float(i), 0.5) for i, kind in enumerate(kinds)]
    expected = [(i, [x, y]) for i, (kind, x, y) in enumerate(rows) if is_met(kind, x)]
    vectors, skipped, numbers = read(write(tmp_path / f"rows{suffix}", rows), where)
    assert vectors == [vector for _, vector in expected]
    assert skipped == len(rows) - len(expected)
    assert numbers == [i + 1 for i, _ in expected]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow"])
def test_a_file_without_such_rows_says_so(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"rows{suffix}", [("cpu", 1.0, 2.0)])
    options = FileOptions("x,y", where=parse_conditions("kind=disk"))
    assert "holds no vectors in rows that meet --where" in refusal(InputError, open_rows, path, options)


def test_a_row_whose_condition_fits_two_elements_is_refused_by_its_number(tmp_path: Path) -> None:
    twice = {"m": [{"id": "a", "q": 1}, {"id": "a", "q": 1}], "x": 1, "y": 2}
    once = {"m": [{"id": "a", "q": 1}], "x": 3, "y": 4}
    path = tmp_path / "v.jsonl"
    path.write_text(f"{json.dumps(twice)}\n{json.dumps(once)}\n")
    rows = open_rows(path, FileOptions("x,y", where=parse_conditions("m[id=a].q=1")))
    assert "row 1: 2 elements have id=a" in refusal(InputError, lambda: list(rows.chunks()))
