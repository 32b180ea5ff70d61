"""Deletes: tombstones, and null in place of a vector or on the way to it. A missing field is an error."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.formats.structured import (
    ARRAY,
    ROW,
    WriterSchema,
    arrow,
    avro,
    avro_datum,
    avro_schema,
    codec,
    framed,
    memory,
    only_reject,
    skipped_in,
)

ENVELOPE = {
    "type": "record", "name": "Envelope", "fields": [
        {"name": "op", "type": "string"},
        {"name": "after", "type": ["null", {
            "type": "record", "name": "Row", "fields": [{"name": "v", "type": ["null", ARRAY]}]}]},
    ],
}  # fmt: skip
DELETES = [{"after": None}, {"after": {"v": None}}]


def event(content: dict[str, Any]) -> bytes:
    return json.dumps({"op": "d", **content}).encode()


@pytest.mark.parametrize("min_observed", [None, 2])
@pytest.mark.parametrize("kind", ["json", "avro"])
@given(contents=st.lists(st.sampled_from([*DELETES, {"after": {"v": ROW}}]), max_size=6))
def test_null_on_the_way_to_the_vector_is_a_delete(
    kind: str, min_observed: int | None, contents: list[dict[str, Any]]
) -> None:
    schema = WriterSchema("AVRO", json.dumps(ENVELOPE))
    decoder = codec(kind, "after.v", memory(schema), min_observed=min_observed)
    found = decoder.decode([event(c) if kind == "json" else avro(schema, {"op": "u", **c}) for c in contents])
    assert skipped_in(found) == [i for i, content in enumerate(contents) if content in DELETES]
    assert found.vectors.tolist() == [ROW] * (len(contents) - len(found.skipped))
    assert found.rejects == []


@pytest.mark.parametrize("value", [b"null", b" null ", b"\xef\xbb\xbfnull", b"\0\0\0\0\7null"])
@pytest.mark.parametrize("field", ["", "v"])
def test_a_null_value_is_a_delete(value: bytes, field: str) -> None:
    assert skipped_in(codec("json", field).decode([value])) == [0]


@pytest.mark.parametrize("content", [{}, {"after": {}}, {"after": 0}, {"after": ""}, {"after": False}])
def test_a_missing_field_is_an_error(content: dict[str, Any]) -> None:
    reason, message = only_reject(codec("json", "after.v").decode([event(content)]))
    assert (reason, "no field 'after.v'" in message) == ("undecodable", True)


def test_a_message_that_is_not_set_is_a_delete_of_protobuf() -> None:
    """Protobuf has no null; a message that is set, with an empty vector, is an error."""
    text = 'syntax = "proto3"; message Envelope { string op = 1; R after = 2; } message R { repeated double v = 1; }'
    decoder = codec("protobuf", "after.v", memory(WriterSchema("PROTOBUF", text)))
    found = decoder.decode([framed(1, b"\0" + payload) for payload in (b"\x0a\x01d", b"", b"\x12\0")])
    assert (skipped_in(found), [reject.reason for reject in found.rejects]) == ([0, 1], ["wrong_length"])


def test_rows_that_are_null_are_left_out_of_arrow_messages() -> None:
    """A message of nothing else is a delete."""
    found = codec("arrow").decode([arrow([ROW, None, ROW]), arrow([None]), arrow([])])  # type: ignore[list-item]
    assert (found.vectors.tolist(), found.counts.tolist(), skipped_in(found)) == ([ROW, ROW], [2], [1])


PLACEHOLDER = "__debezium_unavailable_value"
PLACEHOLDERS = [
    PLACEHOLDER, [PLACEHOLDER], list(PLACEHOLDER.encode()), list(map(float, PLACEHOLDER.encode())),
    base64.b64encode(PLACEHOLDER.encode()).decode(), PLACEHOLDER.encode().hex(),
]  # fmt: skip


@pytest.mark.parametrize("d", [1, 3, 7, 28])
@pytest.mark.parametrize("field", ["after.v", "after.v.x", "after.v.x,after.v.y"])
@pytest.mark.parametrize("value", PLACEHOLDERS)
def test_debeziums_placeholder_is_skipped_like_a_delete(value: Any, field: str, d: int) -> None:
    for record in ({"after": {"v": value}}, {"after": json.dumps({"v": value})}):
        decoded = codec("json", field, d=d).decode([json.dumps(record).encode()])
        assert (decoded.rejects, skipped_in(decoded)) == ([], [0])


@pytest.mark.parametrize("d", [7, 28])
@pytest.mark.parametrize(
    ("kind", "value"),
    [("bytes", PLACEHOLDER.encode()), ("string", PLACEHOLDER),
     ({"type": "array", "items": "double"}, list(PLACEHOLDER.encode())),
     ({"type": "array", "items": ["double", "string"]}, [PLACEHOLDER])],
)  # fmt: skip
def test_debeziums_placeholder_is_skipped_in_avro(kind: Any, value: Any, d: int) -> None:
    schema = avro_schema(["null", kind], "v")
    decoded = codec("avro", "v", memory(schema), d).decode([avro(schema, avro_datum(value, "v"))])
    assert (decoded.rejects, skipped_in(decoded)) == ([], [0])


@pytest.mark.parametrize("value", ["some text", [PLACEHOLDER, PLACEHOLDER], [*PLACEHOLDER.encode()[:-1], 0]])
def test_other_values_are_not_taken_for_the_placeholder(value: Any) -> None:
    assert codec("json", "v", d=28).decode([json.dumps({"v": value}).encode()]).skipped == []
