"""Labels of records: the text at a path, in every format that has fields."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampca.formats.codec import Codec
from streampca.formats.labels import LabelFinder
from streampca.formats.record import Record
from streampca.formats.schemas import WriterSchema
from tests.formats.structured import (
    ARRAY,
    READING,
    avro,
    avro_datum,
    avro_schema,
    codec,
    framed,
    ipc,
    memory,
    protobuf,
    reading,
)

ROW = [1.0, -2.5, 3.25]


@pytest.mark.parametrize(
    ("path", "record", "label"),
    [
        ("pump", {"pump": "p-7"}, "p-7"),
        ("pump", {}, ""),
        ("pump", {"pump": None}, ""),
        ("pump", {"pump": {"id": 7}}, ""),
        ("pump", {"pump": ["a", "b"]}, ""),  # it is not clear which
        ("pump", {"pump": ["a"]}, "a"),
        ("pump", [], ""),
        ("pump", {"pump": 7}, "7"),
        ("pump", {"pump": True}, "true"),
        ("pump", {"pump": b"p-\xff"}, "p-\ufffd"),
        ("pump", {"pump": "\ud800"}, "?"),
        ("pump", {"pump": 64 * "é"}, 64 * "é"),
        ("pump", {"pump": 65 * "é"}, 64 * "é"),
        ("payload.pump", {"payload": '{"pump": "inside"}'}, "inside"),
        ("tags[key=pump].value", {"tags": [{"key": "a", "value": 1}, {"key": "pump", "value": "p"}]}, "p"),
        ("tags[key=pump].value", {"tags": [{"key": "pump", "value": 1}, {"key": "pump", "value": 2}]}, ""),
    ],
)
def test_the_label_is_the_text_at_the_path(path: str, record: Any, label: str) -> None:
    assert LabelFinder(path).find(record) == label


def labels_of(decoder: Codec, *values: bytes) -> list[str]:
    records = [Record(i, value) for i, value in enumerate(values)]
    decoded = decoder.decode(values)
    assert decoded.rejects == []
    return decoder.read_labels([records[i] for i in decoded.indices], decoded.counts)


def test_values_of_json_have_labels() -> None:
    decoder = codec("json", "v", label="pump")
    values = [b'{"v": [1, 2, 3], "pump": "a"}', b'{"v": [1, 2, 3]}', b'{"v": [1, 2, 3], "x": NaN, "pump": 7}']
    assert labels_of(decoder, *values) == ["a", "", "7"]
    assert labels_of(decoder) == []


def test_each_vector_of_a_value_has_its_own_label_or_that_of_the_value() -> None:
    several = b'{"rows": [{"v": [1, 2, 3], "pump": "a"}, {"v": [4, 5, 6], "pump": "b"}], "site": "north"}'
    assert labels_of(codec("json", "rows.v", label="rows.pump"), several) == ["a", "b"]
    assert labels_of(codec("json", "rows.v", label="site"), several) == ["north", "north"]
    lacking = b'{"rows": [{"v": [1, 2, 3], "pump": ["a", "b", "c"]}, {"v": [4, 5, 6]}]}'
    assert labels_of(codec("json", "rows.v", label="rows.pump"), lacking) == ["", ""]


def test_cells_of_csv_are_labels_by_their_positions() -> None:
    assert labels_of(codec("csv", "1,2,3", label="0"), b'"p, 7",1,2,3', b"q;1;2;3\n") == ["p, 7", "q"]
    assert labels_of(codec("csv", "1,2,3", label="4"), b"p,1,2,3") == [""]


def test_fields_of_avro_are_labels() -> None:
    schema = avro_schema(ARRAY, "v")
    decoder = codec("avro", "v", memory(schema), label="before")
    assert labels_of(decoder, avro(schema, avro_datum(ROW, "v"))) == ["é"]
    assert labels_of(codec("avro", "v", memory(schema), label="nothing"), avro(schema, avro_datum(ROW, "v"))) == [""]


def test_fields_of_protobuf_are_labels() -> None:
    decoder = codec("protobuf", "doubles", memory(READING), label="sensor")
    assert labels_of(decoder, protobuf(reading(doubles=ROW, sensor="s-1")), protobuf(reading(doubles=ROW))) == [
        "s-1",
        "",
    ]
    inner = codec("protobuf", "doubles", memory(READING), label="step.deep.unit")
    message = reading(doubles=ROW, step={"deep": {"unit": "°C"}})
    assert labels_of(inner, protobuf(message)) == ["°C"]
    # The text is not UTF-8, which Protobuf refuses: the vector is still read.
    damaged = protobuf(reading(doubles=ROW, sensor="xyz")).replace(b"xyz", b"\xff\xfe\xfd")
    assert labels_of(decoder, damaged) == [""]


def test_a_label_may_be_chosen_from_an_array_in_every_format() -> None:
    """The key that the choice compares is read, too, although no vector and no label stands in it."""
    tags = [{"key": "site", "value": "north"}, {"key": "pump", "value": "p-7"}]
    label = "tags[key=pump].value"
    tag = {"type": "record", "name": "T", "fields": [{"name": name, "type": "string"} for name in ("key", "value")]}
    fields = [{"name": "v", "type": ARRAY}, {"name": "tags", "type": {"type": "array", "items": tag}}]
    avro_type = WriterSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields}))
    protobuf_type = WriterSchema(
        "PROTOBUF",
        'syntax = "proto3"; message R { repeated double v = 1; repeated T tags = 2; }'
        " message T { string key = 1; string value = 2; }",
    )
    tags_on_the_wire = b"".join(
        b"\x12"
        + bytes([len(key) + len(value) + 4])
        + b"\x0a"
        + bytes([len(key)])
        + key
        + b"\x12"
        + bytes([len(value)])
        + value
        for key, value in ((b"site", b"north"), (b"pump", b"p-7"))
    )
    protobuf_value = framed(1, b"\0\x0a\x18" + np.array(ROW).tobytes() + tags_on_the_wire)
    batch = pa.record_batch({"v": pa.array([ROW]), "tags": pa.array([tags])})
    assert labels_of(codec("json", "v", label=label), json.dumps({"v": ROW, "tags": tags}).encode()) == ["p-7"]
    assert labels_of(codec("arrow", "v", label=label), ipc(batch.schema, [batch])) == ["p-7"]
    avro_value = avro(avro_type, {"v": ROW, "tags": tags})
    assert labels_of(codec("avro", "v", memory(avro_type), label=label), avro_value) == ["p-7"]
    assert labels_of(codec("protobuf", "v", memory(protobuf_type), label=label), protobuf_value) == ["p-7"]


def test_rows_of_arrow_have_labels() -> None:
    columns = {"v": pa.array([ROW, ROW]), "pump": pa.array(["a", None]), "at": pa.array([{"site": "x"}, {"site": "y"}])}
    batch = pa.record_batch(columns)
    value = ipc(batch.schema, [batch, batch])
    assert labels_of(codec("arrow", "v", label="pump"), value) == ["a", "", "a", ""]
    assert labels_of(codec("arrow", "v", label="at.site"), value) == ["x", "y", "x", "y"]
    assert labels_of(codec("arrow", "v", label="nothing"), value) == [""] * 4


def test_raw_numbers_have_no_labels() -> None:
    assert labels_of(codec("float64", label="pump"), np.array(ROW).tobytes()) == [""]
