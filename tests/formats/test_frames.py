"""Frames around payloads: Confluent's before the value or in a header, and those of others, refused by name."""

import codecs
import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import header_schema_id_serializer, prefix_schema_id_serializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given, strategies as st

from streampca.formats.record import Record
from streampca.sources.events import Records, decode_records
from tests.formats.structured import (
    ARRAY,
    READING,
    ROW,
    MemorySchemas,
    assert_rejected,
    avro,
    avro_datum,
    avro_schema,
    codec,
    framed,
    memory,
    protobuf,
    reading,
)

GUID = "9c6e7f40-1d3a-4f7b-8a55-0123456789ab"
SCHEMA = avro_schema(ARRAY, "v")
AVRO = avro(SCHEMA, avro_datum(ROW, "v"))[5:]
PROTOBUF = protobuf(reading(doubles=ROW))[7:]  # without the frame and the indexes
TEXT = json.dumps({"v": ROW}).encode()


def in_header(payload: bytes, kind: str = "AVRO", indexes: list[int] | None = None) -> Record:
    """A record as Confluent's header serializer writes it."""
    context = SerializationContext("t", MessageField.VALUE, [("trace", b"x")])
    value = header_schema_id_serializer(payload, context, SchemaId(kind, None, GUID, indexes))
    return Record(0, value, headers=context.headers)


def decoded(kind: str, field: str, schemas: MemorySchemas, records: Sequence[Record]) -> Any:
    return decode_records(codec(kind, field, schemas), Records(0, records, 9, 9)).decoded


@given(before=st.lists(st.sampled_from(["header", "prefix", "tombstone", "other headers"]), max_size=6))
def test_ids_may_be_in_headers_and_before_values_of_one_topic(before: list[str]) -> None:
    schemas = MemorySchemas({GUID: SCHEMA, 1: SCHEMA})
    prefixed = prefix_schema_id_serializer(AVRO, None, SchemaId("AVRO", 1))
    records = {
        "header": in_header(AVRO),
        "prefix": Record(0, prefixed),
        "tombstone": Record(0, None, headers=in_header(b"").headers),
        "other headers": Record(0, prefixed, headers=[("trace", None), ("__key_schema_id", b"?")]),
    }
    found = decoded("avro", "v", schemas, [records[name] for name in [*before, "header"]])
    assert found.vectors.tolist() == [ROW] * (len(before) + 1 - before.count("tombstone"))
    assert (found.rejects, len(found.skipped)) == ([], before.count("tombstone"))


def test_a_header_of_protobuf_holds_the_indexes_of_the_message_too() -> None:
    found = decoded("protobuf", "doubles", MemorySchemas({GUID: READING}), [in_header(PROTOBUF, "PROTOBUF", [1])])
    assert found.vectors.tolist() == [ROW]


def test_an_invalid_frame_in_the_header_and_an_unknown_guid_are_rejected() -> None:
    odd = Record(0, AVRO, headers=[("__value_schema_id", b"7")])
    assert_rejected(decoded("avro", "v", memory(SCHEMA), [odd]), "undecodable", "not framed")
    assert_rejected(decoded("avro", "v", memory(SCHEMA), [in_header(AVRO)]), "unknown_schema", GUID)


def test_json_needs_no_schema_and_reads_no_header() -> None:
    records = [in_header(TEXT, "JSON"), Record(0, prefix_schema_id_serializer(TEXT, None, SchemaId("JSON", 7)))]
    assert decoded("json", "v", MemorySchemas({}), records).vectors.tolist() == [ROW] * 2


@pytest.mark.parametrize("frame", [b"", framed(7, b""), framed(2**32 - 1, b"")])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_json_may_have_a_frame_and_a_byte_order_mark(frame: bytes, mark: bytes) -> None:
    values = [frame + mark + TEXT, frame + mark + b'{"v": [1, 2, 3], "more": [true, NaN]}']
    found = codec("json", "v").decode(values)
    assert found.vectors.tolist() == [ROW, [1, 2, 3]]
    assert found.rejects == []


def container() -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(json.loads(SCHEMA.text)), [avro_datum(ROW, "v")])
    return out.getvalue()


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
@pytest.mark.parametrize("payload", [AVRO, PROTOBUF, TEXT, b""], ids=["avro", "protobuf", "json", "empty"])
@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"\x03\x00" + bytes(range(16)), "Glue"),
        (b"\xc3\x01" + bytes(range(8)), "single-object"),
        (container(), "container file"),
        (b"\0" + (1).to_bytes(8, "big"), "eight-byte id"),
        (b"\0" + (2**32 - 1).to_bytes(8, "big"), "eight-byte id"),
    ],
)  # fmt: skip
def test_frames_of_other_registries_are_named_in_the_error(kind: str, payload: bytes, frame: bytes, words: str) -> None:
    assert_rejected(codec(kind, "v", MemorySchemas({})).decode([frame + payload]), "undecodable", words)


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_the_error_of_a_value_without_an_id_names_both_places_for_it(kind: str) -> None:
    found = codec(kind, "v", MemorySchemas({})).decode([b"\x0a" + PROTOBUF])
    assert_rejected(found, "undecodable", "no schema id before the value or in the header __value_schema_id")


@pytest.mark.parametrize("payload", [AVRO, PROTOBUF, b"{", b""])
def test_the_frame_before_invalid_json_is_named_in_the_error(payload: bytes) -> None:
    assert_rejected(codec("json").decode([framed(7, payload)]), "undecodable", "a schema registry's frame")
