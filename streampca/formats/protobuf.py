"""Protobuf with a schema registry: a repeated number, or bytes that hold floats, anywhere in a message.

Packed floats have the layout of bytes: their length, then the numbers in little-endian order. So the writer's schema
with `repeated bytes` in place of the field reads them without creating a Python object for each number; a value that
is not packed is read with the original schema.
"""

import errno
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any, TypeAlias

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from streampca.formats.base import Counts, Fields, Layout, Reader, ReaderOptions, Writer
from streampca.formats.packing import (
    NumberPacker,
    VectorBytes,
    VectorError,
    check_length,
    float64_of,
    interleaved,
    missing_field,
    varint,
)
from streampca.formats.schemas import FRAME, SchemaCache, WriterSchema
from streampca.pca.arrays import Array

Files: TypeAlias = Any  # descriptor_pb2.FileDescriptorSet, which has no types

MAIN = "streampca-main.proto"  # the name of the schema's own file
# Limits of protoc: what exceeds its processor time is the schema's fault, what only takes long is this machine's.
_PROCESSOR_TIME_S, _TIMEOUT_S = 10, 30
_PROTOC = (
    f"import resource, runpy; resource.setrlimit(resource.RLIMIT_CPU, ({_PROCESSOR_TIME_S}, resource.RLIM_INFINITY));"
    f"runpy.run_module('{grpc_tools.__name__}.protoc', run_name='__main__')"
)
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)  # of the names that a schema imports

_MAX_INDEX_BYTES = 100
_PACKED = {FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_DOUBLE: 8}
_NUMBERS = {
    FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64,
}  # fmt: skip


class ProtobufReader(Reader):
    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)

        def by_indexes(schema: WriterSchema) -> Callable[[tuple[int, ...]], _MessageReader]:
            return cache(partial(_MessageReader, compiled(schema), self._path, self._dimensions))

        self._readers = SchemaCache(options.schemas, "PROTOBUF", by_indexes)

    def read(self, value: bytes) -> VectorBytes:
        readers = self._readers.get(value)
        indexes, start = _indexes(value)
        return readers(indexes).read(value[start:])


class _MessageReader:
    """Reads the vectors in one type of message."""

    def __init__(self, files: Files, path: list[str], dimensions: int, indexes: tuple[int, ...]) -> None:
        plain = _message_type(files, indexes)
        field = _field_at(plain, path)
        self._number, self._item = field.number, _PACKED.get(field.type, 0)
        self._path, self._dimensions, self._bytes = path, dimensions, self._item * dimensions
        self._packer = NumberPacker(dimensions)
        self._original_type = message_factory.GetMessageClass(plain)
        self._packed_type = None
        if field.is_repeated and self._item:
            self._packed_type = message_factory.GetMessageClass(_message_type(_with_bytes(files, field), indexes))

    def read(self, payload: bytes) -> VectorBytes:
        numbers = None if self._packed_type is None else self._packed(_parsed(self._packed_type, payload))
        return self._with_original(_parsed(self._original_type, payload)) if numbers is None else numbers

    def _packed(self, message: Message) -> VectorBytes | None:
        """The numbers if there are d of them and all are packed; else None."""
        holder = reduce(getattr, self._path[:-1], message)
        runs = getattr(holder, self._path[-1])
        data = runs[0] if len(runs) == 1 else b"".join(runs)
        if len(data) != self._bytes or (len(runs) > 1 and any(len(run) % self._item for run in runs)):
            return None
        others = unknown_fields.UnknownFieldSet(holder)
        if len(others) and any(field.field_number == self._number for field in others):
            return None
        return float64_of(data, self._dimensions)

    def _with_original(self, message: Message) -> VectorBytes:
        vector: Any = reduce(getattr, self._path, message)
        if isinstance(vector, bytes):
            return float64_of(vector, self._dimensions)
        check_length(len(vector), self._dimensions)  # before creating a Python object for each
        return self._packer.pack(list(vector), booleans=False)


class ProtobufWriter(Writer):
    """Vectors are packed; messages around the fields have the number 1."""

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        parts, size = list[bytes | Array](), 0
        for number, values in enumerate(fields.values(), 1):
            width = values[:1].size
            tag = bytes([number << 3 | 2]) + varint(8 * width) if values.ndim == 2 else bytes([number << 3 | 1])
            parts += [tag, values]
            size += len(tag) + 8 * width
        around = b""
        for _ in self._options.around:
            tag = b"\x0a" + varint(size)
            around, size = tag + around, size + len(tag)
        return interleaved([self._options.frame + b"\0" + around, *parts])


def schema_of(layout: Layout) -> WriterSchema:
    """A message with repeated doubles and doubles, in messages along the path."""
    fields = enumerate(layout.fields.items(), 1)
    lines = [f"{'repeated ' * is_vector}double {name} = {number};" for number, (name, is_vector) in fields]
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
            folder, out = Path(name).resolve(), Path(name) / "out"
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


def _field_at(message: Descriptor, path: list[str]) -> FieldDescriptor:
    """The field at the path. Raises `VectorError` if it cannot hold a vector."""
    dotted, kind = ".".join(path), message
    for depth, name in enumerate(path, 1):
        field = kind.fields_by_name.get(name)
        is_inner = depth < len(path)
        if field is None or (is_inner and (field.message_type is None or field.is_repeated)):
            raise missing_field(dotted, name, dict(kind.fields_by_name), f"Protobuf message {kind.full_name}")
        kind = field.message_type
    if not (field.cpp_type in _NUMBERS if field.is_repeated else field.type == FieldDescriptor.TYPE_BYTES):
        raise VectorError("undecodable", f"the field {dotted!r} holds neither repeated numbers nor bytes")
    return field


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


def _parsed(kind: Callable[[], Message], payload: bytes) -> Message:
    message = kind()
    try:
        message.ParseFromString(payload)
    except DecodeError:
        raise VectorError("undecodable", "not Protobuf of its schema") from None
    return message


def _indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes of the message's type, and where the message begins.

    They are written as zigzag varints, a count and that number of indexes; a count of zero means (0,).
    """
    head = value[: FRAME + _MAX_INDEX_BYTES]
    count, start = _zigzag(head, FRAME)
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
