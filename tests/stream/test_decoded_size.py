"""A record whose decoded value would take too much memory is rejected before the memory is allocated."""

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampca.stream.codec import Codec
from streampca.stream.events import Records, Undecoded
from streampca.stream.formats.arrow_sizes import decompressed_bytes
from streampca.stream.formats.schemas import MemorySchemas, WriterSchema
from streampca.stream.record import PlainRecord
from streampca.vectors.json_sizes import parsed_bytes
from tests.stream.structured import framed, memory

pytestmark = pytest.mark.slow  # measures memory, with many examples

D = 8
MIB = 2**20


def stream(schema: Any, columns: Sequence[Any], compression: str | None = "zstd", batches: int = 1) -> bytes:
    """An Arrow IPC stream of equal batches."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return out.getvalue()


def zeros(rows: int, compression: str | None = "zstd", batches: int = 1) -> bytes:
    """Rows of D zeros."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * D)), D)
    return stream(pa.schema([("v", column.type)]), [column], compression, batches)


def codec(kind: str = "arrow", field: str = "v", schemas: MemorySchemas | None = None, mib: float = 64) -> Codec:
    return Codec(kind, D, 1e150, "float64", field, schemas, int(mib * MIB))


def outcome(decoder: Codec, value: bytes) -> str:
    """The reason of the rejection, or nothing."""
    rejects = decoder.decode([value]).rejects
    return rejects[0].reason if rejects else ""


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_arrow_is_learned_up_to_the_limit(compression: str) -> None:
    value = zeros(MIB // 8 // D, compression)
    assert decompressed_bytes(value) == MIB
    assert codec(mib=2.01).decode([value]).vectors.shape == (MIB // 8 // D, D)
    [reject] = codec(mib=1.999).decode([value]).rejects
    assert reject.reason == "too_many_bytes"
    assert "more than the limit" in reject.message


def test_arrow_batches_are_added_up() -> None:
    value = zeros(MIB // 8 // D, batches=3)
    assert outcome(codec(mib=6.1), value) == ""
    assert outcome(codec(mib=5.9), value) == "too_many_bytes"


def with_another_column(other: Any) -> bytes:
    rows = len(other)
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(rows * D, np.float32)), D)
    return stream(pa.schema([("v", column.type), ("other", other.type)]), [column, other])


RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([1000], pa.int32()), pa.array(["x" * 4 * MIB]))


