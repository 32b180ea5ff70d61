"""Encode values with the formats' own libraries; Avro and Protobuf framed as registry clients do."""

import io
import json
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pool, message_factory

from streampca.formats.batch import Decoded
from streampca.formats.codec import REASONS
from streampca.formats.protobuf import compiled
from streampca.formats.schemas import WriterSchema
from tests.in_memory.schemas import MemorySchemas


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
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as writer:
        for rows in batches:
            columns = [pa.array(rows, kind), *(pa.array([value] * len(rows), pa.int64()) for value in others.values())]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return out.getvalue()


def npy(array: Any) -> bytes:
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
