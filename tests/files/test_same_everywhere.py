"""A record gives the same vectors, or is left out or refused, in every format and in every kind of file."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.formats.record import Decoded
from streampca.settings.field_paths import parse_conditions
from tests.formats.structured import codec, ipc

NUMBERS = st.integers(-9, 9).map(float) | st.none()
ELEMENT = st.fixed_dictionaries({"id": st.sampled_from("abc"), "v": NUMBERS, "q": st.booleans()})
RECORD = st.fixed_dictionaries(
    {
        "m": st.lists(ELEMENT, max_size=3) | st.none(),
        "x": st.lists(NUMBERS, max_size=3) | st.none(),
        "y": st.lists(NUMBERS, max_size=3) | st.none(),
        "n": NUMBERS,
        "t": st.sampled_from(["cpu", "mem", None]),
    }
)
SCHEMA = pa.schema(
    {
        "m": pa.list_(pa.struct({"id": pa.string(), "v": pa.float64(), "q": pa.bool_()})),
        "x": pa.list_(pa.float64()), "y": pa.list_(pa.float64()), "n": pa.float64(), "t": pa.string(),
    }
)  # fmt: skip
FIELDS = ["m.v", "m[id=a].v,m[id=b].v", "x,y", "x", "n,m[id=c].v", "m.v,m.q", "m.v,n"]
CONDITIONS = ["", "t=cpu", "t!=cpu", "m.q=true", "m.id=a", "m[id=a].q=true", "t=cpu,m.q!=false", "n=3.0"]


def prefixed(paths: str, prefix: str) -> str:
    """The same paths or conditions, inside of the value at the path `prefix`."""
    return ",".join(f"{prefix}.{path}" for path in paths.split(",")) if paths else ""


def outcome(decoded: Decoded) -> Any:
    """The vectors, or why there are none."""
    if decoded.rejects:
        return "refused"
    return [skipped.reason for skipped in decoded.skipped] or np.nan_to_num(decoded.vectors, nan=99).tolist()


def as_json(record: Any, field: str, where: str, **options: Any) -> Any:
    return outcome(codec("json", field, where=where, **options).decode([json.dumps(record).encode()]))


def as_text_in_json(record: Any, field: str, where: str, **options: Any) -> Any:
    return as_json({"p": json.dumps(record)}, prefixed(field, "p"), prefixed(where, "p"), **options)


def as_csv(record: Any, field: str, where: str, **options: Any) -> Any:
    cell = json.dumps(record).replace('"', '""')
    decoder = codec("csv", prefixed(field, "1"), where=prefixed(where, "1"), **options)
    return outcome(decoder.decode([f'7,"{cell}"'.encode()]))


def as_arrow(record: Any, field: str, where: str, **options: Any) -> Any:
    batch = pa.RecordBatch.from_pylist([record], SCHEMA)
    return outcome(codec("arrow", field, where=where, **options).decode([ipc(SCHEMA, [batch])]))


@pytest.mark.parametrize("read", [as_text_in_json, as_csv, as_arrow])
@pytest.mark.parametrize("field", FIELDS)
@given(record=RECORD, where=st.sampled_from(CONDITIONS), d=st.sampled_from([2, 3]), impute=st.booleans())
@settings(max_examples=40)
def test_a_message_means_the_same_in_every_format(
    read: Callable[..., Any], field: str, record: dict[str, Any], where: str, d: int, impute: bool
) -> None:
    options = {"d": d, "min_observed": 1 if impute else None}
    assert read(record, field, where, **options) == as_json(record, field, where, **options)


def in_file(path: Path, record: Any) -> str:
    """Write a file with the record as its only row; return the path to the record in a row."""
    if path.suffix == ".jsonl":
        path.write_text(json.dumps(record) + "\n")
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["r", "k"], [json.dumps(record), 7]])
        return "r"
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([record], SCHEMA), path)
    else:
        feather.write_feather(pa.Table.from_pylist([record], SCHEMA), path)
    return ""


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("field", FIELDS)
@given(record=RECORD, where=st.sampled_from(CONDITIONS), d=st.sampled_from([2, 3]), impute=st.booleans())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_row_of_a_file_means_what_the_message_means(
    tmp_path: Path, suffix: str, field: str, record: dict[str, Any], where: str, d: int, impute: bool
) -> None:
    path = tmp_path / f"v.{suffix}"
    prefix = in_file(path, record)
    paths, conditions = (prefixed(text, prefix) if prefix else text for text in (field, where))
    options = FileOptions(paths, where=parse_conditions(conditions), dimensions=d, impute=impute)
    seen: Any = None
    try:
        chunks = list(open_rows(path, options).chunks(skip_nulls=True))
        vectors = np.concatenate([chunk.vectors for chunk in chunks])
        seen = [reason for chunk in chunks for reason in chunk.skipped] or np.nan_to_num(vectors, nan=99).tolist()
    except InputError:
        seen = "refused"
    expected = as_json(record, field, where, d=d, min_observed=0 if impute else None)
    assert seen == expected