@pytest.mark.parametrize(
    "other",
    [
        pa.array(["x" * 4 * MIB]),
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x" * 4 * MIB])),
        pa.array(["x" * 4 * MIB], pa.string_view()),
        RUNS,
        pa.array([[0.0] * (MIB // 2)], pa.list_view(pa.float64())),
        pa.array([{"a": "x" * 4 * MIB}]),
    ],
    ids=["string", "dictionary", "string view", "run-end", "list view", "structure"],
)
def test_arrow_columns_of_all_types_count(other: Any) -> None:
    value = with_another_column(other)
    assert len(value) < MIB / 2
    assert outcome(codec(mib=8), value) == ""
    assert outcome(codec(mib=3.9), value) == "too_many_bytes"


def test_arrow_numbers_that_grow_as_float64_count() -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(MIB, np.int8)), D)
    value = stream(pa.schema([("v", column.type)]), [column])
    assert outcome(codec(mib=9.1), value) == ""
    assert outcome(codec(mib=8.9), value) == "too_many_bytes"


def test_arrow_rows_of_no_bytes_take_no_memory() -> None:
    """Lists of no numbers: two billion of them are a short value."""
    kind = pa.list_(pa.float64(), 0)
    column = pa.Array.from_buffers(kind, 2**31 - 1, [None], children=[pa.array([], pa.float64())])
    value = stream(pa.schema([("v", kind)]), [column], None)
    assert outcome(codec(), value) == "too_many_bytes"


def test_arrow_with_sizes_that_are_wrong() -> None:
    """A bit flipped anywhere is no reason for any other end than vectors or a rejection."""
    value, rng, ends = zeros(200), np.random.default_rng(1), set()
    for place in rng.integers(0, len(value), 300):
        changed = bytearray(value)
        changed[place] ^= 1 << int(rng.integers(8))
        ends.add(outcome(codec(mib=1), bytes(changed)))
    assert {"", "undecodable", "too_many_bytes"} <= ends


BOMBS = """
import re
from pathlib import Path
from tests.stream.test_decoded_size import *
values = {values}
decoder = {codec}
outcome(decoder, values[0][:-1])  # imports what it needs
Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from now on
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
found = {{outcome(decoder, value) for value in values}}
print(found, (peak() - before) // 1024)
"""


def growth(codec_text: str, values: str) -> tuple[str, int]:
    """Decode in a process of its own: the outcome, and by how many MiB its peak memory has grown."""
    script = BOMBS.format(codec=codec_text, values=values)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    found, grown = done.stdout.rsplit(maxsplit=1)
    return found, int(grown)


def test_a_few_kilobytes_that_become_a_gibibyte_take_no_memory() -> None:
    small = zeros(MIB // D)  # 8 MiB of zeros, 128 times
    assert len(small) < 2000
    found, grown = growth("codec()", "[zeros(MIB // D, batches=128)]")
    assert found == "{'too_many_bytes'}"
    assert grown < 64


def test_the_vectors_of_one_event_are_decoded_in_steps() -> None:
    """Each record is within the limit; a hundred of them together are not."""
    value = zeros(MIB // D // 2)  # 4 MiB
    records = [PlainRecord(offset, value, timestamp=offset) for offset in (3, 4, 6, 7, 9)]
    decoder, offsets, event = codec(mib=9), [], Records(0, records, 12, 20)
    while event.records:
        vectors = decoder.vectors_of(event)
        assert not isinstance(vectors, Undecoded)
        assert vectors.decoded.vectors.nbytes <= 8 * MIB
        assert len(vectors.timestamps) == len(vectors.records)
        offsets += [record.offset for record in vectors.records]
        rest = event.records[len(vectors.records) :]
        assert vectors.next == (rest[0].offset if rest else 12)
        event = Records(0, rest, 12, 20)
    assert offsets == [3, 4, 6, 7, 9]


# JSON.

TEXTS = {
    "objects": lambda: b'{"v":[' + b",".join([b"{}"] * 700_000) + b"]}",
    "objects with members": lambda: b'{"v":[' + b",".join([b'{"":0}'] * 300_000) + b"]}",
    "arrays": lambda: b'{"v":[' + b",".join([b"[]"] * 700_000) + b"]}",
    "strings": lambda: b'{"v":[' + b",".join([b'"ab"'] * 500_000) + b"]}",
    "numbers": lambda: b'{"v":[' + b",".join([b"1e9"] * 2_000_000) + b"]}",
    "wide": lambda: b'{"v":"' + b"a" * 16 * MIB + "😀".encode() + b'"}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_json_takes_no_more_memory_than_estimated(name: str) -> None:
    estimate = parsed_bytes(TEXTS[name](), 0)
    found, grown = growth("codec('json', mib=4000)", f"[TEXTS[{name!r}]()]")
    assert found in ("{'undecodable'}", "{'wrong_length'}")
    assert estimate / 8 / MIB < grown < 1.1 * estimate / MIB + 8
    assert outcome(codec("json", mib=32), TEXTS[name]()) == "too_many_bytes"


def test_json_of_many_numbers_is_learned() -> None:
    d = 200_000
    text = json.dumps({"v": np.random.default_rng(0).standard_normal(d).tolist()}).encode()
    assert Codec("json", d, 1e150, field="v").decode([text]).rejects == []
    assert len(text) > 2 * MIB


def test_a_value_that_is_longer_than_the_limit() -> None:
    assert outcome(codec("npy", "", mib=1), b"x" * (MIB + 1)) == "too_many_bytes"


@pytest.mark.parametrize("shape", ["(8,)", "(99999999999,)", "(4, 2)"])
def test_npy_that_claims_a_large_array(shape: str) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    value = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    assert outcome(codec("npy", ""), value) in ("undecodable", "wrong_length")


# Avro and Protobuf.


def avro_of(kind: Any) -> MemorySchemas:
    fields = [{"name": "v", "type": {"type": "array", "items": "double"}}, {"name": "other", "type": kind}]
    return memory(WriterSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": fields})))


def varint(number: int) -> bytes:
    """Zigzag, as Avro writes a count."""
    number, out = number << 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


VECTOR = varint(D) + np.zeros(D).tobytes() + varint(0)
ARRAYS = {"type": "array", "items": {"type": "array", "items": "long"}}
MAPS = {"type": "array", "items": {"type": "map", "values": "long"}}
RECORDS = {"type": "array", "items": {"type": "record", "name": "S", "fields": [
    {"name": "a", "type": "boolean"}, *({"name": f"n{i}", "type": "null"} for i in range(20)),
]}}  # fmt: skip
AVRO = {"arrays": ARRAYS, "maps": MAPS, "records": RECORDS, "numbers": {"type": "array", "items": "long"}}


def avro_value(count: int) -> bytes:
    return framed(1, VECTOR + varint(count) + bytes(count) + varint(0))


@pytest.mark.parametrize("name", AVRO)
def test_avro_takes_no_more_memory_than_estimated(name: str) -> None:
    found, grown = growth(f"codec('avro', schemas=avro_of(AVRO[{name!r}]), mib=4000)", "[avro_value(500_000)]")
    assert found == "{''}"
    assert outcome(codec("avro", schemas=avro_of(AVRO[name]), mib=max(0.5, grown * 0.9)), avro_value(500_000)) == (
        "too_many_bytes"
    )
    assert outcome(codec("avro", schemas=avro_of(AVRO[name])), avro_value(100)) == ""


PROTO = """
syntax = "proto3";
message M { repeated double v = 1; repeated S s = 2; }
message S { double a = 1; double b = 2; string c = 3; string d = 4; repeated double e = 5; S f = 6; }
"""


def protobuf_value(count: int) -> bytes:
    return framed(1, b"\0" + b"\x0a\x40" + np.ones(D).tobytes() + b"\x12\x00" * count)


def test_protobuf_takes_no_more_memory_than_estimated() -> None:
    schemas = "memory(WriterSchema('PROTOBUF', PROTO))"
    found, grown = growth(f"codec('protobuf', schemas={schemas}, mib=4000)", "[protobuf_value(1_000_000)]")
    assert found == "{''}"
    decoder = codec("protobuf", schemas=memory(WriterSchema("PROTOBUF", PROTO)), mib=max(8, grown * 0.9))
    assert outcome(decoder, protobuf_value(1_000_000)) == "too_many_bytes"
    assert outcome(decoder, protobuf_value(10)) == ""
