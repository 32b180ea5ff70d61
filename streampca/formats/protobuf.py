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
from collections.abc import Sequence
from functools import cache, partial, reduce
from typing import Any, TypeAlias

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from streampca.formats.base import Counts, Fields, Kind, Layout, Reader, Writer
from streampca.formats.errors import VectorError, missing_field
from streampca.formats.fields import NumberFields
from streampca.formats.layout import as_bytes, joined, varint
from streampca.formats.numbers import Guessed, VectorBytes, float64_of
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
_MAX_INDEX_BYTES = 100
_PACKED = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}
_NUMBERS = {
    FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64,
}  # fmt: skip


class ProtobufReader(Reader):
    def __post_init__(self) -> None:
        self._readers = SchemaCache(  # by schema, then by the indexes of a message
            self.schemas, "PROTOBUF", lambda schema: cache(partial(_MessageReader, compiled(schema), self))
        )

    def read(self, value: bytes) -> VectorBytes | Guessed:
        readers = self._readers.get(value)
        indexes, start = _indexes(value)
        return readers(indexes).read(value[start:])


class _MessageReader:
    """Reads the vectors in one type of message."""

    def __init__(self, files: Files, reader: Reader, indexes: tuple[int, ...]) -> None:
        plain, dimensions = _message_type(files, indexes), reader.dimensions
        along = [_fields_along(path, plain) for path in paths_of(reader.field)]
        paths = [tuple(Part(field.name) for field in fields) for fields in along]
        self._numbers = NumberFields(paths, dimensions, impute=reader.impute, kind="Protobuf message")
        self._names, self._dimensions = [[part.name for part in path] for path in paths], dimensions
        self._original_type = message_factory.GetMessageClass(plain)
        self._packed_type = None
        *around, field = along[0]
        self._number, self._item = field.number, _PACKED.get(field.type, 0)
        if len(paths) == 1 and field.is_repeated and self._item and not any(outer.is_repeated for outer in around):
            self._packed_type = message_factory.GetMessageClass(_message_type(_with_bytes(files, field), indexes))

    def read(self, payload: bytes) -> VectorBytes | Guessed:
        if self._packed_type and (numbers := self._packed(_parsed(self._packed_type, payload))) is not None:
            return numbers
        return self._numbers.pack(_tree(_parsed(self._original_type, payload), self._names), booleans=False)

    def _packed(self, message: Message) -> VectorBytes | None:
        """The numbers if there are d of them and all are packed; else None."""
        *around, name = self._names[0]
        holder = reduce(getattr, around, message)
        runs = getattr(holder, name)
        data = b"".join(runs)
        if len(data) != self._item * self._dimensions or (len(runs) > 1 and any(len(run) % self._item for run in runs)):
            return None
        others = unknown_fields.UnknownFieldSet(holder)
        if len(others) and any(field.field_number == self._number for field in others):
            return None
        return float64_of(data, self._dimensions)


class ProtobufWriter(Writer):
    """Vectors are packed; messages around the fields have the number 1."""

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        parts, size = list[Any](), 0
        for number, values in enumerate(fields.values(), 1):
            if values.dtype.kind != "f":
                parts.append(_encoded(bytes([number << 3 | 2]), values))
                continue
            width = values[:1].size
            tag = bytes([number << 3 | 2]) + varint(8 * width) if values.ndim == 2 else bytes([number << 3 | 1])
            parts += [tag, values]
            size += len(tag) + 8 * width
        around = b""
        for _ in self.around:
            tag = b"\x0a" + varint(size)
            around, size = tag + around, size + len(tag)
        return joined([self.frame + b"\0" + around, *parts])


def _encoded(tag: bytes, values: NDArray[Any]) -> list[bytes]:
    """The bytes of each row of whole numbers, which are packed, of texts or of bytes."""
    if values.dtype.kind != "O":
        packed = [b"".join(map(varint, row)) for row in values.tolist()]
        return [tag + varint(len(data)) + data for data in packed]
    rows = values.reshape(len(values), -1).tolist()
    return [b"".join([tag + varint(len(data)) + data for data in map(as_bytes, row)]) for row in rows]


def schema_of(layout: Layout) -> WriterSchema:
    """A message with repeated doubles and doubles, in messages along the path."""
    fields = enumerate(layout.fields.items(), 1)
    lines = [f"{_TYPES[kind]} {name} = {number};" for number, (name, kind) in fields]
    content, kind = " ".join(lines), layout.record
    for depth, name in enumerate(reversed(layout.around), 1):
        content = f"{kind}{depth} {name} = 1; message {kind}{depth} {{ {content} }}"
    return WriterSchema("PROTOBUF", f'syntax = "proto3"; message {kind} {{ {content} }}')


