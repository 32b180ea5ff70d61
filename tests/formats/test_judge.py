"""Which vectors may be learned: finite ones, not too large, with enough entries; and the setting that a gap needs."""

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from streampca.formats.schemas import WriterSchema
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from streampca.pca.missing_values import MissingValues
from tests.formats.structured import (
    FORMATS,
    GAPPY,
    READING,
    D,
    arrow,
    bytes_of,
    codec,
    encoded,
    framed,
    long,
    memory,
    npy,
    only_reject,
    protobuf,
    reading,
)


@pytest.mark.parametrize("kind", ["float32", "float64", "npy"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_rejected_with_their_index(kind: str, odd: float) -> None:
    hint = " (missing=impute learns vectors with gaps)" if np.isnan(odd) else ""
    reject = only_reject(codec(kind).decode([encoded(kind, [0.0, odd, odd])]))
    assert reject == ("not_finite", f"entry 1 is {odd}{hint}")


@pytest.mark.parametrize(("kind", "pattern"), [("float32", b"\x01\x00\x80\x7f"), ("float64", bytes(6) + b"\xf4\x7f")])
def test_a_signalling_nan_raises_no_warning(kind: str, pattern: bytes) -> None:
    good = encoded(kind, [1.0, 2.0, 3.0])
    decoded = codec(kind).decode([good, pattern * D, good])
    assert decoded.indices.tolist() == [0, 2]
    assert decoded.rejects[0].reason == "not_finite"


QUIET_NAN, SIGNALLING_NAN = b"\0\0\xc0\x7f", b"\1\0\x80\x7f"  # both single precision


def with_nan(make: Callable[[list[float]], bytes], nan: bytes) -> bytes:
    """A value in which one entry has exactly these bits of a NaN."""
    value = make([1.0, 123.0, 3.0])
    assert value.count(bytes_of([123.0], "<f4")) == 1
    return value.replace(bytes_of([123.0], "<f4"), nan)


@pytest.mark.parametrize("nan", [QUIET_NAN, SIGNALLING_NAN])
@pytest.mark.parametrize(
    ("kind", "field", "make"),
    [
        ("avro", "", lambda row: framed(1, long(3) + bytes_of(row, "<f4") + long(0))),
        ("avro", "", lambda row: framed(2, long(12) + bytes_of(row, "<f4"))),
        ("protobuf", "singles", lambda row: protobuf(reading(singles=row), 3)),
        ("protobuf", "blob", lambda row: protobuf(reading(blob=bytes_of(row, "<f4")), 3)),
        ("arrow", "v", lambda row: arrow([row], kind=pa.list_(pa.float32(), D))),
    ],
)
def test_reading_a_nan_raises_no_warning(
    kind: str, field: str, make: Callable[[list[float]], bytes], nan: bytes
) -> None:
    """The conversion of a signalling NaN would."""
    schemas = memory(WriterSchema("AVRO", '{"type":"array","items":"float"}'), WriterSchema("AVRO", '"bytes"'), READING)
    decoded = codec(kind, field, schemas).decode([with_nan(make, nan)])
    assert only_reject(decoded) == ("not_finite", "entry 1 is nan (missing=impute learns vectors with gaps)")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in FORMATS for dtype in ("float32", "float64") if (kind, dtype) != ("float32", "float64")],
)  # no square of a float32 overflows float64
def test_the_largest_value_is_accepted_and_the_next_one_rejected(kind: str, dtype: str) -> None:
    largest = LearningConfig(D, 1, dtype=dtype).largest_value
    if kind == "float32":  # the nearest float32 on either side
        low = float(np.float32(largest))
        low = low if low <= largest else float(np.nextafter(np.float32(low), np.float32(0)))
        high = float(np.nextafter(np.float32(low), np.float32(np.inf)))
    else:
        low, high = largest, float(np.nextafter(largest, np.inf))
    decoder = codec(kind, dtype=dtype, largest_value=largest)
    decoded = decoder.decode([encoded(kind, [0.0, sign * size, 1.0]) for size in (low, high) for sign in (1, -1)])
    assert decoded.indices.tolist() == [0, 1]
    assert [reject.reason for reject in decoded.rejects] == ["too_large"] * 2
    assert f"squares overflow {dtype}" in decoded.rejects[0].message


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_large_values_are_rejected_in_batches_of_any_magnitude(kind: str, data: st.DataObject) -> None:
    largest = LearningConfig(D, 1, dtype="float32").largest_value
    entry = st.one_of(
        st.floats(0.1, 10).map(lambda factor: factor * largest), st.floats(allow_nan=True, width=32), st.just(1.0)
    )
    rows = np.array(data.draw(st.lists(st.lists(entry, min_size=D, max_size=D), min_size=1, max_size=9)), kind)
    decoded = codec(kind, dtype="float32", largest_value=largest).decode([row.tobytes() for row in rows])
    with np.errstate(invalid="ignore"):
        good = (np.isfinite(rows) & (np.abs(rows.astype(np.float64)) <= largest)).all(axis=1)
    assert decoded.indices.tolist() == np.flatnonzero(good).tolist()


