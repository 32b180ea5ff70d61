"""Schemas and values made to break a decoder: each record is rejected, and the process lives."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from streampca.fold.codec import Codec
from streampca.fold.events import Reject
from streampca.fold.judge import Judge
from streampca.formats.packing import varint
from streampca.formats.protoc import compiled
from streampca.formats.schemas import MemorySchemas, WriterSchema
from tests.fold.structured import framed, memory

D = 8
DOUBLES = {"type": "array", "items": "double"}
VECTOR = varint(2 * D) + np.zeros(D).tobytes() + b"\0"  # counts are zigzag varints


def codec(kind: str, field: str = "v", schemas: MemorySchemas | None = None) -> Codec:
    return Codec(kind, Judge(D, 1e150), field, schemas)


def avro_beside(other: Any, name: str = "R") -> WriterSchema:
    """A record of a vector and something else."""
    fields = [{"name": "v", "type": DOUBLES}, {"name": "other", "type": other}]
    return WriterSchema("AVRO", json.dumps({"type": "record", "name": name, "fields": fields}))


def rejected(schemas: MemorySchemas, value: bytes, kind: str = "avro") -> tuple[str, str]:
    [reject] = codec(kind, schemas=schemas).decode([value]).rejects
    return reject.reason, reject.message


RECURSIVE = avro_beside(["null", "R"])
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": {"type": "array", "items": "Node"}}]}


@pytest.mark.parametrize("schema", [RECURSIVE, avro_beside({"type": "map", "values": "R"}), avro_beside(NODE)])
def test_recursive_avro_schemas_are_refused(schema: WriterSchema) -> None:
    assert rejected(memory(schema), framed(1, VECTOR + b"\0")) == (
        "undecodable", f"schema 1: recursive schemas are not supported ({'Node' if 'Node' in schema.text else 'R'!r} "
        "contains itself)",
    )  # fmt: skip


def test_deeply_nested_avro_does_not_overflow_the_stack() -> None:
    script = """
from tests.fold.test_hostile_schemas import *
print(rejected(memory(RECURSIVE), framed(1, (VECTOR + b"\\2") * 50_000 + VECTOR + b"\\0"))[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "undecodable")


EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("items", ["null", EMPTY, {"type": "fixed", "name": "F", "size": 0}])
def test_avro_arrays_of_nothing_are_refused(items: Any) -> None:
    """10¹² items in six bytes."""
    reason, message = rejected(
        memory(avro_beside({"type": "array", "items": items})), framed(1, VECTOR + varint(2 * 10**12))
    )
    assert reason == "undecodable"
    assert "items without bytes" in message


def test_avro_schemas_that_grow_exponentially_are_refused() -> None:
    """Each type holds the previous one twice: no bytes, 2⁶⁰ objects."""
    types = {f"T{i}": json.dumps({"type": "record", "name": f"T{i}", "fields": [
        {"name": name, "type": f"T{i - 1}" if i else "null"} for name in "ab"
    ]}) for i in range(60)}  # fmt: skip
    schema = avro_beside("T59")._replace(references=types)
    assert "more than 10000 types" in rejected(memory(schema), framed(1, VECTOR))[1]


@pytest.mark.parametrize("depth", [150, 5000])
def test_deeply_nested_avro_schemas_are_read_or_refused(depth: int) -> None:
    types = {f"T{i}": json.dumps({"type": "record", "name": f"T{i}", "fields": [
        {"name": "a", "type": f"T{i - 1}" if i else "long"},
    ]}) for i in range(depth)}  # fmt: skip
    schema = avro_beside(f"T{depth - 1}")._replace(references=types)
    rejects = codec("avro", schemas=memory(schema)).decode([framed(1, VECTOR + b"\0")]).rejects
    assert [reject.reason for reject in rejects] == ([] if depth == 150 else ["undecodable"])


@pytest.mark.parametrize(
    "other",
    [
        "null", ["null", "string"], {"type": "enum", "name": "E", "symbols": ["A"]}, EMPTY,
        {"type": "map", "values": "null"}, {"type": "array", "items": ["null", "long"]},
        {"type": "long", "logicalType": "timestamp-millis"}, {"type": "string"},
    ],
)  # fmt: skip
def test_usual_avro_schemas_are_supported(other: Any) -> None:
    value = framed(1, VECTOR + (b"" if other in ("null", EMPTY) else b"\0"))
    decoded = codec("avro", schemas=memory(avro_beside(other))).decode([value])
    assert decoded.rejects == []
    assert decoded.vectors.shape == (1, D)


@pytest.mark.parametrize(
    "schema",
    [
        WriterSchema("PROTOBUF", 'syntax = "proto3"; // \ud800'),
        WriterSchema("PROTOBUF", 'syntax = "proto3";', {"\ud800.proto": ""}),
        WriterSchema("PROTOBUF", 'syntax = "proto3";', {"a\0b.proto": ""}),
        WriterSchema("PROTOBUF", 'syntax = "proto3";', {"x" * 5000: ""}),
        WriterSchema("PROTOBUF", 'syntax = "proto3";', {"a": "", "a/b.proto": ""}),
        WriterSchema("PROTOBUF", 'syntax = "proto3";', {"../a.proto": ""}),
        WriterSchema("PROTOBUF", 'syntax = "proto3";', {".": ""}),
        WriterSchema("PROTOBUF", "\0" * 100),
        WriterSchema("PROTOBUF", 'syntax = "proto3"; message M {' + "message M {" * 5000),
        WriterSchema("AVRO", "\ud800"),
        WriterSchema("AVRO", '{"type": "record", "name": "\\ud800", "fields": []}'),
        WriterSchema("AVRO", "[" * 100_000),
        WriterSchema("AVRO", '{"type": "record"}'),
    ],
)
def test_schemas_that_cannot_be_compiled_reject_their_records(schema: WriterSchema) -> None:
    for _ in range(2):
        reason, message = rejected(memory(schema), framed(1, b"\0"), schema.kind.lower())
        assert reason == "undecodable"
        assert "\n" not in message
        message.encode()


def test_a_full_disk_is_not_the_schemas_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryDirectory", fails)
    with pytest.raises(TimeoutError, match="No space left"):
        compiled(WriterSchema("PROTOBUF", 'syntax = "proto3";'))


def test_an_unexpected_error_rejects_its_record_only(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = codec("json", "")

    def read(value: bytes) -> bytes:
        if value == b"odd":
            raise ZeroDivisionError("by \ud800")
        return bytes(8 * D)

    monkeypatch.setattr(decoder._reader, "read", read)
    decoded = decoder.decode([b"good", b"odd", b"good"])
    assert decoded.indices.tolist() == [0, 2]
    assert decoded.rejects == [Reject(1, "undecodable", "it cannot be decoded (ZeroDivisionError)")]
