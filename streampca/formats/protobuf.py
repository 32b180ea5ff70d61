"""Protobuf with a schema registry: numbers, repeated ones, or bytes that hold floats, anywhere in a message.

On the wire, packed floats are laid out as one `bytes` item: a length, then the numbers in little-endian order. So
messages are parsed by a copy of the writer's schema that declares the field as `repeated bytes`: Protobuf then returns
the bytes of all numbers, and creates no Python object for each number. Numbers that are not packed are read by the
writer's own type of the field.
"""

import errno
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from typing import Any, TypeAlias

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from streampca.errors import on_one_line
from streampca.formats.base import Counts, Fields, Kind, Layout, Reader, Writer
from streampca.formats.errors import MissingFieldError, VectorError, missing_field_error, refuse_missing_fields
from streampca.formats.layout import encode_items, join_columns, varint
from streampca.formats.numbers import VectorBytes, spell_key, widen_floats
from streampca.formats.schemas import SchemaCache, WriterSchema, schema_prefix_size
from streampca.settings.field_paths import Choice, Path, PathPart, collect_names, get_steps, parse_paths, spell_path

Files: TypeAlias = Any  # descriptor_pb2.FileDescriptorSet, which has no types

MAIN = "streampca-main.proto"  # the name of the schema's own file
# Limits of protoc: what exceeds its processor time is the schema's fault, what only takes long is this machine's.
_PROCESSOR_TIME_S, _TIMEOUT_S = 10, 30
_PROTOC = (
    f"import resource, runpy; resource.setrlimit(resource.RLIMIT_CPU, ({_PROCESSOR_TIME_S}, resource.RLIM_INFINITY));"
    f"runpy.run_module('{grpc_tools.__name__}.protoc', run_name='__main__')"
)
# What the file system raises if a schema imports a file whose name is not possible, such as a name that is too long.
_FILE_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)

_TYPES: dict[Kind, str] = {
    "number": "double", "numbers": "repeated double", "integers": "repeated int64",
    "text": "string", "texts": "repeated string", "bytes": "bytes",
}  # fmt: skip
_WRAPPERS = "google/protobuf/wrappers.proto"
_STRUCTS = "google/protobuf/struct.proto"
_MAX_INDEX_BYTES = 100  # of the type indexes before a message
_PACKED_SIZES = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}  # bytes of a packed number
_NUMBERS = {
    FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_BOOL,
}  # fmt: skip
# How a field begins on the wire: its number in the upper bits, and how its bytes are laid out in the lower three.
_WIRE_FIXED64 = 1  # eight bytes
_WIRE_LENGTH = 2  # a length, and as many bytes: of a text, of a message, or of packed numbers


class ProtobufReader(Reader):
    value_name = "Protobuf message"

    def __post_init__(self) -> None:
        # By schema, then by the type indexes of a message.
        self._readers = SchemaCache(self.schemas, "PROTOBUF", self._create_readers)

    def _create_readers(self, schema: WriterSchema) -> Callable[[tuple[int, ...]], "_MessageReader"]:
        """Return a function that creates and caches the reader of a type of message, by the indexes of the type."""
        return cache(partial(_MessageReader, compiled(schema), self))

    def read(self, value: bytes) -> VectorBytes:
        reader, payload = self._split(value)
        return reader.read(payload)

    def read_tree(self, value: bytes) -> Any:
        """Return the fields in which a label is looked up: only those that the path `label` names."""
        reader, payload = self._split(value)
        return reader.read_label_tree(payload)

    def _split(self, value: bytes) -> tuple["_MessageReader", bytes]:
        """Return the reader for the type of a message, and the message itself."""
        reader_of_type = self._readers.get(value)
        type_indexes, message_start = _parse_type_indexes(value)
        return reader_of_type(type_indexes), value[message_start:]


