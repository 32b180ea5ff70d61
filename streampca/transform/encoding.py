"""Encodes what was computed of each record as the value of its output.

In all formats but JSON, the values are rows of one array, with the same bytes between the numbers of each. Schemas of
Avro and Protobuf are those of `schema_of`.
"""

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from streampca.formats.schemas import WriterSchema
from streampca.formats.varint import varint
from streampca.pca.arrays import Array
from streampca.transform.projection import Fields

Counts: TypeAlias = NDArray[np.int64] | None
"""How many vectors each record has; None: one."""

_VECTORS = ("coordinates", "reconstruction")  # the others are one number a vector


Encode = Callable[[Fields, Counts], list[bytes]]


def encoder(format_: str, frame: bytes = b"") -> Encode:
    """The encoder of a format; `frame` comes before the values of Avro and Protobuf, and names their schema."""
    match format_:
        case "json":
            return _json
        case "float32":
            return _float32
        case "npy":
            return _npy
        case "avro":
            return lambda fields, counts: _packed(frame, fields, _around_in_avro)
        case "protobuf":
            return lambda fields, counts: _packed(frame + b"\0", fields, _around_in_protobuf)
    raise ValueError(f"no format {format_}")


def schema_of(format_: str, fields: Sequence[str]) -> WriterSchema | None:
    """The schema of these fields, if the format has schemas."""
    if format_ == "avro":
        kinds = [{"name": name, "type": {"type": "array", "items": "double"} if name in _VECTORS else "double"}
                 for name in fields]  # fmt: skip
        return WriterSchema("AVRO", json.dumps({"type": "record", "name": "Projection", "fields": kinds}))
    if format_ == "protobuf":
        lines = [f"{'repeated ' if name in _VECTORS else ''}double {name} = {i};" for i, name in enumerate(fields, 1)]
        return WriterSchema("PROTOBUF", f'syntax = "proto3"; message Projection {{ {" ".join(lines)} }}')
    return None


def _json(fields: Fields, counts: Counts) -> list[bytes]:
    """Objects with a member for each field; its values are lists if a record may have several vectors."""
    columns = [column.tolist() for column in fields.values()]
    if counts is not None:
        ends = np.cumsum(counts).tolist()
        starts = [0, *ends[:-1]]
        columns = [[column[i:j] for i, j in zip(starts, ends, strict=True)] for column in columns]
    names = list(fields)
    return [orjson.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def _float32(fields: Fields, counts: Counts) -> list[bytes]:
    """The numbers of all fields one after the other, for each vector."""
    return _cut(_side_by_side(fields).astype("<f4"), counts)


def _npy(fields: Fields, counts: Counts) -> list[bytes]:
    """A .npy file: a vector of all fields one after the other, or several such rows."""
    rows = _side_by_side(fields).astype("<f8")
    if counts is None:
        header = _npy_header(rows[0])
        return [header + row for row in _cut(rows)]
    each = np.split(rows, np.cumsum(counts)[:-1])
    return [_npy_header(part) + part.tobytes() for part in each]


def _npy_header(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(array))
    return buffer.getvalue()


def _packed(frame: bytes, fields: Fields, around: Callable[[int, Array], tuple[bytes, bytes]]) -> list[bytes]:
    """The numbers of all fields, with the bytes `around` each, after the frame."""
    n = len(next(iter(fields.values())))
    columns = [np.tile(np.frombuffer(frame, np.uint8), (n, 1))]
    for number, values in enumerate(fields.values(), 1):
        before, after = around(number, values)
        numbers = np.ascontiguousarray(values.reshape(n, -1), "<f8").view(np.uint8)
        columns += [np.tile(np.frombuffer(before, np.uint8), (n, 1)), numbers]
        columns.append(np.tile(np.frombuffer(after, np.uint8), (n, 1)))
    return _cut(np.hstack(columns))


def _around_in_avro(number: int, values: Array) -> tuple[bytes, bytes]:
    """An array is one block and the empty one that ends it."""
    return (varint(2 * values.shape[1]), b"\0") if values.ndim == 2 else (b"", b"")


def _around_in_protobuf(number: int, values: Array) -> tuple[bytes, bytes]:
    """A tag; and the length in bytes, if numbers are packed."""
    if values.ndim == 2:
        return bytes([number << 3 | 2]) + varint(8 * values.shape[1]), b""
    return bytes([number << 3 | 1]), b""


def _side_by_side(fields: Fields) -> Array:
    """All fields, (n, width)."""
    return np.column_stack(list(fields.values()))


def _cut(rows: NDArray[Any], counts: Counts = None) -> list[bytes]:
    """The bytes of each row, or of so many rows each."""
    if counts is None:
        values: list[bytes] = rows.view(f"V{rows.strides[0]}")[:, 0].tolist()
        return values
    data, ends = rows.tobytes(), (np.cumsum(counts) * rows.strides[0]).tolist()
    return [data[i:j] for i, j in zip([0, *ends[:-1]], ends, strict=True)]
