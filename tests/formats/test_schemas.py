"""Schemas of a registry: unavailable, registered later, or unusable."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from streampca.formats.errors import VectorError
from streampca.formats.schemas import SchemaCache, WriterSchema, frame_of
from tests.errors import refusal
from tests.formats.structured import (
    ARRAY,
    READING,
    ROW,
    CountingSchemas,
    avro,
    avro_datum,
    avro_schema,
    codec,
    framed,
    memory,
    only_reject,
    protobuf,
    reading,
    skipped_in,
)
from tests.in_memory.schemas import MemorySchemas
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(("kind", "field"), [("avro", "v"), ("protobuf", "doubles")])
def test_an_unavailable_registry_rejects_no_records(kind: str, field: str) -> None:
    good = avro_schema(ARRAY, "v") if kind == "avro" else READING
    value = avro(good, avro_datum(ROW, "v")) if kind == "avro" else protobuf(reading(doubles=ROW))
    schemas = memory(good)
    decoder = codec(kind, field, schemas)
    schemas.away = True
    decoded = decoder.decode([None, b"?"])
    assert ([reject.reason for reject in decoded.rejects], skipped_in(decoded)) == (["undecodable"], [0])
    with pytest.raises(TimeoutError):
        decoder.decode([value])
    schemas.away = False
    assert decoder.decode([value]).vectors.tolist() == [ROW]
    schemas.away = True  # cached schemas are still used
    assert decoder.decode([value]).vectors.tolist() == [ROW]


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
        reason, message = only_reject(codec(schema.kind.lower(), "v", memory(schema)).decode([framed(1, b"\0")]))
        assert reason == "undecodable"
        message.encode()


def test_a_schema_that_is_registered_later_is_found() -> None:
    registry = CountingSchemas({})
    cache = SchemaCache(registry, "AVRO", lambda schema: schema.text)
    with pytest.raises(VectorError, match="does not know schema 7") as caught:
        cache.get(framed(7, b""))
    assert caught.value.reason == "unknown_schema"
    registry.schemas[7] = WriterSchema("AVRO", "text")
    assert [cache.get(framed(7, b"")) for _ in range(2)] == ["text", "text"]
    assert registry.requests == 2


class SlowSchemas(MemorySchemas):
    """Answers when it is allowed to, and counts its requests."""

    def __init__(self) -> None:
        super().__init__({1: WriterSchema("AVRO", ""), 2: WriterSchema("AVRO", "")})
        self.asked, self.may_answer, self.requests = threading.Event(), threading.Event(), list[int | str]()

    def get(self, schema_id: int | str) -> WriterSchema:
        self.requests.append(schema_id)
        self.asked.set()
        assert self.may_answer.wait(PATIENCE_S)
        return super().get(schema_id)


def test_a_registry_that_does_not_answer_blocks_only_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.formats.schemas._MAX_WAIT_S", 0.05)
    schemas = SlowSchemas()
    cache = SchemaCache(schemas, "AVRO", lambda schema: "decoder")
    with ThreadPoolExecutor(1) as executor:
        first = executor.submit(cache.get, frame_of(1))
        assert schemas.asked.wait(PATIENCE_S)
        assert "another thread" in refusal(TimeoutError, cache.get, frame_of(2))
        schemas.may_answer.set()
        assert first.result(PATIENCE_S) == "decoder"
    assert cache.get(frame_of(2)) == "decoder"
    assert schemas.requests == [1, 2]


def test_threads_that_need_the_same_schema_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.formats.schemas._MAX_WAIT_S", float(PATIENCE_S))
    schemas = SlowSchemas()
    cache = SchemaCache(schemas, "AVRO", lambda schema: "decoder")
    with ThreadPoolExecutor(3) as executor:
        results = [executor.submit(cache.get, frame_of(1)) for _ in range(3)]
        assert schemas.asked.wait(PATIENCE_S)
        schemas.may_answer.set()
        assert [result.result(PATIENCE_S) for result in results] == ["decoder"] * 3
    assert schemas.requests == [1]
