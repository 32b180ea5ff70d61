"""Avro with a schema registry: numbers, arrays of them, or bytes that hold floats, anywhere in a record.

Avro writes an array in blocks, each a count and its items, up to a count of zero. So an array of d floats in one block
has the layout of a record with a count, d·4 or d·8 fixed bytes, and another count. The single-block schema is the
writer's schema with such a record in place of the array. It reads the numbers without creating a Python object for
each. A value with other blocks is read with the writer's schema.

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
from streampca.formats.numbers import VectorBytes, widen_floats
from streampca.formats.schemas import SchemaCache, WriterSchema, schema_prefix_size
from streampca.formats.tensors import tensor_field_names
from streampca.settings.field_paths import Choice, Step, get_steps, spell_path

_FLOAT_SIZES = {"float": 4, "double": 8}  # bytes
_TYPES: dict[Kind, Any] = {
    "number": "double", "bytes": "bytes", "numbers": {"type": "array", "items": "double"},
    "integers": {"type": "array", "items": "long"}, "text": "string", "texts": {"type": "array", "items": "string"},
}  # fmt: skip
_MAX_TYPES = 10_000  # in a schema; a named type counts wherever it is used
# Types of dates, times and UUIDs, such as int-date: no number can be read from them.
_TIME_AND_UUID_TYPES = LOGICAL_READERS.keys() - {"bytes-decimal", "fixed-decimal"}
_TIME_OR_UUID_PREFIX = "streampca."  # before the names of such types, see `_load_schema`
_END_OF_ARRAY = b"\0"  # the count zero


class _ParsedSchemas(NamedTuple):
    """The schemas with which the values of one writer are read."""

    original: Any
    for_single_block: Any  # reads an array of d floats in one Avro block as bytes; None if this schema cannot be used


class AvroReader(Reader):
    value_name = "Avro record"

    def __post_init__(self) -> None:
        self._schemas_of_writers = SchemaCache(self.schemas, "AVRO", self._parse)

    def read(self, value: bytes) -> VectorBytes:
        """Return the numbers of a value. An array that was written as a single Avro block is read faster.

        If the numbers are in bytes, which do not say the type of the numbers, returns `GuessedNumbers`.
        """
        schemas = self._schemas_of_writers.get(value)  # the writer's schema has its id in the value's prefix
        if schemas.for_single_block is not None:  # the numbers are an array of floats
            numbers = self._read_single_block(value, schemas.for_single_block)
            if numbers is not None:  # the array is a single block of d floats
                return numbers
        return self.numbers.pack(_read_datum(value, schemas.original))

    def read_tree(self, value: bytes) -> Any:
        return _read_datum(value, self._schemas_of_writers.get(value).original)

    def _parse(self, schema: WriterSchema) -> _ParsedSchemas:
        """Parse a writer's schema, and create its single-block schema for values whose array is one Avro block.

        In such a block, the floats lie side by side, so the single-block schema reads them all at once as bytes.
        If the writer's schema is refused, or if a path leads to a time or a UUID, raises `VectorError`.
        """
        referenced_types: dict[str, Any] = {}
        for text in schema.references.values():
            fastavro.parse_schema(_load_schema(text), referenced_types)
        # `parse_schema` adds the types of a schema to the dict that it is given. The single-block schema defines the
        # types of the writer's schema again, so it needs the dict without them: types must not be defined twice.
        named_types = dict(referenced_types)
        parsed_schema = fastavro.parse_schema(_load_schema(schema.text), named_types)
        _check_types(parsed_schema, named_types)
        for path in self.paths:
            steps = get_steps(path)
            _refuse_times_and_uuids(parsed_schema, named_types, steps, spell_path(steps))
        single_block_schema = self._create_single_block_schema(schema.text, referenced_types)
        return _ParsedSchemas(parsed_schema, single_block_schema)

    def _create_single_block_schema(self, schema_text: str, referenced_types: Mapping[str, Any]) -> Any:
        """Return a schema that reads an array of d floats as bytes, which is faster than as an array.

        Avro writes an array in one block as the count d, the d floats, and a 0, which ends the array. So the schema is
        the writer's schema with a record of these three fields in place of the array. If the numbers are not an array
        of floats, or if the value must be read as Python objects, returns None.
        """
        has_several_paths = len(self.paths) > 1
        if has_several_paths or not self.numbers.allows_direct_access:  # the value must be read as Python objects
            return None
        schema = _load_schema(schema_text)  # a tree of its own, since the arrays in it are replaced
        has_floats = False
        for number, array_type in enumerate(_find_arrays(schema, self.numbers.steps_to_container)):
            float_size = _find_float_size(array_type["items"])
            if float_size is not None:
                has_floats = True
                array_type.clear()
                # `number` makes the name of the type unique.
                array_type.update(_single_block_type(float_size * self.dimensions, number))
        return fastavro.parse_schema(schema, dict(referenced_types)) if has_floats else None

    def _read_single_block(self, value: bytes, schema: Any) -> VectorBytes | None:
        """If the array in a value is a single Avro block of d floats, return the floats; otherwise return None.

        Avro writes such an array as the count d, the floats, and a 0, which ends the array. The single-block `schema`
        reads these three as the fields of a record, which is faster than reading an array.
        """
        try:
            block = _read_datum(value, schema)
            for step in self.numbers.steps_to_container:
                block = block[step]
        except Exception:  # bytes of another layout may mean anything in this schema
            return None
        # If the array is not a single block of d floats, another number is in place of the count or of the 0.
        is_single_block = isinstance(block, dict) and block.get("count") == self.dimensions and block.get("end") == 0
        return widen_floats(block["items"], self.dimensions) if is_single_block else None


class AvroWriter(Writer):
    """Writes an array as one block and the empty block that ends it. A record adds no bytes to those of its fields."""

    holds_names = True

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row: the schema prefix, then the fields. `counts` are not used."""
        # `join_columns` joins the i-th items of all pieces to value i. A piece is an array with the floats of each row,
        # a list with the bytes of each row, or bytes that are the same in all rows.
        pieces: list[Any] = [self.schema_prefix]
        for values in fields.values():
            is_array = values.ndim == 2
            if is_array:  # Avro writes the number of items, the items, and a 0
                pieces.append(_encode_long(values.shape[1]))
            match values.dtype.kind:
                case "f":  # floats
                    pieces.append(values)
                case "O":  # texts or bytes
                    pieces.append(encode_items(values, _encode_bytes))
                case _:  # whole numbers, always in arrays (n, width), so that `row` is a list
                    pieces.append([b"".join(map(_encode_long, row)) for row in values.tolist()])
            if is_array:
                pieces.append(_END_OF_ARRAY)
        return join_columns(pieces)


