"""Avro with a schema registry: numbers, arrays of them, or bytes that hold floats, anywhere in a record.

Avro writes an array in blocks, each a count and its items, up to a count of zero. So an array of d floats in one block
has the layout of a record with a count, d·4 or d·8 fixed bytes, and another count. The writer's schema with such a
record in place of the array reads the numbers without creating a Python object for each; a value with other blocks is
read with the original schema.

Two kinds of schemas are refused, because a short value could take any amount of memory: recursive schemas, whose nested
values overflow fastavro's C stack, and arrays of items that take no bytes, because they may claim any number of items.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import fastavro
from fastavro.read import LOGICAL_READERS

from streampca.formats.base import Counts, Fields, Kind, Layout, Reader, Writer
from streampca.formats.errors import VectorError
from streampca.formats.layout import encode_items, join_columns, varint
from streampca.formats.numbers import GuessedNumbers, VectorBytes, widen_floats
from streampca.formats.schemas import SchemaCache, WriterSchema, schema_prefix_size
from streampca.formats.tensors import names_beside
from streampca.formats.text import may_be_debezium_placeholder
from streampca.settings.field_paths import Choice, Step, get_steps, spell_path

_FLOAT_SIZES = {"float": 4, "double": 8}  # bytes
_TYPES: dict[Kind, Any] = {
    "number": "double", "bytes": "bytes", "numbers": {"type": "array", "items": "double"},
    "integers": {"type": "array", "items": "long"}, "text": "string", "texts": {"type": "array", "items": "string"},
}  # fmt: skip
_MAX_TYPES = 10_000  # in a schema; a named type counts wherever it is used
_TIME_TYPES = LOGICAL_READERS.keys() - {"bytes-decimal", "fixed-decimal"}  # of dates, times and UUIDs, such as int-date
_TIME_PREFIX = "streampca."  # before the names of such types, see `_load_schema`
_END_OF_ARRAY = b"\0"  # the count zero


class _ParsedSchemas(NamedTuple):
    """The schemas with which the values of one writer are read."""

    original: Any
    bulk: Any  # reads the array of d floats as bytes; None if there is no such array


class AvroReader(Reader):
    value_name = "Avro record"

    def __post_init__(self) -> None:
        self._schemas_of_writers = SchemaCache(self.schemas, "AVRO", self._parse)

    def read(self, value: bytes) -> VectorBytes | GuessedNumbers:
        schemas = self._schemas_of_writers.get(value)
        numbers = None if schemas.bulk is None else self._read_bulk(value, schemas.bulk)
        if numbers is not None:
            return numbers
        return self.numbers.pack(_read_datum(value, schemas.original))

    def read_tree(self, value: bytes) -> Any:
        return _read_datum(value, self._schemas_of_writers.get(value).original)

    def _parse(self, schema: WriterSchema) -> _ParsedSchemas:
        """Parse a writer's schema. Raises `VectorError` if it is refused, or if a path leads to a time."""
        referenced_types: dict[str, Any] = {}
        for text in schema.references.values():
            fastavro.parse_schema(_load_schema(text), referenced_types)
        # A copy, because `parse_schema` adds the schema's types to it, and the bulk schema defines them again.
        named_types = dict(referenced_types)
        parsed_schema = fastavro.parse_schema(_load_schema(schema.text), named_types)
        _check_types(parsed_schema, named_types)
        for path in self.paths:
            steps = get_steps(path)
            _refuse_times(parsed_schema, named_types, steps, spell_path(steps))
        return _ParsedSchemas(parsed_schema, bulk=self._create_bulk_schema(schema.text, referenced_types))

    @property
    def _steps(self) -> Sequence[Step]:
        """The steps to the numbers, if there is at most one path."""
        return get_steps(self.paths[0]) if self.paths else ()

    def _create_bulk_schema(self, schema_text: str, referenced_types: Mapping[str, Any]) -> Any:
        """Return the schema that reads the array of d floats as bytes; None if there is no such array."""
        if len(self.paths) > 1 or self.where or may_be_debezium_placeholder(self.dimensions):
            return None
        bulk_schema = _load_schema(schema_text)  # a tree of its own, since the arrays in it are replaced
        has_floats = False
        for number, array_type in enumerate(_find_arrays(bulk_schema, self._steps)):
            float_size = _find_float_size(array_type["items"])
            if float_size is not None:
                has_floats = True
                array_type.clear()
                array_type.update(_block_type(float_size * self.dimensions, number))
        return fastavro.parse_schema(bulk_schema, dict(referenced_types)) if has_floats else None

    def _read_bulk(self, value: bytes, schema: Any) -> VectorBytes | None:
        """If the array in a value is a single Avro block of d floats, return them; else return None."""
        try:
            array = _read_datum(value, schema)
            for step in self._steps:
                array = array[step]
        except Exception:  # bytes of another layout may mean anything in this schema
            return None
        is_single_block = isinstance(array, dict) and array.get("count") == self.dimensions and array.get("end") == 0
        return widen_floats(array["items"], self.dimensions) if is_single_block else None