def compiled(schema: WriterSchema) -> Files:
    """The descriptors of a schema and of all that it imports, compiled by protoc.

    Raises `TimeoutError` if that is this machine's fault; any other error is the schema's.
    """
    try:
        with tempfile.TemporaryDirectory() as name:
            folder, out = pathlib.Path(name).resolve(), pathlib.Path(name) / "out"
            for file, text in {**schema.references, MAIN: schema.text}.items():
                path = (folder / file).resolve()
                if not path.is_relative_to(folder):
                    raise VectorError("undecodable", f"it imports {file!r}, which is no name of a file")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            words = [f"-I{folder}", "--include_imports", f"--descriptor_set_out={out}", MAIN]
            # In a process of its own, since protoc reports errors on stderr only.
            outcome = subprocess.run(  # noqa: S603 - our own interpreter
                [sys.executable, "-c", _PROTOC, *words], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
            if outcome.returncode:
                reason = outcome.stderr.replace(f"{folder}/", "") or f"protoc ended with {outcome.returncode}"
                raise VectorError("undecodable", f"cannot be compiled: {' '.join(reason.split())[-300:]}")
            return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"Protobuf schemas cannot be compiled within {_TIMEOUT_S} s") from None
    except OSError as error:
        if error.errno in _NAME_ERRORS:
            raise VectorError("undecodable", f"cannot be compiled: {error.strerror}") from None
        raise TimeoutError(f"Protobuf schemas cannot be compiled now: {error}") from None  # a full disk, no memory


def _message_type(files: Files, indexes: tuple[int, ...]) -> Descriptor:
    """The message type at the indexes: the first is into the main file, the others into nested messages."""
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


def _fields_along(path: Path, kind: Descriptor) -> list[FieldDescriptor]:
    """The fields along a path, to numbers, bytes or text; a wrapper at its end holds a number. Raises `VectorError`."""
    dotted, message, fields = spelled([part.name for part in path]), kind, list[FieldDescriptor]()
    for part in path:
        field = message.fields_by_name.get(part.name) if message else None
        if field is None:
            names = dict(message.fields_by_name) if message else {}
            raise missing_field(dotted, part.name, names, f"Protobuf message {kind.full_name}")
        fields.append(field)
        message = field.message_type
    if message and message.file.name == "google/protobuf/wrappers.proto":
        fields += message.fields
    last = fields[-1]
    if last.cpp_type not in _NUMBERS and last.type not in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING):
        held = f", but {message.full_name}" if message else ""
        raise VectorError("undecodable", f"the field {dotted!r} holds neither numbers nor bytes{held}")
    if any(field.message_type and field.message_type.GetOptions().map_entry for field in fields):
        raise VectorError("undecodable", f"the field {dotted!r} is in a map, which has no order")
    return fields


def _tree(message: Message, paths: Sequence[Sequence[str]]) -> dict[str, Any]:
    """What is at the paths in a message, as objects and arrays; None for a field that is not set, if it shows."""
    tree = dict[str, Any]()
    for name in {path[0]: None for path in paths}:
        field, value = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
        rests = [path[1:] for path in paths if path[0] == name and len(path) > 1]
        if field.is_repeated:
            tree[name] = [_tree(item, rests) for item in value] if rests else list(value)
        elif field.has_presence and not message.HasField(name):
            tree[name] = None
        else:
            tree[name] = _tree(value, rests) if rests else value
    return tree


def _with_bytes(files: Files, field: FieldDescriptor) -> Files:
    """The same files with `repeated bytes` as the type of the field."""
    changed = descriptor_pb2.FileDescriptorSet.FromString(files.SerializeToString())
    package = field.file.package
    names = field.containing_type.full_name.removeprefix(f"{package}." if package else "").split(".")
    messages = next(file for file in changed.file if file.name == field.file.name).message_type
    for name in names:
        message = next(m for m in messages if m.name == name)
        messages = message.nested_type
    proto = next(f for f in message.field if f.number == field.number)
    proto.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
    proto.ClearField("options")  # packed
    return changed


def _parsed(kind: type[Message], payload: bytes) -> Message:
    try:
        return kind.FromString(payload)
    except DecodeError:
        raise VectorError("undecodable", "not Protobuf of its schema") from None


def _indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes of the message's type, and where the message begins.

    They are written as zigzag varints, a count and that number of indexes; a count of zero means (0,).
    """
    head, start = value[: frame_size(value) + _MAX_INDEX_BYTES], frame_size(value)
    count, start = _zigzag(head, start)
    indexes = []
    for _ in range(count):
        index, start = _zigzag(head, start)
        indexes.append(index)
    return tuple(indexes) or (0,), start


def _zigzag(value: bytes, start: int) -> tuple[int, int]:
    """A number, and the position after it."""
    number = 0
    for i, byte in enumerate(value[start:]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if number & 1:
                raise VectorError("undecodable", "not framed as a schema registry's clients do: a negative index")
            return number >> 1, start + i + 1
    raise VectorError("undecodable", "not framed as a schema registry's clients do: it ends within the indexes")