class _MessageReader:
    """Reads the vectors in one type of message."""

    def __init__(self, files: Files, reader: Reader, type_indexes: tuple[int, ...]) -> None:
        """Create two or three copies of the writer's type of message: for labels, for vectors, and for packed numbers.

        `files` are the writer's schema. `type_indexes` lead to the type: (2, 0) is the first type nested in the third
        type of the schema.
        """
        self._numbers = reader.numbers  # finds the numbers of vectors in a tree of dicts and lists
        self._names = reader.numbers.names  # of all fields that are read to find these numbers
        self._label_names = collect_names(get_steps(path) for path in parse_paths(reader.label))
        # In each copy, texts and messages that are not read are bytes, so that they need not be valid.
        # Labels are parsed on their own, so that a label that cannot be parsed does not spoil the vector beside it.
        label_files = _with_unread_as_bytes(files, self._label_names)
        self._label_type = _message_class(label_files, type_indexes)
        vector_files = _with_unread_as_bytes(files, self._names)
        self._vector_type = _message_class(vector_files, type_indexes)
        _check_paths(reader, self._vector_type.DESCRIPTOR)  # to the numbers; a label may lead to nothing
        # If one field of packed floats holds all numbers, a third type returns the floats as bytes, which is faster.
        packed_field = _find_packed_field(reader, self._vector_type.DESCRIPTOR)
        self._packed_reader: _PackedReader | None = None
        if packed_field is not None:
            packed_files = _with_floats_as_bytes(vector_files, packed_field)
            packed_type = _message_class(packed_files, type_indexes)
            self._packed_reader = _PackedReader(packed_type, packed_field, reader)

    def read(self, payload: bytes) -> VectorBytes:
        """Return the numbers of a Protobuf message.

        If the message has d packed numbers, they are read directly. All other messages become a tree of fields first.
        """
        numbers = self._packed_reader.read(payload) if self._packed_reader else None
        if numbers is not None:
            return numbers
        tree = _to_tree(_parse(self._vector_type, payload), self._names)
        return self._numbers.pack(tree)

    def read_label_tree(self, payload: bytes) -> Any:
        """Return the fields of a message that the path `label` names."""
        return _to_tree(_parse(self._label_type, payload), self._label_names)


class _PackedReader:
    """Reads d packed numbers of a field at once, without creating a Python object for each number."""

    def __init__(self, message_type: type[Message], field: FieldDescriptor, reader: Reader) -> None:
        """The only path of `reader` leads to `field`, which the writer has declared as repeated floats.

        On the wire, a run of packed floats looks like one item of bytes. So `message_type` declares the field as
        repeated bytes: Protobuf then returns the bytes of the run.
        """
        self._message_type = message_type
        # Each part is a name: `_find_packed_field` finds no field for a path with a choice such as `[id=temp]`. The
        # test is only for the type checker.
        self._names = [part.name for part in reader.paths[0] if isinstance(part, PathPart)]
        self._field_number = field.number
        self._item_size = _PACKED_SIZES[field.type]
        self._dimensions = reader.dimensions

    def read(self, payload: bytes) -> VectorBytes | None:
        """Return the d numbers of a message; None if the numbers are not packed, or not d.

        Our `_message_type` declares the field as repeated bytes, while the writer's type declares repeated floats. So
        Protobuf returns each run of packed numbers as one bytes object.
        """
        *enclosing_names, name = self._names
        parent = _parse(self._message_type, payload)
        for enclosing_name in enclosing_names:
            parent = getattr(parent, enclosing_name)
        packed_runs = getattr(parent, name)
        data = b"".join(packed_runs)
        has_d_numbers = len(data) == self._item_size * self._dimensions
        has_whole_numbers = all(len(run) % self._item_size == 0 for run in packed_runs)
        if not has_d_numbers or not has_whole_numbers:
            return None
        # A number that is not packed does not look like bytes, so Protobuf keeps the number as an unknown field.
        unknown = unknown_fields.UnknownFieldSet(parent)
        if len(unknown) and any(field.field_number == self._field_number for field in unknown):
            return None
        return widen_floats(data, self._dimensions)


