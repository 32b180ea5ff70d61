"""Protobuf with a schema registry: numbers, repeated ones, or bytes that hold floats, anywhere in a message.

Packed floats have the layout of bytes: their length, then the numbers in little-endian order. So the writer's schema
with `repeated bytes` in place of the field reads them without creating a Python object for each number; a value that
is not packed is read with the original schema.
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

from streampca.errors import on_one_line
from streampca.formats.base import Counts, Fields, Kind, Layout, Reader, Writer
from streampca.formats.errors import MissingFieldError, VectorError, missing_field_error, refuse_missing_fields
from streampca.formats.layout import encode_items, join_columns, varint
from streampca.formats.numbers import GuessedNumbers, VectorBytes, spell_key, widen_floats
from streampca.formats.schemas import SchemaCache, WriterSchema, schema_prefix_size
from streampca.formats.tensors import tensor_field_names
from streampca.formats.text import may_be_debezium_placeholder
from streampca.settings.field_paths import Choice, Part, Path, get_steps, parse_paths, spell_path

Files: TypeAlias = Any  # descriptor_pb2.FileDescriptorSet, which has no types

MAIN = "streampca-main.proto"  # the name of the schema's own file
# Limits of protoc: what exceeds its processor time is the schema's fault, what only takes long is this machine's.
_PROCESSOR_TIME_S, _TIMEOUT_S = 10, 30
_PROTOC = (
    f"import resource, runpy; resource.setrlimit(resource.RLIMIT_CPU, ({_PROCESSOR_TIME_S}, resource.RLIM_INFINITY));"
    f"runpy.run_module('{grpc_tools.__name__}.protoc', run_name='__main__')"
)
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)  # of the names that a schema imports

_TYPES: dict[Kind, str] = {
    "number": "double", "numbers": "repeated double", "integers": "repeated int64",
    "text": "string", "texts": "repeated string", "bytes": "bytes",
}  # fmt: skip
_WRAPPERS = "google/protobuf/wrappers.proto"
_STRUCTS = "google/protobuf/struct.proto"
_MAX_INDEX_BYTES = 100  # of the indexes before a message
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
        # By schema, then by the indexes of a message's type.
        self._readers = SchemaCache(self.schemas, "PROTOBUF", self._create_readers)

    def _create_readers(self, schema: WriterSchema) -> Callable[[tuple[int, ...]], "_MessageReader"]:
        """Return a function that takes the indexes of a type of message, and creates and caches its reader."""
        return cache(partial(_MessageReader, compiled(schema), self))

    def read(self, value: bytes) -> VectorBytes | GuessedNumbers:
        reader, payload = self._split(value)
        return reader.read(payload)

    def read_tree(self, value: bytes) -> Any:
        """Return only the fields that the path `label` names."""
        reader, payload = self._split(value)
        return reader.read_label_tree(payload)

    def _split(self, value: bytes) -> tuple["_MessageReader", bytes]:
        """Return the reader for the type of a message, and the message itself."""
        reader_at = self._readers.get(value)
        indexes, message_start = _parse_indexes(value)
        return reader_at(indexes), value[message_start:]


class _MessageReader:
    """Reads the vectors in one type of message."""

    def __init__(self, files: Files, reader: Reader, indexes: tuple[int, ...]) -> None:
        """Prepare the types with which vectors, packed vectors and labels are read."""
        self._numbers = reader.numbers
        self._names = reader.numbers.names
        self._label_names = [part.name for path in parse_paths(reader.label) for part in path if isinstance(part, Part)]
        # A label that cannot be read must not spoil the vector beside it.
        self._label_type = _message_class(_with_unread_as_bytes(files, self._label_names), indexes)
        vector_files = _with_unread_as_bytes(files, self._names)
        self._vector_type = _message_class(vector_files, indexes)
        self._packed_field: _PackedField | None = None
        fields = _find_fields(reader, self._vector_type.DESCRIPTOR)
        reads_only_one_field = len(reader.paths) == 1 and not reader.where
        if reads_only_one_field and _may_be_packed(fields[0], reader.dimensions):
            packed_type = _message_class(_with_repeated_bytes(vector_files, fields[0]), indexes)
            self._packed_field = _PackedField(packed_type, fields[0], reader)

    def read(self, payload: bytes) -> VectorBytes | GuessedNumbers:
        """Return the numbers of a message. Packed numbers are read at once."""
        numbers = self._packed_field.read(payload) if self._packed_field else None
        if numbers is not None:
            return numbers
        tree = _to_tree(_parse(self._vector_type, payload), self._names)
        return self._numbers.pack(tree)

    def read_label_tree(self, payload: bytes) -> Any:
        """Return the fields of a message that the path `label` names."""
        return _to_tree(_parse(self._label_type, payload), self._label_names)


def _may_be_packed(field: FieldDescriptor | None, dimensions: int) -> bool:
    """Return whether all numbers of a vector may be packed in a field, and nothing else may be there."""
    if field is None or not field.is_repeated or field.type not in _PACKED_SIZES:
        return False
    # A field `shape` or `indices` beside the numbers says that they are a tensor or a sparse vector.
    names_in_message = set(field.containing_type.fields_by_name)
    may_be_sparse_or_tensor = bool(names_in_message & tensor_field_names([field.name]))
    return not may_be_sparse_or_tensor and not may_be_debezium_placeholder(dimensions)


class _PackedField:
    """The only field of a type of message that is read, if it may hold d packed numbers."""

    def __init__(self, message_type: type[Message], field: FieldDescriptor, reader: Reader) -> None:
        """In `message_type`, the field is `repeated bytes`."""
        self._message_type = message_type
        self._names = [part.name for part in reader.paths[0] if isinstance(part, Part)]
        self._number = field.number
        self._item_size = _PACKED_SIZES[field.type]
        self._dimensions = reader.dimensions

    def read(self, payload: bytes) -> VectorBytes | None:
        """Return the d numbers of a message; None if they are not packed, or not d."""
        *names_around, name = self._names
        parent = _parse(self._message_type, payload)
        for name_around in names_around:
            parent = getattr(parent, name_around)
        packed_runs = getattr(parent, name)
        data = b"".join(packed_runs)
        has_d_numbers = len(data) == self._item_size * self._dimensions
        has_whole_numbers = all(len(run) % self._item_size == 0 for run in packed_runs)
        if not has_d_numbers or not has_whole_numbers:
            return None
        # Protobuf keeps numbers that are not packed as unknown fields.
        unknown = unknown_fields.UnknownFieldSet(parent)
        if len(unknown) and any(field.field_number == self._number for field in unknown):
            return None
        return widen_floats(data, self._dimensions)


class ProtobufWriter(Writer):
    """Writes the fields with the numbers 1, 2, … Vectors are packed; each message around the fields is a field 1."""

    holds_names = True

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row: frame, indexes of the message's type, and fields. `counts` are not used."""
        columns = list[Any]()
        for number, values in enumerate(fields.values(), 1):
            length_tag = _encode_tag(number, _WIRE_LENGTH)
            with_tag_and_size = partial(_encode_item, length_tag)
            match values.dtype.kind:
                case "O":  # texts or bytes
                    columns.append(encode_items(values, with_tag_and_size))
                case "f" if values.ndim == 1:
                    tag = _encode_tag(number, _WIRE_FIXED64)
                    columns.extend([tag, values])  # a tag is equal in all rows
                case "f":
                    tag_and_size = length_tag + varint(8 * values.shape[1])
                    columns.extend([tag_and_size, values])
                case _:  # whole numbers, which are packed
                    columns.append([with_tag_and_size(b"".join(map(varint, row))) for row in values.tolist()])
        messages = join_columns(columns)
        tag_around = _encode_tag(1, _WIRE_LENGTH)
        for _ in self.enclosing_names:
            head_by_size = {size: tag_around + varint(size) for size in set(map(len, messages))}
            messages = [head_by_size[len(message)] + message for message in messages]
        frame_and_type = self.schema_prefix + b"\0"  # the indexes of the schema's first type
        return [frame_and_type + message for message in messages]


