"""Compiles the Protobuf schemas of a schema registry with protoc."""

import errno
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import grpc_tools
from google.protobuf import descriptor_pb2

from streampca.formats.packing import VectorError
from streampca.formats.schemas import WriterSchema

MAIN = "streampca-main.proto"  # the name of the schema's own file
_COMPILE_TIMEOUT_S = 30
_NAMES = (errno.ENAMETOOLONG, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)  # errors of the names that a schema imports

Files: TypeAlias = Any  # descriptor_pb2.FileDescriptorSet, which has no types


def compiled(schema: WriterSchema) -> Files:
    """The descriptors of a schema and of all that it imports, compiled by protoc.

    Raises `TimeoutError` if that is this machine's fault; any other error is the schema's.
    """
    try:
        return _compiled(schema)
    except OSError as error:
        if error.errno in _NAMES:
            raise VectorError("undecodable", f"cannot be compiled: {error.strerror}") from None
        raise TimeoutError(f"Protobuf schemas cannot be compiled now: {error}") from None  # a full disk, no memory


def _compiled(schema: WriterSchema) -> Files:
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
            [sys.executable, "-m", f"{grpc_tools.__name__}.protoc", *words],
            capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False,
        )  # fmt: skip
        if outcome.returncode:
            raise VectorError("undecodable", f"cannot be compiled: {' '.join(outcome.stderr.split())[-300:]}")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