class AvroWriter(Writer):
    """Writes an array as one block and the empty block that ends it. A record adds no bytes to those of its fields."""

    holds_names = True

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row: the schema prefix, then the fields. `counts` are not used."""
        columns: list[Any] = [self.schema_prefix]
        for values in fields.values():
            is_array = values.ndim == 2
            if is_array:
                columns.append(_encode_long(values.shape[1]))
            match values.dtype.kind:
                case "f":
                    columns.append(values)
                case "O":  # texts or bytes
                    columns.append(encode_items(values, _encode_bytes))
                case _:  # whole numbers: an array in each row
                    columns.append([b"".join(map(_encode_long, row)) for row in values.tolist()])
            if is_array:
                columns.append(_END_OF_ARRAY)
        return join_columns(columns)


def _encode_long(number: int) -> bytes:
    """Encode a number that is not negative. Avro's zigzag encoding of it is the varint of twice the number."""
    return varint(2 * number)


def _encode_bytes(data: bytes) -> bytes:
    return _encode_long(len(data)) + data


def schema_of(layout: Layout) -> WriterSchema:
    """Return the schema of a record with these fields, inside of a record for each of `layout.enclosing_names`.

    With ["after"], the record is the field `after` of another record.
    """
    is_whole_value = list(layout.fields) == [""]
    if is_whole_value:  # the value is an array
        return WriterSchema("AVRO", json.dumps(_TYPES["numbers"]))
    fields = [{"name": name, "type": _TYPES[kind]} for name, kind in layout.fields.items()]
    schema = {"type": "record", "name": layout.record, "fields": fields}
    for depth, name in enumerate(reversed(layout.enclosing_names), 1):
        schema = {"type": "record", "name": f"{layout.record}{depth}", "fields": [{"name": name, "type": schema}]}
    return WriterSchema("AVRO", json.dumps(schema))


def _load_schema(text: str) -> Any:
    """Parse a schema, and put a prefix before its types of dates, times and UUIDs.

    fastavro then reads them as plain numbers or texts: Python cannot hold every date.
    """

    def add_prefix(entry: dict[str, Any]) -> dict[str, Any]:
        name = entry.get("logicalType")
        is_time = f"{entry.get('type')}-{name}" in _TIME_TYPES
        return {**entry, "logicalType": f"{_TIME_PREFIX}{name}"} if is_time else entry

    return json.loads(text, object_hook=add_prefix)


def _resolve(schema: Any, named_types: Mapping[str, Any]) -> Any:
    """If a schema is the name of a type, return the type; else return the schema as it is."""
    return named_types.get(schema, schema) if isinstance(schema, str) else schema


def _refuse_times(schema: Any, named_types: Mapping[str, Any], steps: Sequence[Step], path: str) -> None:
    """If steps lead from a schema to a date, a time or a UUID, raise `VectorError`."""
    match _resolve(schema, named_types):
        case list() as branches:  # a union
            for branch in branches:
                _refuse_times(branch, named_types, steps, path)
        case {"type": "array", "items": items}:
            # Without a choice, no step stands for the array.
            is_choice = bool(steps) and isinstance(steps[0], Choice)
            steps_in_element = steps[1:] if is_choice else steps
            _refuse_times(items, named_types, steps_in_element, path)
        case {"type": "map", "values": values} if steps:
            _refuse_times(values, named_types, steps[1:], path)
        case {"type": "record", "fields": fields} if steps:
            for field in fields:
                if field["name"] == steps[0]:
                    _refuse_times(field["type"], named_types, steps[1:], path)
        case {"logicalType": str(name)} if name.startswith(_TIME_PREFIX) and not steps:
            time_type = name.removeprefix(_TIME_PREFIX)
            raise VectorError("undecodable", f"the field {path!r} is not a number but a {time_type}")


