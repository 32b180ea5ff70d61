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
from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from typing import Any, TypeAlias

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from streampca.formats.base import Counts, Fields, Kind, Layout, Reader, Writer
from streampca.formats.errors import VectorError, missing_field_error
from streampca.formats.fields import NumberFields
from streampca.formats.layout import encode_items, join_parts, varint
from streampca.formats.numbers import GuessedNumbers, VectorBytes, widen_floats
from streampca.formats.schemas import SchemaCache, WriterSchema, frame_size
from streampca.settings.field_paths import Part, Path, paths_of, spelled

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
    "number": "double", "numbers": "repeated double", "integers": "repeated int64", "texts": "repeated string",
    "bytes": "bytes",
}  # fmt: skip
_MAX_INDEX_BYTES = 100  # of the indexes before a message
_PACKED_SIZES = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}  # bytes of a packed number
_NUMBERS = {
    FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64,
}  # fmt: skip
# How a field begins on the wire: its number in the upper bits, and how its bytes are laid out in the lower three.
_WIRE_FIXED64, _WIRE_LENGTH = 1, 2
_FIRST_FIELD = b"\x0a"  # the tag of the field 1 that holds a message


class ProtobufReader(Reader):
    def __post_init__(self) -> None:
        # By schema, then by the indexes of a message's type.
        self._readers = SchemaCache(self.schemas, "PROTOBUF", self._create_readers)

    def _create_readers(self, schema: WriterSchema) -> Callable[[tuple[int, ...]], "_MessageReader"]:
        """Return the function that creates the reader of a message's type, and caches it."""
        return cache(partial(_MessageReader, compiled(schema), self))

    def read(self, value: bytes) -> VectorBytes | GuessedNumbers:
        reader_at = self._readers.get(value)
        indexes, start = _parse_indexes(value)
        return reader_at(indexes).read(value[start:])


class _MessageReader:
    """Reads the vectors in one type of message."""

    def __init__(self, files: Files, reader: Reader, indexes: tuple[int, ...]) -> None:
        self._dimensions = reader.dimensions
        descriptor = _find_message_type(files, indexes)
        self._original_type = message_factory.GetMessageClass(descriptor)
        fields_along_paths = [_fields_along(path, descriptor) for path in paths_of(reader.field)]
        self._paths = [[field.name for field in fields] for fields in fields_along_paths]
        self._numbers = NumberFields(
            [tuple(map(Part, names)) for names in self._paths],
            reader.dimensions,
            impute=reader.impute,
            value_name="Protobuf message",
        )
        # If the numbers may be packed in one field, this type has `repeated bytes` in place of the field.
        self._packed_type = None
        *around, field = fields_along_paths[0]
        self._field_number = field.number
        self._number_size = _PACKED_SIZES.get(field.type, 0)  # 0: these numbers cannot be read as floats
        is_one_field = len(fields_along_paths) == 1 and not any(outer.is_repeated for outer in around)
        if is_one_field and field.is_repeated and self._number_size:
            with_bytes = _find_message_type(_with_bytes(files, field), indexes)
            self._packed_type = message_factory.GetMessageClass(with_bytes)

    def read(self, payload: bytes) -> VectorBytes | GuessedNumbers:
        """Return the numbers of a message; if they are packed, without a Python object for each of them."""
        if self._packed_type is not None:
            numbers = self._read_packed(_parse(self._packed_type, payload))
            if numbers is not None:
                return numbers
        tree = _to_tree(_parse(self._original_type, payload), self._paths)
        return self._numbers.pack(tree, refuse_booleans=False)

    def _read_packed(self, message: Message) -> VectorBytes | None:
        """Return the numbers of a message of the packed type, if there are d of them and all are packed; else None."""
        *around, name = self._paths[0]
        parent = reduce(getattr, around, message)
        runs = getattr(parent, name)  # a writer may pack the numbers in several runs
        data = b"".join(runs)
        are_whole = len(runs) <= 1 or all(len(run) % self._number_size == 0 for run in runs)
        if len(data) != self._number_size * self._dimensions or not are_whole:
            return None
        # Numbers that are not packed are unknown to this type.
        unknown = unknown_fields.UnknownFieldSet(parent)
        if len(unknown) and any(field.field_number == self._field_number for field in unknown):
            return None
        return widen_floats(data, self._dimensions)


