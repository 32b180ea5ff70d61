"""Encoding of vectors in every format that a worker reads, with the schemas of Avro and Protobuf."""

import contextlib
import io
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from streampca.errors import SettingsError, SourceError
from streampca.formats.schemas import WriterSchema
from streampca.formats.varint import varint
from streampca.pca.arrays import Array
from streampca.settings.formats import FormatSettings
from streampca.sources import schema_registry

Encoder = Callable[[Array], bytes]


def encoder(settings: FormatSettings, topic: str) -> Encoder:
    """The encoder of these settings; a worker with the same settings decodes its values.

    Registers the schema of Avro and Protobuf. Raises `SettingsError` and `SourceError`.
    """
    path = settings.field.split(".") if settings.field else []
    match settings.format:
        case "json":
            return lambda vector: orjson.dumps(_nested(vector.tolist(), path))
        case "float32":
            return lambda vector: vector.astype("<f4").tobytes()
        case "float64":
            return lambda vector: vector.astype("<f8").tobytes()
        case "npy":
            return npy_value
        case "arrow":
            return arrow_encoder(settings.field or "vector")
        case "avro":
            head = frame(settings, topic, WriterSchema("AVRO", json.dumps(avro_schema(path))))
            return lambda vector: head + avro_payload(vector)
        case "protobuf":
            head = frame(settings, topic, WriterSchema("PROTOBUF", protobuf_schema(path)))
            return lambda vector: head + b"\0" + protobuf_payload(vector, len(path))


def _nested(value: Any, path: list[str]) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


def npy_value(vector: Array) -> bytes:
    """A complete .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(vector), version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def arrow_encoder(name: str) -> Encoder:
    """Encodes a row, or the rows of an array, as a stream of one batch. Raises `SettingsError` without pyarrow."""
    try:  # here: an optional dependency
        import pyarrow as pa

        from streampca.formats.arrow import fixed_size_lists
    except ImportError:
        raise SettingsError(
            "format arrow needs pyarrow, which is not installed: pip install 'streampca[arrow]'"
        ) from None

    def encode(vectors: Array) -> bytes:
        batch, out = pa.record_batch([fixed_size_lists(vectors)], [name]), io.BytesIO()
        with pa.ipc.new_stream(out, batch.schema) as writer:
            writer.write_batch(batch)
        return out.getvalue()

    return encode


def frame(settings: FormatSettings, topic: str, schema: WriterSchema) -> bytes:
    """The bytes before a payload, which name its schema; registers the schema. Raises `SourceError`."""
    try:
        with contextlib.closing(schema_registry.SchemaRegistry(settings)) as client:
            schema_id = client.register(f"{topic}-value", schema)
    except (TimeoutError, KeyError) as error:
        raise SourceError(str(error)) from None
    return b"\0" + schema_id.to_bytes(4, "big")


def avro_schema(path: list[str]) -> Any:
    """The schema of an array of doubles, nested in records along the path."""
    schema: Any = {"type": "array", "items": "double"}
    for depth, name in enumerate(reversed(path)):
        schema = {"type": "record", "name": f"Vector{depth or ''}", "fields": [{"name": name, "type": schema}]}
    return schema


def avro_payload(vector: Array) -> bytes:
    """An array as one block and the empty one that ends it; a record with one field adds no bytes."""
    return varint(2 * len(vector)) + vector.astype("<f8").tobytes() + b"\0"


def protobuf_schema(path: list[str]) -> str:
    """The schema of repeated doubles, nested in messages along the path."""
    inner = f"repeated double {path[-1]} = 1;"
    for depth, name in zip(itertools.count(1), reversed(path[:-1]), strict=False):
        inner = f"Vector{depth} {name} = 1; message Vector{depth} {{ {inner} }}"
    return f'syntax = "proto3"; message Vector {{ {inner} }}'


def protobuf_payload(vector: Array, depth: int) -> bytes:
    """Field 1 of nested messages; packed numbers and messages are encoded alike."""
    data = vector.astype("<f8").tobytes()
    for _ in range(depth):
        data = b"\x0a" + varint(len(data)) + data
    return data
