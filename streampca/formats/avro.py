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

from streampca.formats.base import Counts, Fields, Kind, Layout, Reader, Writer
from streampca.formats.errors import VectorError
from streampca.formats.layout import encode_items, join_parts, varint
from streampca.formats.numbers import GuessedNumbers, VectorBytes, widen_floats
from streampca.formats.schemas import SchemaCache, WriterSchema, frame_size

_FLOAT_SIZES = {"float": 4, "double": 8}  # bytes
_TYPES: dict[Kind, Any] = {
    "number": "double", "bytes": "bytes", "numbers": {"type": "array", "items": "double"},
    "integers": {"type": "array", "items": "long"}, "texts": {"type": "array", "items": "string"},
}  # fmt: skip
_MAX_TYPES = 10_000  # in a schema; a named type counts wherever it is used
_END_OF_ARRAY = b"\0"  # the count zero


class AvroReader(Reader):
    value_name = "Avro record"

    def __post_init__(self) -> None:
        self._decoders = SchemaCache(self.schemas, "AVRO", self._create_decoder)

    def read(self, value: bytes) -> VectorBytes | GuessedNumbers:
        decode = self._decoders.get(value)
        return decode(value)

    def _create_decoder(self, schema: WriterSchema) -> Callable[[bytes], VectorBytes | GuessedNumbers]:
        """Return the function that reads the vectors of values with this schema."""
        referenced: dict[str, Any] = {}  # types by name
        for text in schema.references.values():
            fastavro.parse_schema(json.loads(text), referenced)
        original = json.loads(schema.text)
        named = dict(referenced)  # `parse_schema` adds the schema's own types
        original_schema = fastavro.parse_schema(original, named)
        _check_types(original_schema, named)

        # Reads the numbers faster, if they are in one array at the only path.
        one_block_schema = None
        if len(self.paths) <= 1:
            path = [part.name for part in chain.from_iterable(self.paths)]
            one_block = _with_one_block(original, path, self.dimensions, count())
            if one_block is not None:
                one_block_schema = fastavro.parse_schema(one_block, dict(referenced))

        def decode(value: bytes) -> VectorBytes | GuessedNumbers:
            if one_block_schema is not None:
                numbers = self._read_one_block(value, one_block_schema)
                if numbers is not None:
                    return numbers
            return self.numbers.pack(_read_datum(value, original_schema), refuse_booleans=True)

        return decode

    def _read_one_block(self, value: bytes, schema: Any) -> VectorBytes | None:
        """Return the numbers of an array that was written as one block of d items; None if it was not.

        `schema` is the writer's schema with a record in place of the array, see `_with_one_block`.
        """
        try:
            block = _read_datum(value, schema)
            for part in chain.from_iterable(self.paths):
                block = block[part.name]
        except Exception:  # of any kind: bytes of another layout may mean anything in this schema
            return None
        is_one_block = isinstance(block, dict) and block.get("count") == self.dimensions and block.get("end") == 0
        return widen_floats(block["items"], self.dimensions) if is_one_block else None


class AvroWriter(Writer):
    """Writes an array as one block and the empty block that ends it. A record adds no bytes to those of its fields."""

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        parts: list[Any] = [self.frame]
        for values in fields.values():
            is_array = values.ndim == 2
            if is_array:
                parts.append(_encode_long(values.shape[1]))
            match values.dtype.kind:
                case "f":
                    parts.append(values)
                case "O":
                    parts.append(encode_items(values, _encode_bytes))
                case _:
                    parts.append([b"".join(map(_encode_long, row)) for row in values.tolist()])
            if is_array:
                parts.append(_END_OF_ARRAY)
        return join_parts(parts)


def _encode_long(number: int) -> bytes:
    """Encode a number that is not negative. Avro's zigzag encoding of it is the varint of twice the number."""
    return varint(2 * number)


def _encode_bytes(data: bytes) -> bytes:
    return _encode_long(len(data)) + data