def _read_datum(value: bytes, schema: Any) -> Any:
    """Read what follows the schema prefix of a value. Raises `VectorError`."""
    stream = io.BytesIO(value)
    stream.seek(schema_prefix_size(value))
    try:
        datum = fastavro.schemaless_reader(stream, schema, None, handle_unicode_errors="replace")
    except Exception as error:  # of many kinds
        raise VectorError("undecodable", f"not Avro of its schema: {type(error).__name__}") from None
    if stream.tell() != len(value):
        raise VectorError("undecodable", "not Avro of its schema: bytes are left over")
    return datum


def _check_types(schema: Any, named_types: Mapping[str, Any]) -> None:
    """Refuse a schema with which a short value may take any amount of memory."""
    checked_types = count(1)

    def check(schema: Any, enclosing_records: tuple[str, ...]) -> bool:
        """Check a type. Return whether each value of it takes at least a byte."""
        if next(checked_types) > _MAX_TYPES:
            raise VectorError("undecodable", f"schemas of more than {_MAX_TYPES} types are not supported")
        match _resolve(schema, named_types):
            case list() as branches:  # a union
                for branch in branches:
                    check(branch, enclosing_records)
                has_values = len(branches) > 0
                return has_values  # a value begins with the index of its branch
            case {"type": "record", "name": name, "fields": fields}:
                if name in enclosing_records:
                    raise VectorError("undecodable", f"recursive schemas are not supported ({name!r} contains itself)")
                # A list, so that all fields are checked.
                fields_take_bytes = [check(field["type"], (*enclosing_records, name)) for field in fields]
                return any(fields_take_bytes)
            case {"type": "array", "items": items}:
                items_take_bytes = check(items, enclosing_records)
                if not items_take_bytes:
                    raise VectorError("undecodable", "arrays of items without bytes are not supported")
                return True  # its end takes a byte
            case {"type": "map", "values": values}:
                check(values, enclosing_records)
                return True
            case {"type": "fixed", "size": size}:
                return bool(size > 0)
            case "null" | {"type": "null"}:
                return False
        return True

    check(schema, enclosing_records=())


def _find_arrays(schema: Any, steps: Sequence[Step]) -> Iterator[dict[str, Any]]:
    """Yield the types of arrays at the end of the steps: several if unions have several branches of this kind.

    Leaves out arrays that may be sparse vectors or tensors.
    """
    match schema:
        case list() as branches:  # a union
            for branch in branches:
                yield from _find_arrays(branch, steps)
        case {"type": "record", "fields": fields} if steps:
            is_last_step = len(steps) == 1
            if is_last_step and any(field["name"] in names_beside(steps) for field in fields):
                return
            for field in fields:
                if field["name"] == steps[0]:
                    yield from _find_arrays(field["type"], steps[1:])
        case {"type": "array"} if not steps:
            yield schema


def _find_float_size(item_type: Any) -> int | None:
    """Return the bytes of a number if its type is float or double; else None."""
    name = item_type.get("type") if isinstance(item_type, dict) else item_type
    return _FLOAT_SIZES.get(name) if isinstance(name, str) else None


def _block_type(size: int, number: int) -> dict[str, Any]:
    """Return a record type with the layout of an Avro block whose items take `size` bytes in all.

    The `number` makes its name unique.
    """
    fields = [
        {"name": "count", "type": "long"},
        {"name": "items", "type": {"type": "fixed", "name": f"streampca.Items{number}", "size": size}},
        {"name": "end", "type": "long"},
    ]
    return {"type": "record", "name": f"streampca.Block{number}", "fields": fields}