def _encode_long(number: int) -> bytes:
    """Encode a number that is not negative. Avro's zigzag encoding of it is the varint of twice the number."""
    return varint(2 * number)


def _encode_bytes(data: bytes) -> bytes:
    return _encode_long(len(data)) + data


def schema_of(layout: Layout) -> WriterSchema:
    """Return the schema of a record with these fields, nested in a record for each of `layout.enclosing_names`.

    If these are ["after"], the schema is a record with the one field `after`, whose type is the record with the fields.
    If the only field is named "", a value is nothing but an array of numbers.
    """
    is_whole_value = list(layout.fields) == [""]
    if is_whole_value:
        return WriterSchema("AVRO", json.dumps(_TYPES["numbers"]))
    fields = [{"name": name, "type": _TYPES[kind]} for name, kind in layout.fields.items()]
    schema = {"type": "record", "name": layout.record, "fields": fields}
    for depth, name in enumerate(reversed(layout.enclosing_names), 1):
        # `depth` makes the name of each record unique, as Avro requires.
        schema = {"type": "record", "name": f"{layout.record}{depth}", "fields": [{"name": name, "type": schema}]}
    return WriterSchema("AVRO", json.dumps(schema))


def _load_schema(text: str) -> Any:
    """Parse a schema, and put a prefix before its types of dates, times and UUIDs.

    fastavro then reads them as plain numbers or texts: Python cannot hold every date.
    """

    def add_prefix(entry: dict[str, Any]) -> dict[str, Any]:
        """If a type is a date, a time or a UUID, give it a name that fastavro does not know."""
        name = entry.get("logicalType")
        name_in_fastavro = f"{entry.get('type')}-{name}"  # such as int-date
        if name_in_fastavro not in _TIME_AND_UUID_TYPES:
            return entry
        return {**entry, "logicalType": f"{_TIME_OR_UUID_PREFIX}{name}"}

    return json.loads(text, object_hook=add_prefix)


def _resolve(schema: Any, named_types: Mapping[str, Any]) -> Any:
    """If a schema is the name of a type, return the type; else return the schema as it is."""
    return named_types.get(schema, schema) if isinstance(schema, str) else schema