class ProtobufWriter(Writer):
    """Writes the fields with the numbers 1, 2, … Vectors are packed; each message around the fields is a field 1."""

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        parts = list[Any]()
        size = 0  # bytes of the fields, used only around vectors: these have the same size in all rows
        for number, values in enumerate(fields.values(), 1):
            length_tag = bytes([number << 3 | _WIRE_LENGTH])
            encode_item = partial(_encode_item, length_tag)
            if values.dtype.kind == "O":
                parts.append(encode_items(values, encode_item))
                continue
            if values.dtype.kind != "f":  # whole numbers, which are packed
                parts.append([encode_item(b"".join(map(varint, row))) for row in values.tolist()])
                continue
            data_size = 8 * values[:1].size
            is_vector = values.ndim == 2
            tag = length_tag + varint(data_size) if is_vector else bytes([number << 3 | _WIRE_FIXED64])
            parts += [tag, values]
            size += len(tag) + data_size
        around = b""
        for _ in self.around:
            tag = _FIRST_FIELD + varint(size)
            around = tag + around
            size += len(tag)
        only_message = b"\0"  # the indexes of the message's type: the first one
        return join_parts([self.frame + only_message + around, *parts])


def _encode_item(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data


def schema_of(layout: Layout) -> WriterSchema:
    """Return the schema of a message with these fields, inside of a message for each name of `around`."""
    fields = enumerate(layout.fields.items(), 1)
    content = " ".join(f"{_TYPES[kind]} {name} = {number};" for number, (name, kind) in fields)
    record = layout.record
    for depth, name in enumerate(reversed(layout.around), 1):
        content = f"{record}{depth} {name} = 1; message {record}{depth} {{ {content} }}"
    return WriterSchema("PROTOBUF", f'syntax = "proto3"; message {record} {{ {content} }}')


def compiled(schema: WriterSchema) -> Files:
    """Return the descriptors of a schema and of all that it imports, compiled by protoc.

    If this machine is at fault, raises `TimeoutError`; any other error is the schema's fault.
    """
    try:
        with tempfile.TemporaryDirectory() as name:
            return _compile_in(pathlib.Path(name).resolve(), schema)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"Protobuf schemas cannot be compiled within {_TIMEOUT_S} s") from None
    except OSError as error:
        if error.errno in _NAME_ERRORS:
            raise VectorError("undecodable", f"cannot be compiled: {error.strerror}") from None
        raise TimeoutError(f"Protobuf schemas cannot be compiled now: {error}") from None  # a full disk, no memory


