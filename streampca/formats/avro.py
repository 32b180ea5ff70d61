"""Avro with a schema registry: numbers, arrays of them, or bytes that hold floats, anywhere in a record.

Avro writes an array in blocks, each a count and its items, up to a count of zero. So an array of d floats in one block
has the layout of a record with a count, d·4 or d·8 fixed bytes, and another count. The writer's schema with such a
record in place of the array reads the numbers without creating a Python object for each; a value with other blocks is
read with the original schema.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count
from typing import Any

import fastavro
from numpy.typing import NDArray

from streampca.formats.base import Counts, Fields, Kind, Layout, Reader, Writer
from streampca.formats.errors import VectorError
from streampca.formats.layout import as_bytes, joined, varint
from streampca.formats.numbers import Guessed, VectorBytes, float64_of
from streampca.formats.schemas import SchemaCache, WriterSchema, frame_size

_SIZES = {"float": 4, "double": 8}
_TYPES: dict[Kind, Any] = {
    "number": "double", "bytes": "bytes", "numbers": {"type": "array", "items": "double"},
    "integers": {"type": "array", "items": "long"}, "texts": {"type": "array", "items": "string"},
}  # fmt: skip
_MAX_TYPES = 10_000  # in a schema; a named type counts wherever it is used


class AvroReader(Reader):
    kind = "Avro record"

    def __post_init__(self) -> None:
        self._decoders = SchemaCache(self.schemas, "AVRO", self._decoder)

    def read(self, value: bytes) -> VectorBytes | Guessed:
        return self._decoders.get(value)(value)

    def _decoder(self, schema: WriterSchema) -> Callable[[bytes], VectorBytes | Guessed]:
        named: dict[str, Any] = {}
        for text in schema.references.values():
            fastavro.parse_schema(json.loads(text), named)
        plain = json.loads(schema.text)
        names = dict(named)
        parsed = fastavro.parse_schema(plain, names)
        _check_types(parsed, names)
        path = [part.name for path in self.paths for part in path] if len(self.paths) < 2 else None
        block = None if path is None else _with_one_block(plain, path, self.dimensions, count())
        fast = block and fastavro.parse_schema(block, dict(named))

        def decode(value: bytes) -> VectorBytes | Guessed:
            numbers = None if fast is None else self._one_block(value, fast)
            return self.numbers.pack(_whole(value, parsed), booleans=True) if numbers is None else numbers

        return decode

    def _one_block(self, value: bytes, schema: Any) -> VectorBytes | None:
        """The numbers of an array written as one block of d items; None for anything else."""
        try:
            block = _whole(value, schema)
            for part in chain.from_iterable(self.paths):
                block = block[part.name]
        except Exception:  # of any kind: a value with another layout is read as if it were random
            return None
        if not isinstance(block, dict) or block.get("count") != self.dimensions or block.get("end") != 0:
            return None
        return float64_of(block["items"], self.dimensions)


class AvroWriter(Writer):
    """An array is one block and the empty one that ends it; a record adds no bytes."""

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        parts: list[Any] = [self.frame]
        for values in fields.values():
            items = [values] if values.dtype.kind == "f" else [_encoded(values)]
            parts += [varint(2 * values.shape[1]), *items, b"\0"] if values.ndim == 2 else items
        return joined(parts)


def _encoded(values: NDArray[Any]) -> list[bytes]:
    """The bytes of each row of whole numbers, not negative, of texts or of bytes."""
    if values.dtype.kind != "O":
        return [b"".join([varint(2 * number) for number in row]) for row in values.tolist()]
    rows = values.reshape(len(values), -1).tolist()
    return [b"".join([varint(2 * len(data)) + data for data in map(as_bytes, row)]) for row in rows]


def schema_of(layout: Layout) -> WriterSchema:
    """A record with arrays of doubles and doubles, in records along the path; or an array."""
    if list(layout.fields) == [""]:
        return WriterSchema("AVRO", json.dumps(_TYPES["numbers"]))
    fields = [{"name": name, "type": _TYPES[kind]} for name, kind in layout.fields.items()]
    schema = {"type": "record", "name": layout.record, "fields": fields}
    for depth, name in enumerate(reversed(layout.around), 1):
        schema = {"type": "record", "name": f"{layout.record}{depth}", "fields": [{"name": name, "type": schema}]}
    return WriterSchema("AVRO", json.dumps(schema))


def _whole(value: bytes, schema: Any) -> Any:
    """Read the datum that follows the frame of a value. Raises `VectorError`."""
    stream = io.BytesIO(value)
    stream.seek(frame_size(value))
    try:
        datum = fastavro.schemaless_reader(stream, schema, None)
    except Exception as error:  # of many kinds: EOFError, IndexError, UnicodeDecodeError …
        raise VectorError("undecodable", f"not Avro of its schema: {type(error).__name__}") from None
    if stream.tell() != len(value):
        raise VectorError("undecodable", "not Avro of its schema: bytes are left over")
    return datum


def _check_types(schema: Any, named: Mapping[str, Any]) -> None:
    """Refuse schemas of which a short value may take any amount of memory and time.

    fastavro overflows the C stack on deeply nested values of a recursive schema. An array whose items take no bytes may
    claim any number of them.
    """
    uses = count(1)

    def takes_bytes(schema: Any, around: tuple[str, ...]) -> bool:
        """Return whether every value of a type takes at least a byte; `around`: the named types that it is part of."""
        if next(uses) > _MAX_TYPES:
            raise VectorError("undecodable", f"schemas of more than {_MAX_TYPES} types are not supported")
        match named.get(schema, schema) if isinstance(schema, str) else schema:
            case list() as branches:
                return bool([takes_bytes(branch, around) for branch in branches])
            case {"type": "record", "name": name, "fields": fields}:
                if name in around:
                    raise VectorError("undecodable", f"recursive schemas are not supported ({name!r} contains itself)")
                parts = [takes_bytes(field["type"], (*around, name)) for field in fields]
                return any(parts)
            case {"type": "array", "items": items}:
                if not takes_bytes(items, around):
                    raise VectorError("undecodable", "arrays of items without bytes are not supported")
            case {"type": "map", "values": values}:
                takes_bytes(values, around)
            case {"type": "fixed", "size": size}:
                return bool(size > 0)
            case "null" | {"type": "null"}:
                return False
        return True

    takes_bytes(schema, ())


def _with_one_block(schema: Any, path: list[str], size: int, number: Iterator[int]) -> Any:
    """The schema with one block of `size` items in place of the array of floats at the path; None if there is none.

    References to named types are not followed: such values are read with the original schema.
    """
    match schema:
        case list():
            branches = [_with_one_block(branch, path, size, number) for branch in schema]
            return [branch or schema[i] for i, branch in enumerate(branches)] if any(branches) else None
        case {"type": "record", "fields": fields} if path:
            kinds = {field["name"]: _with_one_block(field["type"], path[1:], size, number)
                     for field in fields if field["name"] == path[0]}  # fmt: skip
            fields = [{**field, "type": kinds.get(field["name"]) or field["type"]} for field in fields]
            return {**schema, "fields": fields} if any(kinds.values()) else None
        case {"type": "array", "items": ("float" | "double" as item) | {"type": "float" | "double" as item}} if (
            not path
        ):
            return _block(_SIZES[item] * size, next(number))
    return None


def _block(size: int, number: int) -> dict[str, Any]:
    fields = [
        {"name": "count", "type": "long"},
        {"name": "items", "type": {"type": "fixed", "name": f"streampca.Items{number}", "size": size}},
        {"name": "end", "type": "long"},
    ]
    return {"type": "record", "name": f"streampca.Block{number}", "fields": fields}