def _refuse_times_and_uuids(schema: Any, named_types: Mapping[str, Any], steps: Sequence[Step], path: str) -> None:
    """If a path leads to a date, a time or a UUID, raise `VectorError`.

    `steps` are the rest of the path, from a value of the type `schema`: names, or choices such as `[id=temp]`.
    """
    match _resolve(schema, named_types):
        case list() as branches:  # a union
            for branch in branches:
                _refuse_times_and_uuids(branch, named_types, steps, path)
        case {"type": "array", "items": items}:
            # A choice such as [id=temp] is used up: it leads into one element. A name is looked up in each element.
            chooses_element = bool(steps) and isinstance(steps[0], Choice)
            steps_in_element = steps[1:] if chooses_element else steps
            _refuse_times_and_uuids(items, named_types, steps_in_element, path)
        case {"type": "map", "values": values} if steps:
            _refuse_times_and_uuids(values, named_types, steps[1:], path)
        case {"type": "record", "fields": fields} if steps:
            for field in fields:
                if field["name"] == steps[0]:
                    _refuse_times_and_uuids(field["type"], named_types, steps[1:], path)
        # With this prefix from `_load_schema`, fastavro reads dates, times and UUIDs as plain numbers or texts.
        case {"logicalType": str(name)} if name.startswith(_TIME_OR_UUID_PREFIX) and not steps:
            type_name = name.removeprefix(_TIME_OR_UUID_PREFIX)
            raise VectorError("undecodable", f"the field {path!r} is not a number but a {type_name}")


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
    """Refuse a schema with which a short value may take any amount of memory, such as an array of a billion nulls.

    A null takes no byte, so that such an array is only its count. Recursive schemas are refused, too.
    """
    type_numbers = count(1)  # each call of `check_type` takes the next number

    def check_type(schema: Any, enclosing_records: tuple[str, ...]) -> bool:
        """Return whether each value of a type takes at least one byte.

        If not, an array of a few bytes may claim to have billions of these values. If the type is such an array, or is
        recursive, or has too many types, raises `VectorError`.
        """
        if next(type_numbers) > _MAX_TYPES:
            raise VectorError("undecodable", f"schemas of more than {_MAX_TYPES} types are not supported")
        match _resolve(schema, named_types):
            case list() as branches:  # a union
                for branch in branches:
                    check_type(branch, enclosing_records)
                # A value begins with the index of its branch, which takes a byte. An empty union has no index.
                return len(branches) > 0
            case {"type": "record", "name": name, "fields": fields}:
                if name in enclosing_records:
                    raise VectorError("undecodable", f"recursive schemas are not supported ({name!r} contains itself)")
                # A list, so that all fields are checked: with a generator, `any` would stop at the first True.
                fields_take_bytes = [check_type(field["type"], (*enclosing_records, name)) for field in fields]
                return any(fields_take_bytes)
            case {"type": "array", "items": items}:
                items_take_bytes = check_type(items, enclosing_records)
                if not items_take_bytes:
                    raise VectorError("undecodable", "arrays of items without bytes are not supported")
                return True  # the end of an array takes a byte
            case {"type": "map", "values": values}:
                check_type(values, enclosing_records)
                return True  # the end of a map takes a byte
            case {"type": "fixed", "size": size}:
                return bool(size > 0)
            case "null" | {"type": "null"}:
                return False
        return True

    check_type(schema, enclosing_records=())


def _find_arrays(schema: Any, steps: Sequence[Step]) -> Iterator[dict[str, Any]]:
    """Yield the type of the array at the end of the steps. If several branches of a union have an array, yield all.

    Leaves out arrays that may be sparse vectors or tensors, such as `values` in a record that also has `indices`.
    """
    match schema:
        case list() as branches:  # a union
            for branch in branches:
                yield from _find_arrays(branch, steps)
        case {"type": "record", "fields": fields} if steps:
            is_name_of_array = len(steps) == 1
            if is_name_of_array:
                # A field `indices` beside the array says that it is a sparse vector; `shape` says that it is a tensor.
                sparse_or_tensor_names = tensor_field_names([steps[0]])
                if any(field["name"] in sparse_or_tensor_names for field in fields):
                    return
            for field in fields:
                if field["name"] == steps[0]:
                    yield from _find_arrays(field["type"], steps[1:])
        case {"type": "array"} if not steps:
            yield schema


def _find_float_size(item_type: Any) -> int | None:
    """Return how many bytes a number of this type takes, if the type is float or double; else None."""
    name = item_type.get("type") if isinstance(item_type, dict) else item_type
    return _FLOAT_SIZES.get(name) if isinstance(name, str) else None


def _single_block_type(size: int, number: int) -> dict[str, Any]:
    """Return a record type that reads an array in one Avro block, with all items as bytes.

    Avro writes such an array as the count of items, the items, which take `size` bytes in all, and a 0, which ends the
    array. `number` makes the names of the types unique.
    """
    fields = [
        {"name": "count", "type": "long"},
        {"name": "items", "type": {"type": "fixed", "name": f"streampca.Items{number}", "size": size}},
        {"name": "end", "type": "long"},
    ]
    return {"type": "record", "name": f"streampca.Block{number}", "fields": fields}