def _encode_tag(number: int, wire_type: int) -> bytes:
    """Encode how a field begins: the number of the field, and how its bytes are laid out."""
    return varint(number << 3 | wire_type)


def _encode_item(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data


def schema_of(layout: Layout) -> WriterSchema:
    """Return the schema of a message with these fields, inside of a message for each of `layout.enclosing_names`.

    With ["after"]: `message Vector { Vector1 after = 1; message Vector1 { repeated double v = 1; } }`.
    """
    numbered_fields = enumerate(layout.fields.items(), 1)
    content = " ".join(f"{_TYPES[kind]} {name} = {number};" for number, (name, kind) in numbered_fields)
    outermost_type = layout.record
    for depth, name in enumerate(reversed(layout.enclosing_names), 1):
        inner_type = f"{outermost_type}{depth}"
        content = f"{inner_type} {name} = 1; message {inner_type} {{ {content} }}"
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
        if error.errno in _NAME_ERRORS:
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


def _message_class(files: Files, indexes: tuple[int, ...]) -> type[Message]:
    """Return the class of the messages of one type of a schema.

    `indexes` lead to the type: (2, 0) is the first type nested in the third type of the schema's own file.
    """
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    types = list(pool.FindFileByName(MAIN).message_types_by_name.values())
    for index in indexes:
        if index >= len(types):
            raise VectorError("undecodable", "its schema has no such message type")
        message_type = types[index]
        types = list(message_type.nested_types)
    message_class: type[Message] = message_factory.GetMessageClass(message_type)
    return message_class


def _find_fields(reader: Reader, root: Descriptor) -> list[FieldDescriptor | None]:
    """Return the field to which each path leads in messages of the type `root`, as `_find_field` does.

    Fields that do not exist are left out if entries may be missing; otherwise, raises `VectorError`.
    """
    fields = []
    errors = []
    for path in reader.paths:
        try:
            fields.append(_find_field(path, root))
        except MissingFieldError as error:
            errors.append(error)
    refuse_missing_fields(errors, any_field_exists=bool(fields), impute=reader.impute)
    return fields


def _find_field(path: Path, root: Descriptor) -> FieldDescriptor | None:
    """Return the field to which a path leads; None if only a message can tell what is there.

    If no field there can hold numbers, raises `VectorError`.
    """
    fields = _fields_along(path, root)
    if not fields:  # the path only chooses items
        return None
    field = fields[-1]
    message = field.message_type
    is_wrapper = message is not None and message.file.name == _WRAPPERS
    if is_wrapper or _may_hold_any_names(field):  # numbers may be inside of it
        return None
    if field.cpp_type not in _NUMBERS and field.type != FieldDescriptor.TYPE_BYTES:
        held = f", but {message.full_name}" if message else ""
        dotted_path = spell_path(get_steps(path))
        raise VectorError("undecodable", f"the field {dotted_path!r} holds neither numbers nor bytes{held}")
    ends_at_item = isinstance(path[-1], Choice)
    fields_around = fields if ends_at_item else fields[:-1]
    has_several_values = any(field_around.is_repeated for field_around in fields_around)
    return None if has_several_values else field


def _fields_along(path: Path, root: Descriptor) -> list[FieldDescriptor]:
    """Return the fields through which a path leads, up to the first that may hold names that are not in the schema.

    If a field does not exist, raises `VectorError`.
    """
    fields: list[FieldDescriptor] = []
    message = root
    for part in path:
        if isinstance(part, Choice):  # it chooses an item of the field before it
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
    """Return a message as a dict of its fields with these names, recursively.

    A wrapper, such as DoubleValue, becomes its number, unless a path may name its field `value`.
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
    """Return what a field of a message holds, as `_to_tree` does; None if it is not set."""
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


def _with_unread_as_bytes(files: Files, read_names: Collection[str]) -> Files:
    """Return a copy of a schema in which texts and messages that are not read are bytes.

    They need not be UTF-8.
    """
    changed = descriptor_pb2.FileDescriptorSet.FromString(files.SerializeToString())
    for full_name, message in _message_types(changed).items():
        is_map_entry = message.options.map_entry  # its key and value must stay
        if is_map_entry or full_name.startswith("google.protobuf."):
            continue
        for field in message.field:
            is_read = field.name in read_names
            if not is_read and field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
                field.type = field.TYPE_BYTES
                for attribute in ("type_name", "default_value", "options"):
                    field.ClearField(attribute)
    return changed


def _with_repeated_bytes(files: Files, field: FieldDescriptor) -> Files:
    """Return a copy of a schema in which a field of packed floats has the type `repeated bytes`."""
    changed = descriptor_pb2.FileDescriptorSet.FromString(files.SerializeToString())
    message = _message_types(changed)[field.containing_type.full_name]
    changed_field = next(each for each in message.field if each.number == field.number)
    changed_field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    changed_field.ClearField("options")  # such as `packed`, which is not allowed for bytes
    return changed


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


def _parse_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of the message's type, and where the message begins.

    A value has their number, then the indexes, as zigzag varints. Without indexes, the only one is 0.
    """
    next_byte = schema_prefix_size(value)
    head = value[: next_byte + _MAX_INDEX_BYTES]
    count, next_byte = _parse_zigzag(head, next_byte)
    indexes = []
    for _ in range(count):
        index, next_byte = _parse_zigzag(head, next_byte)
        indexes.append(index)
    return tuple(indexes) or (0,), next_byte


def _parse_zigzag(value: bytes, start: int) -> tuple[int, int]:
    """Parse a zigzag varint: return the number and the place after it. Raises `VectorError` if it is negative."""
    zigzag = 0  # twice the number, or odd for a negative number
    for i, byte in enumerate(value[start:]):
        zigzag |= (byte & 0x7F) << 7 * i
        is_last = byte < 0x80
        if is_last:
            if zigzag & 1:
                raise VectorError("undecodable", "not framed as a schema registry's clients do: a negative index")
            return zigzag >> 1, start + i + 1
    raise VectorError("undecodable", "not framed as a schema registry's clients do: it ends within the indexes")