class ProtobufWriter(Writer):
    """Writes the fields with the numbers 1, 2, … Vectors are packed.

    For each of `enclosing_names`, the message becomes field 1 of a message that encloses it.
    """

    holds_names = True

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row: schema prefix, type indexes, message. `counts` are not used."""
        columns: list[Any] = []  # of each field: one or two, such as its tag and its numbers
        for number, values in enumerate(fields.values(), 1):
            columns.extend(_encode_field(number, values))
        messages = join_columns(columns)
        enclosing_tag = _encode_tag(1, _WIRE_LENGTH)
        for _ in self.enclosing_names:
            # Each message becomes field 1 of an enclosing message.
            messages = [_encode_item(enclosing_tag, message) for message in messages]
        prefix_and_type = self.schema_prefix + b"\0"  # 0 stands for the first type of the schema
        return [prefix_and_type + message for message in messages]


def _encode_field(number: int, values: NDArray[Any]) -> list[bytes | NDArray[Any] | list[bytes]]:
    """Encode a field of n Protobuf messages, whose value in message i is `values[i]`. Return one or two columns.

    A column is either a list or array with an item for each message, or one `bytes` object, such as the tag of the
    field, which is repeated in each message. In each message, the columns follow one another (`join_columns`): with the
    columns tag and [1.5, 2.5], message 0 has tag and 1.5, and message 1 has tag and 2.5.
    """
    length_tag = _encode_tag(number, _WIRE_LENGTH)
    add_tag_and_size = partial(_encode_item, length_tag)
    match values.dtype.kind:
        case "O":  # texts or bytes
            items = encode_items(values, add_tag_and_size)
            return [items]
        case "f" if values.ndim == 1:  # a number in each row, which `join_columns` writes as float64
            return [_encode_tag(number, _WIRE_FIXED64), values]
        case "f":  # packed numbers in each row
            tag_and_size = length_tag + varint(8 * values.shape[1])
            return [tag_and_size, values]
        case _:  # whole numbers, which are packed
            packed_rows = [add_tag_and_size(b"".join(map(varint, row))) for row in values.tolist()]
            return [packed_rows]


def _encode_tag(number: int, wire_type: int) -> bytes:
    """Encode how a field begins: the number of the field, and how its bytes are laid out."""
    return varint(number << 3 | wire_type)


def _encode_item(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data


def schema_of(layout: Layout) -> WriterSchema:
    """Return the schema of a message with these fields. Each of `layout.enclosing_names` puts it inside of a message.

    The types are numbered from the innermost. With ["a", "b"], `Vector1` has the fields:

        message Vector {
          Vector2 a = 1;
          message Vector2 {
            Vector1 b = 1;
            message Vector1 { … }
          }
        }
    """
    numbered_fields = enumerate(layout.fields.items(), 1)
    content = " ".join(f"{_TYPES[kind]} {name} = {number};" for number, (name, kind) in numbered_fields)
    outermost_type = layout.record
    # From the inside out. In the example above, `content` becomes:
    #     first turn:   Vector1 b = 1; message Vector1 { … }
    #     second turn:  Vector2 a = 1; message Vector2 { Vector1 b = 1; message Vector1 { … } }
    for depth, name in enumerate(reversed(layout.enclosing_names), 1):
        inner_type = f"{outermost_type}{depth}"
        inner_message = f"message {inner_type} {{ {content} }}"
        content = f"{inner_type} {name} = 1; {inner_message}"
    return WriterSchema("PROTOBUF", f'syntax = "proto3"; message {outermost_type} {{ {content} }}')


def compiled(schema: WriterSchema) -> Files:
    """Return the descriptors of a schema and of all that it imports, compiled by protoc.

    If the fault is this machine's, raises `TimeoutError`: the caller may try again.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _compile_in(pathlib.Path(folder).resolve(), schema)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"Protobuf schemas cannot be compiled within {_TIMEOUT_S} s") from None
    except OSError as error:
        # Imports are written to files with their names. If a name is not possible, the schema is wrong.
        if error.errno in _FILE_NAME_ERRORS:
            raise VectorError("undecodable", f"cannot be compiled: {error.strerror}") from None
        raise TimeoutError(f"Protobuf schemas cannot be compiled now: {error}") from None


