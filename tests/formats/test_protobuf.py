"""Protobuf: values of its own library are decoded bit for bit; a schema's fault is no fault of the machine."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.formats import protobuf as module
from streampca.formats.errors import VectorError
from streampca.formats.schemas import WriterSchema
from tests.errors import refusal
from tests.formats.structured import (
    DOUBLES,
    GAPPY,
    INTEGERS,
    READING,
    ROW,
    SINGLES,
    D,
    assert_rejected,
    bytes_of,
    codec,
    framed,
    memory,
    only_reject,
    protobuf,
    reading,
    readings,
)

MESSAGES: list[tuple[str, st.SearchStrategy[list[float]], Callable[[list[float]], Any]]] = [
    ("doubles", DOUBLES, lambda row: reading(sensor="é", doubles=row, singles=[1])),
    ("loose", DOUBLES, lambda row: reading(loose=row)),
    ("blob", DOUBLES, lambda row: reading(blob=bytes_of(row, "<f8"))),
    ("blob", SINGLES, lambda row: reading(blob=bytes_of(row, "<f4"))),
    ("step.deep.v", DOUBLES, lambda row: reading(step={"deep": {"v": row, "unit": "m"}})),
    ("singles", SINGLES, lambda row: reading(singles=row)),
    ("counts", INTEGERS, lambda row: reading(counts=row)),
    ("part.v", SINGLES, lambda row: reading(part={"v": row})),  # defined in an imported file
]


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("field", "rows", "message"), MESSAGES)
def test_protobuf_numbers_are_decoded_bit_for_bit(field: str, rows: Any, message: Any, data: st.DataObject) -> None:
    row = data.draw(rows)
    decoded = readings(field).decode([protobuf(message(row))] * 2)
    assert decoded.rejects == []
    assert decoded.vectors.tobytes() == np.array([row, row], np.float64).tobytes()


def field_3(data: bytes) -> bytes:
    """Field `doubles`, packed, as on the wire."""
    return b"\x1a" + bytes([len(data)]) + data


def loose_3(number: float) -> bytes:
    """One entry of `doubles`, unpacked, as on the wire."""
    return b"\x19" + bytes_of([number], "<f8")


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (field_3(bytes_of(ROW, "<f8")), 3),
        (field_3(bytes_of(ROW[:1], "<f8")) + field_3(bytes_of(ROW[1:], "<f8")), 3),
        (b"".join(map(loose_3, ROW)), 3),
        (field_3(bytes_of(ROW[:2], "<f8")) + loose_3(ROW[2]), 3),
        (field_3(bytes_of(ROW, "<f8")) + loose_3(9.0), 4),
        (field_3(bytes_of(ROW[:2], "<f8")), 2),
        (b"", 0),
        (field_3(bytes_of(ROW, "<f8")[:11]) + field_3(bytes_of(ROW, "<f8")[11:]), None),
        (field_3(bytes_of(ROW, "<f8")[:-1]), None),
        (field_3(bytes_of(ROW, "<f8"))[:-1], None),
    ],
)
def test_protobuf_arrays_may_be_packed_or_unpacked(payload: bytes, count: int | None) -> None:
    """A reader must accept both, even mixed."""
    decoded = readings("doubles").decode([framed(1, b"\x02\x02" + payload)])
    if count == D:
        assert decoded.vectors.tolist() == [ROW]
    elif count is None:
        assert only_reject(decoded) == ("undecodable", "not Protobuf of its schema")
    else:
        assert only_reject(decoded) == ("wrong_length", f"{count} numbers, not 3")


def test_protobuf_indexes_select_the_message_type() -> None:
    schema = WriterSchema(
        "PROTOBUF", 'syntax = "proto3"; message A { repeated double v = 1; message B { bytes v = 1; } }'
    )
    values = [framed(1, indexes + b"\x0a\x18" + bytes_of(ROW, "<f8")) for indexes in (b"\0", b"\x02\0", b"\x04\0\0")]
    assert codec("protobuf", "v", memory(schema)).decode(values).vectors.tolist() == [ROW] * 3


@pytest.mark.parametrize(
    ("indexes", "words"),
    [
        (b"", "have no end"), (b"\x02", "have no end"), (b"\x80", "have no end"), (b"\xff" * 200, "have no end"),
        (b"\x01", "negative"), (b"\x02\x01", "negative"), (b"\x02\x08", "no such message"),
        (b"\x04\x02\x06", "no such message"), (b"\x7f", "negative"),
    ],
)  # fmt: skip
def test_invalid_protobuf_indexes_are_rejected(indexes: bytes, words: str) -> None:
    assert_rejected(readings("doubles").decode([framed(1, indexes)]), "undecodable", words)


@pytest.mark.parametrize(
    ("field", "reason", "words"),
    [
        ("vector", "undecodable", "no field 'vector'"), ("step.v", "undecodable", "no field 'step.v'"),
        ("sensor.v", "undecodable", "no field"), ("one", "undecodable", "not a number"),
        ("flags", "wrong_length", "0 numbers"), ("step", "undecodable", "neither"),
        ("sensor", "wrong_length", "0 bytes"), ("words", "wrong_length", "0 numbers"),  # text
    ],
)  # fmt: skip
def test_protobuf_fields_without_a_vector_are_rejected(field: str, reason: str, words: str) -> None:
    assert_rejected(readings(field).decode([protobuf(reading(one=1))]), reason, words)


@pytest.mark.parametrize("unit", ["m", "s"])
def test_a_condition_on_a_single_message_is_refused_as_in_json(unit: str) -> None:
    """Only elements of an array can be chosen: the numbers must not be read as if there were no condition."""
    value = protobuf(reading(step={"deep": {"v": ROW, "unit": "m"}}))
    assert_rejected(readings(f"step.deep[unit={unit}].v").decode([value]), "undecodable", "no field")
    in_json = json.dumps({"step": {"deep": {"v": ROW, "unit": "m"}}}).encode()
    assert_rejected(codec("json", f"step.deep[unit={unit}].v").decode([in_json]), "undecodable", "no field")


def test_a_repeated_message_without_elements_has_no_vector() -> None:
    decoded = readings("steps.deep.v").decode([protobuf(reading())])
    assert (len(decoded.vectors), decoded.rejects) == (0, [])


def test_nan_in_protobuf_is_a_missing_entry() -> None:
    values = [protobuf(reading(doubles=row.tolist())) for row in GAPPY]
    decoded = codec("protobuf", "doubles", memory(READING), 4, min_observed=2).decode(values)
    assert decoded.vectors.tobytes() == GAPPY[[0, 1, 3]].tobytes()


def test_a_full_disk_is_not_the_fault_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryDirectory", fails)
    assert "No space left" in refusal(TimeoutError, module.compiled, WriterSchema("PROTOBUF", 'syntax = "proto3";'))


WORK, WAIT = "while True: pass", "import time; time.sleep(60)"


@pytest.mark.parametrize(("program", "timeout_s", "error"), [(WORK, 60, VectorError), (WAIT, 1, TimeoutError)])
def test_a_slow_machine_is_not_the_fault_of_the_schema(
    monkeypatch: pytest.MonkeyPatch, program: str, timeout_s: float, error: type[Exception]
) -> None:
    limit = module._PROTOC.partition("runpy.run")[0].replace("(10,", "(1,")
    monkeypatch.setattr(module, "_PROTOC", f"{limit}exec({program!r})")
    monkeypatch.setattr(module, "_TIMEOUT_S", timeout_s)
    refusal(error, module.compiled, WriterSchema("PROTOBUF", 'syntax = "proto3";'))


BESIDE = """
syntax = "proto3";
message R {
  string text = 1; optional string maybe = 2; repeated string texts = 3; map<string, string> map = 4; Inner inner = 5;
  oneof one { string a = 6; Inner b = 7; }
  Vector vector = 8;
  message Inner { string text = 1; Inner inner = 2; }
  message Vector { string note = 1; repeated double values = 2; repeated int64 indices = 3; string text = 4; }
}
"""


@pytest.mark.parametrize(
    "beside",
    [b"\x0a\1\xdf", b"\x12\1\xdf", b"\x1a\1\xdf", b"\x22\6\x0a\1\xdf\x12\1\xdf", b"\x2a\3\x0a\1\xdf", b"\x32\1\xdf",
     b"\x3a\1\xff"],
    ids=["text", "optional", "repeated", "map", "message", "oneof", "no message"],
)  # fmt: skip
def test_what_lies_beside_the_vector_rejects_nothing(beside: bytes) -> None:
    vector = b"\x0a\1\xdf\x12\x18" + np.array(ROW).tobytes()
    message = beside + b"\x42" + bytes([len(vector)]) + vector
    decoder = codec("protobuf", "vector.values", memory(WriterSchema("PROTOBUF", BESIDE)))
    decoded = decoder.decode([framed(1, b"\0" + message)])
    assert decoded.vectors.tolist() == [ROW], decoded.rejects


def test_a_sparse_vector_is_refused_as_sparse() -> None:
    vector = b"\x12\x18" + np.array(ROW).tobytes() + b"\x1a\3\1\2\3"
    decoder = codec("protobuf", "vector.values", memory(WriterSchema("PROTOBUF", BESIDE)))
    dense = decoder.decode([framed(1, b"\0\x42\x1a" + vector[:26])])
    sparse = decoder.decode([framed(1, b"\0\x42\x1f" + vector)])
    assert dense.vectors.tolist() == [ROW], dense.rejects
    assert_rejected(sparse, "undecodable", "sparse")


def test_booleans_are_numbers() -> None:
    assert readings("flags").decode([protobuf(reading(flags=[True, False, True]))]).vectors.tolist() == [[1, 0, 1]]


WRAPPED = """
syntax = "proto3";
import "google/protobuf/wrappers.proto";
message R {
  repeated google.protobuf.DoubleValue v = 1;
  google.protobuf.DoubleValue x = 2;
  google.protobuf.DoubleValue y = 3;
}
"""


@pytest.mark.parametrize(("field", "d"), [("v", 3), ("v.value", 3), ("x,y", 2), ("x.value,y.value", 2)])
def test_a_wrapper_is_read_as_its_number_and_by_its_field(field: str, d: int) -> None:
    def wrapped(number: int, value: float) -> bytes:
        return bytes([number << 3 | 2, 9, 0x09]) + np.array([value]).tobytes()

    message = b"".join(wrapped(1, value) for value in ROW) + wrapped(2, ROW[0]) + wrapped(3, ROW[1])
    decoder = codec("protobuf", field, memory(WriterSchema("PROTOBUF", WRAPPED)), d=d)
    decoded = decoder.decode([framed(1, b"\0" + message)])
    assert decoded.vectors.tolist() == [ROW[:d]], decoded.rejects