def _compile_in(folder: pathlib.Path, schema: WriterSchema) -> Files:
    """Write the texts of a schema to files in an empty folder, and compile them there."""
    for file, text in {**schema.references, MAIN: schema.text}.items():
        path = (folder / file).resolve()
        if not path.is_relative_to(folder):
            raise VectorError("undecodable", f"it imports {file!r}, which is no name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    out = folder / "out"
    arguments = [f"-I{folder}", "--include_imports", f"--descriptor_set_out={out}", MAIN]
    # protoc reports errors on stderr only, so it runs in a process of its own.
    result = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", _PROTOC, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if result.returncode:
        reason = result.stderr.replace(f"{folder}/", "") or f"protoc ended with {result.returncode}"
        raise VectorError("undecodable", f"cannot be compiled: {' '.join(reason.split())[-300:]}")
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _find_message_type(files: Files, indexes: tuple[int, ...]) -> Descriptor:
    """Return the message type at the indexes: the first is into the main file, the next into nested messages."""
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    types = list(pool.FindFileByName(MAIN).message_types_by_name.values())
    for index in indexes:
        if index >= len(types):
            raise VectorError("undecodable", "its schema has no such message as it says it is")
        message = types[index]
        types = list(message.nested_types)
    return message


def _fields_along(path: Path, root: Descriptor) -> list[FieldDescriptor]:
    """Return the fields along a path that leads from a message type to numbers, bytes or text. Raises `VectorError`.

    If the path ends at a message of Google's wrappers, such as DoubleValue, the field inside of it is added.
    """
    dotted_path = spelled([part.name for part in path])
    message = root
    fields = list[FieldDescriptor]()
    for part in path:
        siblings = message.fields_by_name if message else {}
        if part.name not in siblings:
            raise missing_field_error(dotted_path, part.name, dict(siblings), f"Protobuf message {root.full_name}")
        fields.append(siblings[part.name])
        message = fields[-1].message_type  # None if the field holds no message
    if message and message.file.name == "google/protobuf/wrappers.proto":
        fields += message.fields
    last = fields[-1]
    if last.cpp_type not in _NUMBERS and last.type not in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING):
        held = f", but {message.full_name}" if message else ""
        raise VectorError("undecodable", f"the field {dotted_path!r} holds neither numbers nor bytes{held}")
    if any(field.message_type and field.message_type.GetOptions().map_entry for field in fields):
        raise VectorError("undecodable", f"the field {dotted_path!r} is in a map, which has no order")
    return fields


def _to_tree(message: Message, paths: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return what is at the paths in a message, as objects and arrays.

    A field that is not set is None, if Protobuf can tell that it is not set.
    """
    tree = dict[str, Any]()
    for name in dict.fromkeys(path[0] for path in paths):
        field = message.DESCRIPTOR.fields_by_name[name]
        value = getattr(message, name)
        rests = [path[1:] for path in paths if path[0] == name and len(path) > 1]
        if field.is_repeated:
            tree[name] = [_to_tree(item, rests) for item in value] if rests else list(value)
        elif field.has_presence and not message.HasField(name):
            tree[name] = None
        else:
            tree[name] = _to_tree(value, rests) if rests else value
    return tree


def _with_bytes(files: Files, field: FieldDescriptor) -> Files:
    """Return the same files with `repeated bytes` as the type of the field."""
    changed = descriptor_pb2.FileDescriptorSet.FromString(files.SerializeToString())
    package = field.file.package
    full_name = field.containing_type.full_name
    # The message of the field may be nested in others: these are their names, from the outermost.
    message_names = full_name.removeprefix(f"{package}." if package else "").split(".")
    messages = next(file for file in changed.file if file.name == field.file.name).message_type
    for name in message_names:
        message = next(message for message in messages if message.name == name)
        messages = message.nested_type
    changed_field = next(each for each in message.field if each.number == field.number)
    changed_field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    changed_field.ClearField("options")  # `packed`, which bytes cannot be
    return changed


def _parse(message_type: type[Message], payload: bytes) -> Message:
    try:
        return message_type.FromString(payload)
    except DecodeError:
        raise VectorError("undecodable", "not Protobuf of its schema") from None


def _parse_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of the message's type, and where the message begins.

    They are written as zigzag varints, a count and that number of indexes; a count of zero means (0,).
    """
    start = frame_size(value)
    head = value[: start + _MAX_INDEX_BYTES]
    count, start = _parse_zigzag(head, start)
    indexes = []
    for _ in range(count):
        index, start = _parse_zigzag(head, start)
        indexes.append(index)
    return tuple(indexes) or (0,), start


def _parse_zigzag(value: bytes, start: int) -> tuple[int, int]:
    """Return a number that is not negative, and the position after it. Raises `VectorError`."""
    number = 0
    for i, byte in enumerate(value[start:]):
        number |= (byte & 0x7F) << 7 * i
        is_last = byte < 0x80
        if is_last:
            if number & 1:
                raise VectorError("undecodable", "not framed as a schema registry's clients do: a negative index")
            return number >> 1, start + i + 1
    raise VectorError("undecodable", "not framed as a schema registry's clients do: it ends within the indexes")