def _compile_in(folder: pathlib.Path, schema: WriterSchema) -> Files:
    """Write a schema and the schemas that it imports to files in an empty folder, and compile them there."""
    for file_name, text in {**schema.references, MAIN: schema.text}.items():
        path = (folder / file_name).resolve()
        if not path.is_relative_to(folder):
            raise VectorError("undecodable", f"it imports {file_name!r}, which is not the name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    out = folder / "out"
    arguments = [f"-I{folder}", "--include_imports", f"--descriptor_set_out={out}", MAIN]
    # protoc reports errors only on stderr, so it needs its own process.
    result = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", _PROTOC, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if result.returncode != 0:
        reason = result.stderr.replace(f"{folder}/", "") or f"protoc ended with {result.returncode}"
        raise VectorError("undecodable", f"cannot be compiled: {on_one_line(reason)[-300:]}")
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _message_class(files: Files, type_indexes: tuple[int, ...]) -> type[Message]:
    """Return the class of the messages of one type of a schema.

    `type_indexes` lead to the type: (2, 0) is the first type nested in the third type of the schema's own file.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    types = list(pool.FindFileByName(MAIN).message_types_by_name.values())
    for index in type_indexes:
        if index >= len(types):
            raise VectorError("undecodable", "its schema has no such message type")
        message_type = types[index]
        types = list(message_type.nested_types)
    message_class: type[Message] = message_factory.GetMessageClass(message_type)
    return message_class


def _check_paths(reader: Reader, root: Descriptor) -> None:
    """Raise `VectorError` if a path of the reader leads to no numbers in messages of the type `root`.

    With `impute`, entries of a vector may be missing. Then some paths may name fields that do not exist, but not all.
    """
    errors = []
    for path in reader.paths:
        try:
            _check_path(path, root)
        except MissingFieldError as error:
            errors.append(error)
    refuse_missing_fields(errors, path_count=len(reader.paths), impute=reader.impute)


def _check_path(path: Path, root: Descriptor) -> None:
    """Raise `VectorError` if a path leads to a field that cannot hold numbers.

    If a field on the path does not exist, raises `MissingFieldError`.
    """
    fields = _fields_along(path, root)  # raises `MissingFieldError`
    if not fields:  # the path names no field, but only chooses an element, such as `[id=temp]`
        return
    field = fields[-1]
    message = field.message_type
    is_wrapper = message is not None and message.file.name == _WRAPPERS  # such as DoubleValue
    holds_numbers_or_bytes = field.cpp_type in _NUMBERS or field.type == FieldDescriptor.TYPE_BYTES
    # A map, a Struct or a text (JSON) may have names that the schema does not list, and hold numbers under these names.
    may_lead_to_numbers = holds_numbers_or_bytes or is_wrapper or _may_hold_any_names(field)
    if not may_lead_to_numbers:
        hint = f", but {message.full_name}" if message else ""
        dotted_path = spell_path(get_steps(path))
        raise VectorError("undecodable", f"the field {dotted_path!r} holds neither numbers nor bytes{hint}")


def _find_packed_field(reader: Reader, root: Descriptor) -> FieldDescriptor | None:
    """Return the field of repeated floats that holds all numbers of a vector, if they can be read at once; else None.

    Numbers cannot be read at once in these cases:

    - There are several paths, or each value needs a walk, such as to test conditions (`NumberFields`).
    - The path chooses items by a key, or the numbers are spread over several messages.
    - The vector may be sparse or a tensor.
    """
    if len(reader.paths) != 1 or not reader.numbers.allows_direct_access:
        return None
    [path] = reader.paths
    chooses_item = any(isinstance(part, Choice) for part in path)
    if chooses_item:  # such as `values[id=temp].v`: each item must be looked at
        return None
    *outer_fields, field = _fields_along(path, root)
    are_several_messages = any(outer_field.is_repeated for outer_field in outer_fields)
    if are_several_messages or not field.is_repeated or field.type not in _PACKED_SIZES:
        return None
    # A field `shape` or `indices` beside the numbers says that they are a tensor or a sparse vector.
    names_in_message = set(field.containing_type.fields_by_name)
    may_be_sparse_or_tensor = bool(names_in_message & reader.numbers.tensor_field_names)
    return None if may_be_sparse_or_tensor else field


def _fields_along(path: Path, root: Descriptor) -> list[FieldDescriptor]:
    """Return the fields that a path names, from the outermost.

    Stops at the first field that may hold names that are not in the schema, such as a map. If a field does not exist,
    raises `MissingFieldError`.
    """
    fields: list[FieldDescriptor] = []
    message = root
    for part in path:
        if isinstance(part, Choice):  # such as `[id=temp]`, which chooses an item of the field before it
            continue
        siblings = message.fields_by_name if message else {}
        if part.name not in siblings:
            dotted_path = spell_path(get_steps(path))
            raise missing_field_error(dotted_path, part.name, dict(siblings), f"Protobuf message {root.full_name}")
        field = siblings[part.name]
        fields.append(field)
        if _may_hold_any_names(field):
            break
        message = field.message_type
    return fields


def _may_hold_any_names(field: FieldDescriptor) -> bool:
    """Return whether a field may hold names that are not in the schema: a map, a Struct, or a text that holds JSON."""
    message = field.message_type
    if message is None:
        return bool(field.type == FieldDescriptor.TYPE_STRING)
    return bool(message.GetOptions().map_entry or message.file.name == _STRUCTS)


def _to_tree(value: Any, names: Collection[str]) -> Any:
    """Return a message as a dict of its fields with these names, recursively. Any other value stays as it is.

    `names` are all names on the paths that are read. A wrapper, such as DoubleValue, becomes its number. But if `names`
    has "value", a path may lead to the field `value` of the wrapper: then the wrapper becomes a dict.
    """
    if not isinstance(value, Message):
        return value
    descriptor = value.DESCRIPTOR
    if descriptor.file.name == _WRAPPERS and "value" not in names:
        return value.value
    if descriptor.file.name == _STRUCTS:
        return _struct_to_tree(value)
    return {field.name: _field_value(value, field, names) for field in descriptor.fields if field.name in names}


def _struct_to_tree(value: Any) -> Any:
    """Return a `Struct`, a `ListValue` or a `Value`, which hold any JSON, as objects, arrays, texts and numbers."""
    if not isinstance(value, Message):
        return value
    if value.DESCRIPTOR.name == "Struct":
        return {name: _struct_to_tree(inner) for name, inner in value.fields.items()}
    if value.DESCRIPTOR.name == "ListValue":
        return [_struct_to_tree(inner) for inner in value.values]
    set_field = value.WhichOneof("kind")
    return None if set_field in (None, "null_value") else _struct_to_tree(getattr(value, set_field))


def _field_value(message: Message, field: FieldDescriptor, names: Collection[str]) -> Any:
    """Return what a field of a message holds, as dicts, lists, texts and numbers; None if the field is not set.

    A message becomes a dict of its fields with these `names`. An enum becomes its name; repeated enums stay numbers.
    """
    value = getattr(message, field.name)
    if field.is_repeated:
        if not field.message_type:
            return list(value)
        is_map = field.message_type.GetOptions().map_entry
        if is_map:
            return {spell_key(key): _to_tree(value[key], names) for key in value}
        return [_to_tree(item, names) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.enum_type and value in field.enum_type.values_by_number:
        return field.enum_type.values_by_number[value].name
    return _to_tree(value, names)


def _with_unread_as_bytes(files: Files, names_to_read: Collection[str]) -> Files:
    """Return a copy of a schema in which texts and messages have the type bytes, unless `names_to_read` names them.

    Protobuf does not parse bytes. If Protobuf parsed an unread text that is not UTF-8, the whole message would be
    invalid.
    """
    changed_files = descriptor_pb2.FileDescriptorSet.FromString(files.SerializeToString())
    for full_name, message in _message_types(changed_files).items():
        is_map_entry = message.options.map_entry  # its key and value must stay
        # A type such as Struct is read whole, though `names_to_read` lacks the names of its fields.
        is_google_type = full_name.startswith("google.protobuf.")
        if is_map_entry or is_google_type:
            continue
        for field in message.field:
            is_read = field.name in names_to_read
            if not is_read and field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
                field.type = field.TYPE_BYTES
                for attribute in ("type_name", "default_value", "options"):
                    field.ClearField(attribute)
    return changed_files


def _with_floats_as_bytes(files: Files, field: FieldDescriptor) -> Files:
    """Return a copy of a schema in which a field of repeated floats has the type `repeated bytes`.

    On the wire, packed floats look like one item of bytes. So Protobuf returns the bytes of all floats at once.
    """
    changed_files = descriptor_pb2.FileDescriptorSet.FromString(files.SerializeToString())
    message = _message_types(changed_files)[field.containing_type.full_name]
    changed_field = next(each for each in message.field if each.number == field.number)
    changed_field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    changed_field.ClearField("options")  # such as `packed`, which is not allowed for bytes
    return changed_files


def _message_types(files: Files) -> dict[str, Any]:
    """Return all message types of a schema by their full names, such as `package.Outer.Inner`."""
    types: dict[str, Any] = {}

    def add(messages: Iterable[Any], prefix: str) -> None:
        for message in messages:
            full_name = prefix + message.name
            types[full_name] = message
            add(message.nested_type, prefix=f"{full_name}.")

    for file in files.file:
        add(file.message_type, prefix=f"{file.package}." if file.package else "")
    return types


def _parse(message_type: type[Message], payload: bytes) -> Message:
    try:
        return message_type.FromString(payload)
    except DecodeError:
        raise VectorError("undecodable", "not Protobuf of its schema") from None


def _parse_type_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes that lead to the type of a message, and the index of the byte at which the message begins.

    After the schema prefix, a value has the count of indexes, then the indexes, as zigzag varints. The count 0 stands
    for the single index 0.
    """
    next_byte = schema_prefix_size(value)
    # A damaged value may claim any number of indexes. Only these few bytes are parsed: at their end, `_parse_zigzag`
    # raises.
    head = value[: next_byte + _MAX_INDEX_BYTES]
    count, next_byte = _parse_zigzag(head, next_byte)
    type_indexes = []
    for _ in range(count):
        type_index, next_byte = _parse_zigzag(head, next_byte)
        type_indexes.append(type_index)
    if not type_indexes:
        type_indexes = [0]
    return tuple(type_indexes), next_byte


def _parse_zigzag(head: bytes, start: int) -> tuple[int, int]:
    """Parse one of the numbers in the head of a value: the count of the message type's indexes, or one of the indexes.

    The number starts at the byte `start`, as a zigzag varint. Returns the number, and the index of the byte after the
    number. If the number is negative, or has no end, raises `VectorError`.
    """
    zigzag = 0  # twice the number, or odd for a negative number
    for i, byte in enumerate(head[start:]):
        zigzag |= (byte & 0x7F) << (7 * i)  # each byte holds seven bits, the lowest bits first
        is_last = byte < 0x80
        if is_last:
            if zigzag & 1:
                raise VectorError("undecodable", "not framed as a schema registry's clients do: a negative index")
            return zigzag >> 1, start + i + 1
    raise VectorError(
        "undecodable", "not framed as a schema registry's clients do: the indexes of its type have no end"
    )
