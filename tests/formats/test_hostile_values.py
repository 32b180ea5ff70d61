"""Schemas and values made to break a decoder, unknown or too large: each record is rejected, and the process lives."""

import io
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampca.formats import protobuf
from streampca.formats.batch import Reject
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.packing import VectorError, varint
from streampca.formats.protobuf import compiled
from streampca.formats.record import PlainRecord
from streampca.formats.schemas import SchemaCache, WriterSchema
from streampca.sources.decode import decode_records
from streampca.sources.events import Records, Undecoded, Vectors
from tests.formats.structured import avro, framed, memory
from tests.in_memory.schemas import MemorySchemas

D, MIB = 8, 2**20
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
from tests.formats.test_hostile_values import *
print(rejected(memory(RECURSIVE), framed(1, (VECTOR + b"\\2") * 50_000 + VECTOR + b"\\0"))[0])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "undecodable")


EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.timeout(60)
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


WORK, WAIT = "while True: pass", "import time; time.sleep(60)"


@pytest.mark.parametrize(("program", "timeout_s", "error"), [(WORK, 60, VectorError), (WAIT, 1, TimeoutError)])
def test_a_slow_machine_is_not_the_schemas_fault(
    monkeypatch: pytest.MonkeyPatch, program: str, timeout_s: float, error: type[Exception]
) -> None:
    limit = protobuf._PROTOC.partition("runpy.run")[0].replace("(10,", "(1,")
    monkeypatch.setattr(protobuf, "_PROTOC", f"{limit}exec({program!r})")
    monkeypatch.setattr(protobuf, "_TIMEOUT_S", timeout_s)
    with pytest.raises(error):
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


# The fate of a record depends on what the registry knows of its schema's id, not on what was asked before.

KNOWN = WriterSchema("AVRO", '{"type": "array", "items": "double"}')


class CountingSchemas(MemorySchemas):
    """Counts the requests."""

    requests = 0

    def get(self, schema_id: int) -> WriterSchema:
        self.requests += 1
        return super().get(schema_id)


def test_a_schema_that_is_registered_later_is_found() -> None:
    registry = CountingSchemas({})
    cache = SchemaCache(registry, "AVRO", lambda schema: schema.text)
    with pytest.raises(VectorError, match="no schema 7") as caught:
        cache.get(framed(7, b""))
    assert caught.value.reason == "unknown_schema"
    registry.schemas[7] = WriterSchema("AVRO", "text")
    assert cache.get(framed(7, b"")) == "text"
    assert cache.get(framed(7, b"")) == "text"
    assert registry.requests == 2


def test_unknown_ids_change_nothing_for_a_known_one() -> None:
    """As after a kill -9, the known id is not in the cache. Each step of decoding makes a few requests."""
    registry = CountingSchemas({5000: KNOWN})
    values = [framed(schema_id, b"?") for schema_id in range(1000)] + [avro(KNOWN, [1.0, 2.0], 5000)] * 3
    records = [PlainRecord(offset, value, 0) for offset, value in enumerate(values)]
    codec = Codec("avro", Judge(2, 1e100), schemas=registry)
    steps: list[Vectors] = []
    while records:
        before = registry.requests
        step = decode_records(codec, Records(0, records, 1003, 1003))
        assert isinstance(step, Vectors)
        assert 100 <= registry.requests - before <= 101 or len(records) < 100
        records = records[len(step.records) :]
        steps.append(step)
    assert [step.next for step in steps[:-1]] == [step.records[-1].offset + 1 for step in steps[:-1]]
    assert sum(len(step.decoded.rejects) for step in steps) == 1000
    assert steps[-1].decoded.vectors.tolist() == [[1.0, 2.0]] * 3
    assert registry.requests == 1001


# Values that are too large, before they are decoded or once they are unpacked.


def zeros(rows: int, compression: str | None = "zstd", batches: int = 1, dtype: str = "f8") -> bytes:
    """An Arrow IPC stream of equal batches of zeros."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * D, dtype)), D)
    return stream(column, compression, batches)


def stream(column: Any, compression: str | None = None, batches: int = 1) -> bytes:
    out, batch = io.BytesIO(), pa.record_batch([column], ["v"])
    with pa.ipc.new_stream(out, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return out.getvalue()


def reason(value: bytes, kind: str = "arrow") -> str:
    """The reason for which the value is rejected; empty if it is not."""
    schemas = memory() if kind in ("avro", "protobuf") else None
    rejects = codec(kind, "" if kind == "npy" else "v", schemas).decode([value]).rejects
    return rejects[0].reason if rejects else ""


@pytest.mark.parametrize("kind", ["json", "npy", "avro", "protobuf"])
def test_a_value_may_have_8_mib_beside_its_numbers(kind: str) -> None:
    limit = 8 * MIB + 32 * D
    assert reason(framed(1, bytes(limit - 5)), kind) not in ("", "too_many_bytes")
    assert reason(framed(1, bytes(limit - 4)), kind) == "too_many_bytes"


def test_json_of_many_numbers_is_learned() -> None:
    d = 300_000
    text = str(np.random.default_rng(0).standard_normal(d).tolist()).encode()
    assert Codec("json", Judge(d, 1e150)).decode([text]).rejects == []
    assert len(text) > 5 * MIB


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize("dtype", ["f8", "i1"])  # of a byte, which becomes eight
def test_arrow_is_learned_up_to_64_mib(compression: str | None, dtype: str) -> None:
    row = D * (8 + np.dtype(dtype).itemsize)
    batches, most = 8, 64 * MIB // row // 8
    assert reason(zeros(most, compression, batches, dtype)) == ""
    assert reason(zeros(most + 1, compression, batches, dtype)) == "too_many_bytes"


def test_arrow_beyond_64_mib_is_not_decoded() -> None:
    assert reason(bytes(64 * MIB)) == "undecodable"
    assert reason(bytes(64 * MIB + 1)) == "too_many_bytes"


def test_arrow_lists_of_no_numbers() -> None:
    """Two billion of them are a short value."""
    kind = pa.list_(pa.float64(), 0)
    column = pa.Array.from_buffers(kind, 2**31 - 1, [None], children=[pa.array([], pa.float64())])
    assert reason(stream(column)) == "too_many_bytes"


def test_arrow_with_any_bit_flipped() -> None:
    value, rng, ends = zeros(200), np.random.default_rng(1), set()
    for at in rng.integers(0, len(value), 300):
        changed = bytearray(value)
        changed[at] ^= 1 << int(rng.integers(8))
        ends.add(reason(bytes(changed)))
    assert {"", "undecodable"} <= ends


def test_the_vectors_of_one_event_are_decoded_in_steps() -> None:
    """Each record is within the limit; a hundred of them together are not."""
    value = zeros(MIB // D // 2)  # 4 MiB
    records = [PlainRecord(offset, value, timestamp=offset) for offset in (3, 4, 6, 7, 9)]
    decoder, offsets, event = codec("arrow"), [], Records(0, records, 12, 20)
    while event.records:
        vectors = decode_records(decoder, event)
        assert not isinstance(vectors, Undecoded)
        assert vectors.decoded.vectors.nbytes <= 8 * MIB
        assert len(vectors.timestamps) == len(vectors.records)
        offsets += [record.offset for record in vectors.records]
        rest = event.records[len(vectors.records) :]
        assert vectors.next == (rest[0].offset if rest else 12)
        event = Records(0, rest, 12, 20)
    assert offsets == [3, 4, 6, 7, 9]
