"""Encode values with the formats' own libraries; Avro and Protobuf framed as registry clients do."""

import io
import json
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pool, message_factory
from hypothesis import strategies as st

from streampca.formats.codec import REASONS, Codec
from streampca.formats.judge import Judge
from streampca.formats.protobuf import compiled
from streampca.formats.record import Decoded
from streampca.formats.schemas import WriterSchema
from tests.in_memory.schemas import MemorySchemas

D, WIDE = 3, 8
ROW = [1.0, -2.5, 3.25]
GAPPY = np.array(
    [[1.0, np.nan, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], [np.nan, np.nan, np.nan, 4.0], [np.nan, 2.0, np.nan, 4.0]]
)  # the third has too few entries for `min_observed=2`


DOUBLES = st.lists(st.floats(-1e149, 1e149), min_size=D, max_size=D)


SINGLES = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=D, max_size=D)


INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=D, max_size=D)


ARRAY = {"type": "array", "items": "double"}


def codec(
    kind: str = "json",
    field: str = "",
    schemas: MemorySchemas | None = None,
    d: int = D,
    where: str = "",
    label: str = "",
    **judging: Any,
) -> Codec:
    """Return the codec of a format. `judging` are settings of the judge."""
    settings = {"largest_value": 1e150} | judging
    return Codec(kind, Judge(d, **settings), field, schemas, where, label)


def assert_rejected(decoded: Decoded, reason: str, words: str) -> None:
    """The only value of a batch is a reject with this reason, and a message with these words."""
    actual, message = only_reject(decoded)
    assert actual == reason
    assert words in message


@cache
def readings(field: str) -> Codec:
    """Return the codec of `Reading` messages. It is cached, because compiling the schema takes a while."""
    return codec("protobuf", field, memory(READING))


def long(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema("long"), number)
    return out.getvalue()


class CountingSchemas(MemorySchemas):
    """Counts the requests."""

    requests = 0

    def get(self, schema_id: int | str) -> WriterSchema:
        self.requests += 1
        return super().get(schema_id)


def zeros(rows: int, compression: str | None = "zstd", batches: int = 1, dtype: str = "f8") -> bytes:
    """An Arrow IPC stream of equal batches of zeros."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * WIDE, dtype)), WIDE)
    return stream(column, compression, batches)


def ipc(schema: Any, batches: Iterable[Any], compression: str | None = None) -> bytes:
    """An Arrow IPC stream of record batches."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue()


def stream(column: Any, compression: str | None = None, batches: int = 1) -> bytes:
    batch = pa.record_batch([column], ["v"])
    return ipc(batch.schema, [batch] * batches, compression)


FORMATS = ("json", "float32", "float64", "npy")


def npy_of(header: str | bytes, data: bytes = b"", version: int = 1) -> bytes:
    """An .npy file with any header."""
    text = header.encode() if isinstance(header, str) else header
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def header_of(descr: str, shape: str) -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


def encoded(kind: str, row: list[float]) -> bytes:
    """The row, encoded by the standard library alone (.npy: by NumPy)."""
    match kind:
        case "json":
            return json.dumps(row).encode()
        case "npy":
            return npy(np.array(row))
    return struct.pack(f"<{len(row)}{'f' if kind == 'float32' else 'd'}", *row)


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + struct.pack(">I", schema_id) + payload


def avro_schema(vector: Any, *path: str) -> WriterSchema:
    """A record schema with other fields around the vector at every level of the path."""
    for depth, name in enumerate(reversed(path)):
        fields = [
            {"name": "before", "type": ["null", "string"]},
            {"name": name, "type": vector},
            {"name": "after", "type": {"type": "array", "items": "double"}},
        ]
        vector = {"type": "record", "name": f"Step{depth}", "fields": fields}
    return WriterSchema("AVRO", json.dumps(vector))


def avro_datum(vector: Any, *path: str) -> Any:
    for name in reversed(path):
        vector = {"before": "é", name: vector, "after": [1.0, 2.0]}
    return vector


def avro(schema: WriterSchema, datum: Any, schema_id: int = 1) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema.text)), datum)
    return framed(schema_id, out.getvalue())


PROTO = """
syntax = "proto3";
package readings.of;
import "parts/inner.proto";
message Other { string name = 1; }
message Reading {
  string sensor = 1;
  repeated float singles = 2;
  repeated double doubles = 3;
  repeated double loose = 4 [packed = false];
  repeated sint64 counts = 5;
  bytes blob = 6;
  Step step = 7;
  double one = 8;
  repeated string words = 9;
  repeated bool flags = 10;
  repeated Step steps = 11;
  inner.Part part = 12;
  message Step { Deep deep = 1; message Deep { repeated double v = 3; string unit = 4; } }
}
"""
INNER = """
syntax = "proto3";
package inner;
message Part { repeated float v = 1; }
"""
READING = WriterSchema("PROTOBUF", PROTO, {"parts/inner.proto": INNER})


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in compiled(READING).file:
        pool.Add(file)
    return pool


def reading(**fields: Any) -> Any:
    """A `Reading` message."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName("readings.of.Reading"))(**fields)


def protobuf(message: Any, schema_id: int = 1, indexes: bytes = b"\x02\x02") -> bytes:
    """A framed message; the default indexes select message 1 of the file, `Reading`, as zigzag varints."""
    return framed(schema_id, indexes + message.SerializeToString())


def arrow(*batches: Sequence[Sequence[float]], kind: Any = None, name: str = "v", **others: Any) -> bytes:
    """An IPC stream of batches of rows; `others` are further columns."""
    kind = kind or pa.list_(pa.float64(), 3)
    schema = pa.schema([(name, kind), *((other, pa.int64()) for other in others)])

    def batch(rows: Any) -> Any:
        columns = [pa.array(rows, kind), *(pa.array([value] * len(rows), pa.int64()) for value in others.values())]
        return pa.record_batch(columns, schema=schema)

    return ipc(schema, map(batch, batches))


def npy(array: Any) -> bytes:
    """The array as an .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=True)
    return file.getvalue()


def memory(*schemas: WriterSchema) -> MemorySchemas:
    """An in-memory registry of these schemas, with ids from 1."""
    return MemorySchemas(dict(enumerate(schemas, 1)))


def bytes_of(row: Sequence[float], kind: str) -> bytes:
    return np.array(row, kind).tobytes()


def only_reject(decoded: Decoded) -> tuple[str, str]:
    """The reason and the message of the only value of a batch."""
    assert len(decoded.vectors) == len(decoded.indices) == 0
    [reject] = decoded.rejects
    assert (reject.index, reject.reason in REASONS) == (0, True)
    assert 0 < len(reject.message) < 400
    assert "\n" not in reject.message
    return reject.reason, reject.message


def skipped_in(decoded: Decoded) -> list[int]:
    """The indices of the values that are skipped."""
    return [skipped.index for skipped in decoded.skipped]