def schema_of(layout: Layout) -> WriterSchema:
    """Return the schema of a record with these fields. For each name of `around`, there is a record around it.

    If the value is only an array, it is the schema of the array.
    """
    is_array = list(layout.fields) == [""]
    if is_array:
        return WriterSchema("AVRO", json.dumps(_TYPES["numbers"]))
    fields = [{"name": name, "type": _TYPES[kind]} for name, kind in layout.fields.items()]
    schema = {"type": "record", "name": layout.record, "fields": fields}
    for depth, name in enumerate(reversed(layout.around), 1):
        schema = {"type": "record", "name": f"{layout.record}{depth}", "fields": [{"name": name, "type": schema}]}
    return WriterSchema("AVRO", json.dumps(schema))


def _read_datum(value: bytes, schema: Any) -> Any:
    """Read what follows the frame of a value. Raises `VectorError`."""
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
    """Refuse a schema with which a short value may take any amount of memory and time. Raises `VectorError`.

    fastavro overflows the C stack on deeply nested values of a recursive schema. An array whose items take no bytes may
    claim any number of them. `named` are the types by name.
    """
    numbers_of_types = count(1)

    def check(schema: Any, around: tuple[str, ...]) -> bool:
        """Check a type and all that it contains. Return whether each value of the type takes at least a byte.

        `around` are the names of the records that the type is inside of.
        """
        if next(numbers_of_types) > _MAX_TYPES:
            raise VectorError("undecodable", f"schemas of more than {_MAX_TYPES} types are not supported")
        match named.get(schema, schema) if isinstance(schema, str) else schema:
            case list() as branches:  # a union: the number of the branch takes a byte
                for branch in branches:
                    check(branch, around)
                return bool(branches)
            case {"type": "record", "name": name, "fields": fields}:
                if name in around:
                    raise VectorError("undecodable", f"recursive schemas are not supported ({name!r} contains itself)")
                take_bytes = [check(field["type"], (*around, name)) for field in fields]
                return any(take_bytes)
            case {"type": "array", "items": items}:
                if not check(items, around):
                    raise VectorError("undecodable", "arrays of items without bytes are not supported")
            case {"type": "map", "values": values}:
                check(values, around)
            case {"type": "fixed", "size": size}:
                return bool(size > 0)
            case "null" | {"type": "null"}:
                return False
        return True

    check(schema, around=())


def _with_one_block(schema: Any, path: list[str], dimensions: int, block_numbers: Iterator[int]) -> Any:
    """Return the schema with one block of d items in place of the array of floats at the path; None if there is none.

    References to named types are not followed: such values are read with the original schema. `block_numbers` tell the
    blocks' types apart, if there are several in a union.
    """
    match schema:
        case list() as branches:
            replaced = [_with_one_block(branch, path, dimensions, block_numbers) for branch in branches]
            if not any(replaced):
                return None
            return [new or old for new, old in zip(replaced, branches, strict=True)]
        case {"type": "record", "fields": fields} if path:
            new_types = {}
            for field in fields:
                if field["name"] == path[0]:
                    new_types[path[0]] = _with_one_block(field["type"], path[1:], dimensions, block_numbers)
            if not any(new_types.values()):
                return None
            new_fields = [{**field, "type": new_types.get(field["name"]) or field["type"]} for field in fields]
            return {**schema, "fields": new_fields}
        case {"type": "array", "items": ("float" | "double" as item) | {"type": "float" | "double" as item}} if (
            not path
        ):
            return _block_type(_FLOAT_SIZES[item] * dimensions, next(block_numbers))
    return None


def _block_type(size: int, number: int) -> dict[str, Any]:
    """Return the type of a record whose bytes are those of an array with one block, whose items have `size` bytes.

    Avro writes such an array as a count, the items, and a 0 at the end. Read as this record, all items come as bytes at
    once, which is faster. The `number` makes the names of several such types different.
    """
    fields = [
        {"name": "count", "type": "long"},
        {"name": "items", "type": {"type": "fixed", "name": f"streampca.Items{number}", "size": size}},
        {"name": "end", "type": "long"},
    ]
    return {"type": "record", "name": f"streampca.Block{number}", "fields": fields}