def values_of(rows: F64) -> dict[str, list[bytes]]:
    """Return the values of rows in each format that needs no schema."""

    def fields(row: F64) -> list[float | None]:
        return [None if np.isnan(entry) else float(entry) for entry in row]

    return {
        "json": [json.dumps(fields(row)).encode() for row in rows],
        "json, NaN": [json.dumps(row.tolist()).encode() for row in rows],
        "float64": [row.astype("<f8").tobytes() for row in rows],
        "float32": [row.astype("<f4").tobytes() for row in rows],
        "npy": [npy(row) for row in rows],
    }


@pytest.mark.parametrize("name", values_of(GAPPY))
def test_vectors_with_gaps_are_decoded_in_each_format(name: str) -> None:
    decoded = codec(name.partition(",")[0], d=4, min_observed=2).decode(values_of(GAPPY)[name])
    assert decoded.vectors.tobytes() == GAPPY[[0, 1, 3]].tobytes()
    assert [(reject.index, reject.reason) for reject in decoded.rejects] == [(2, "too_few_observed")]
    assert decoded.rejects[0].message == "1 of 4 entries are there, at least 2 are needed"


@pytest.mark.parametrize("name", values_of(GAPPY))
def test_without_imputation_a_gap_is_rejected_and_the_setting_is_named(name: str) -> None:
    decoded = codec(name.partition(",")[0], d=4).decode(values_of(GAPPY)[name])
    assert decoded.vectors.tobytes() == GAPPY[[1]].tobytes()
    reason = "undecodable" if name == "json" else "not_finite"
    assert {reject.reason for reject in decoded.rejects} == {reason}
    assert all("missing=impute" in reject.message for reject in decoded.rejects)


def test_all_bit_patterns_of_nan_become_one() -> None:
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], "<u8").view("<f8")
    rows = [np.array([1.0, nan, 3.0, 4.0]) for nan in odd]
    vectors = codec("float64", d=4, min_observed=2).decode([row.tobytes() for row in rows]).vectors
    assert vectors.tobytes() == np.tile(GAPPY[0], (3, 1)).tobytes()


def test_infinity_and_large_entries_are_rejected_beside_gaps() -> None:
    rows = np.array([[np.nan, np.inf, 1.0, 2.0], [np.nan, 1e200, 1.0, 2.0], [np.nan, 1.0, 1.0, 2.0]])
    decoded = codec("float64", d=4, min_observed=2).decode([row.tobytes() for row in rows])
    assert [reject.reason for reject in decoded.rejects] == ["not_finite", "too_large"]
    assert [reject.message.split(";")[0] for reject in decoded.rejects] == ["entry 1 is inf", "entry 1 is 1e+200"]
    assert len(decoded.vectors) == 1


CODED = np.where(np.isnan(GAPPY), -9999.0, GAPPY)  # a number in place of each gap
CODES = MissingValues.of("-9999, -1", "float64")


@pytest.mark.parametrize("name", values_of(CODED))
def test_missing_values_are_gaps_in_each_format(name: str) -> None:
    kind, _, _ = name.partition(",")
    decoded = codec(kind, d=4, min_observed=2, missing_values=CODES).decode(values_of(CODED)[name])
    gaps = codec(kind, d=4, min_observed=2).decode(values_of(GAPPY)[name])
    assert decoded.vectors.tobytes() == gaps.vectors.tobytes()
    assert decoded.rejects == gaps.rejects


@pytest.mark.parametrize("name", values_of(CODED))
def test_without_imputation_a_missing_value_is_rejected_and_both_settings_are_named(name: str) -> None:
    decoded = codec(name.partition(",")[0], d=4, missing_values=CODES).decode(values_of(CODED)[name])
    assert decoded.vectors.tobytes() == GAPPY[[1]].tobytes()
    assert {reject.reason for reject in decoded.rejects} == {"not_finite"}
    words = "entry 1 is -9999.0, one of missing_values (missing=impute learns vectors with gaps)"
    assert decoded.rejects[0].message == words


def test_infinity_that_is_not_a_missing_value_is_rejected_beside_it() -> None:
    missing_values = MissingValues.of("-inf", "float64")
    rows = np.array([[-np.inf, np.inf, 1.0, 2.0], [-np.inf, 1.0, 1.0, 2.0]])
    decoded = codec("float64", d=4, min_observed=2, missing_values=missing_values).decode([r.tobytes() for r in rows])
    assert decoded.vectors.tolist()[0][1:] == [1.0, 1.0, 2.0]
    assert [(reject.index, reject.message) for reject in decoded.rejects] == [(0, "entry 1 is inf")]
