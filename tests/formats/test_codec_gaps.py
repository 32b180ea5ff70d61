"""Every format hands over gaps, or rejects them with the setting that would allow them."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.pca.arrays import F64
from tests.formats.structured import READING, arrow, avro, avro_datum, avro_schema, memory, npy, protobuf, reading


def values_of(rows: F64) -> dict[str, list[bytes]]:
    """The rows in each format that needs no schema."""

    def fields(row: F64) -> list[float | None]:
        return [None if np.isnan(entry) else float(entry) for entry in row]

    return {
        "json": [json.dumps(fields(row)).encode() for row in rows],
        "json, NaN": [json.dumps(row.tolist()).encode() for row in rows],
        "float64": [row.astype("<f8").tobytes() for row in rows],
        "float32": [row.astype("<f4").tobytes() for row in rows],
        "npy": [npy(row) for row in rows],
    }


ROWS = np.array(
    [[1.0, np.nan, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], [np.nan, np.nan, np.nan, 4.0], [np.nan, 2.0, np.nan, 4.0]]
)


def codec(format: str, min_observed: int | None = 2, **more: Any) -> Codec:  # noqa: A002 - the setting's name
    return Codec(format, Judge(4, 1e100, min_observed=min_observed), **more)


@pytest.mark.parametrize("name", values_of(ROWS))
def test_each_format_hands_over_gaps(name: str) -> None:
    decoded = codec(name.partition(",")[0]).decode(values_of(ROWS)[name])
    assert decoded.vectors.tobytes() == ROWS[[0, 1, 3]].tobytes()
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(2, "too_few_observed")]
    assert decoded.rejects[0].message == "1 of 4 entries are there, at least 2 are needed"


@pytest.mark.parametrize("name", values_of(ROWS))
def test_a_gap_is_a_reject_that_names_the_setting(name: str) -> None:
    decoded = codec(name.partition(",")[0], None).decode(values_of(ROWS)[name])
    assert decoded.vectors.tobytes() == ROWS[[1]].tobytes()
    reason = "undecodable" if name.startswith("json") else "not_finite"
    assert {reject.reason for reject in decoded.rejects} == {reason}
    if name != "json, NaN":  # which is no JSON
        assert all("missing=impute" in reject.message for reject in decoded.rejects)


ARRAY = {"type": "array", "items": ["null", "double"]}


@pytest.mark.parametrize("min_observed", [2, None])
def test_avro_hands_over_null_and_nan(min_observed: int | None) -> None:
    rows = [[None if np.isnan(entry) else entry for entry in row] for row in ROWS.tolist()]
    nulls, plain = avro_schema(ARRAY, "v"), avro_schema({"type": "array", "items": "double"}, "v")
    values = [avro(nulls, avro_datum(row, "v")) for row in rows]
    values += [avro(plain, avro_datum(row, "v"), schema_id=2) for row in ROWS.tolist()]
    decoded = codec("avro", min_observed, field="v", schemas=memory(nulls, plain)).decode(values)
    good = [0, 1, 3] if min_observed else [1]
    assert decoded.vectors.tobytes() == np.tile(ROWS[good], (2, 1)).tobytes()
    assert {reject.reason for reject in decoded.rejects} == (
        {"too_few_observed"} if min_observed else {"undecodable", "not_finite"}
    )
    assert min_observed or all("missing=impute" in reject.message for reject in decoded.rejects)


def test_protobuf_hands_over_nan() -> None:
    values = [protobuf(reading(doubles=row.tolist())) for row in ROWS]
    decoded = codec("protobuf", field="doubles", schemas=memory(READING)).decode(values)
    assert decoded.vectors.tobytes() == ROWS[[0, 1, 3]].tobytes()


@pytest.mark.parametrize("kind", [pa.list_(pa.float64(), 4), pa.list_(pa.float32()), pa.large_list(pa.int32())])
@pytest.mark.parametrize("min_observed", [2, None])
def test_arrow_hands_over_nulls(kind: Any, min_observed: int | None) -> None:
    rows = [[None if np.isnan(entry) else int(entry) for entry in row] for row in ROWS.tolist()]
    values = [arrow(rows[:2], kind=kind), arrow(rows[2:], kind=kind), arrow([rows[1], None], kind=kind)]
    decoded = codec("arrow", min_observed).decode(values)
    assert decoded.vectors.tobytes() == (ROWS[:2].tobytes() if min_observed else b"")
    reasons = [(reject.index, reject.reason) for reject in decoded.rejects]
    second = [(1, "too_few_observed" if min_observed else "undecodable"), (2, "undecodable")]
    assert reasons == (second if min_observed else [(0, "undecodable"), *second])
    assert min_observed or "missing=impute" in decoded.rejects[0].message


def test_every_nan_gives_the_same_bits() -> None:
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], "<u8").view("<f8")
    rows = [np.array([1.0, nan, 3.0, 4.0]) for nan in odd]
    vectors = codec("float64").decode([row.tobytes() for row in rows]).vectors
    assert vectors.tobytes() == np.tile(ROWS[0], (3, 1)).tobytes()


def test_infinity_and_large_entries_are_rejected_beside_gaps() -> None:
    rows = np.array([[np.nan, np.inf, 1.0, 2.0], [np.nan, 1e200, 1.0, 2.0], [np.nan, 1.0, 1.0, 2.0]])
    decoded = codec("float64").decode([row.tobytes() for row in rows])
    assert [reject.reason for reject in decoded.rejects] == ["not_finite", "too_large"]
    assert [reject.message.split(";")[0] for reject in decoded.rejects] == ["entry 1 is inf", "entry 1 is 1e+200"]
    assert len(decoded.vectors) == 1


@pytest.mark.parametrize(
    "text",
    [b"[1, true, null, 2]", b'[1, "NaN", null, 2]', b"[1, [2], null, 3]", b"[1, null, 2]", b"[NaN, 1, 2, Infinity]"],
)
def test_json_that_is_no_vector_is_still_rejected(text: bytes) -> None:
    decoded = codec("json").decode([text])
    assert len(decoded.vectors) == 0
    assert len(decoded.rejects) == 1


def test_a_field_of_json_may_have_gaps() -> None:
    decoded = codec("json", field="a.b").decode([b'{"a": {"b": [1, null, 3, NaN], "c": null}}', b'{"a": {"b": null}}'])
    assert decoded.vectors.tolist()[0][::2] == [1, 3]
    assert np.isnan(decoded.vectors[0, 1::2]).all()
    assert decoded.rejects[0].message == "expected a JSON array of numbers, not null"
