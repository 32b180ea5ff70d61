"""The kinds of files that can be read, by suffix, and their bytes: local or at a URL, compressed or not."""

import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import Any

from streampca.errors import InputError, naming_the_extra

KINDS = {
    ".npy": "npy", ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow",
}  # fmt: skip
READABLE = f"can be read: {', '.join(KINDS)}, and these with .gz or .zst behind"
_PACKINGS = (".gz", ".zst")
_MAX_READ = 2**28  # bytes of a compressed file at a time


def kind_of(path: str) -> tuple[str, str] | None:
    """The kind of a file, by its name, and how it is packed: .gz, .zst or empty; None if it cannot be read."""
    name = path.rsplit("/", 1)[-1].lower()
    packing = next((suffix for suffix in _PACKINGS if name.endswith(suffix)), "")
    kind = KINDS.get(Path(name.removesuffix(packing)).suffix)
    return (kind, packing) if kind else None


def readable(path: str) -> tuple[str, str]:
    """As `kind_of`. Raises `InputError` if the file cannot be read."""
    if (kind := kind_of(path)) is None:
        raise InputError(f"{path}: its suffix is none of those that {READABLE}")
    return kind


@contextmanager
def naming(path: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise `InputError` with the path for errors of reading, also for these `errors`."""
    expected: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, zlib.error, *errors)
    try:
        yield
    except InputError:  # it names the file, and is a ValueError
        raise
    except expected as error:
        text = str(getattr(error, "strerror", None) or error).partition(" (b'")[0]  # bytes of the file
        raise InputError(f"{path} cannot be read: {' '.join(text.split())}") from None


@contextmanager
def opened(path: str) -> Iterator[tuple[Any, Callable[[], float]]]:
    """A file to read in one pass, binary and unpacked, and the share that has been read. Raises errors of reading."""
    with _raw(path) as raw:
        size = raw.seek(0, os.SEEK_END)
        raw.seek(0)
        yield _unpacked(raw, readable(path)[1]), lambda: raw.tell() / max(size, 1)


@contextmanager
def seekable(path: str) -> Iterator[Any]:
    """A file to read anywhere: its path, or a file of pyarrow's. A compressed one is unpacked to a temporary file."""
    packing = readable(path)[1]
    if not packing:
        yield _raw(path) if "://" in path else path
        return
    with _raw(path) as raw, tempfile.NamedTemporaryFile() as file:
        copyfileobj(_unpacked(raw, packing), file, 2**20)
        file.flush()
        yield file.name


def _raw(path: str) -> Any:
    if "://" not in path:
        return Path(path).open("rb")
    import pyarrow.fs

    system, inner = pyarrow.fs.FileSystem.from_uri(path)
    return system.open_input_file(inner)


def _unpacked(raw: Any, packing: str) -> Any:
    if packing == ".gz":
        return _Unpacked(gzip.GzipFile(fileobj=raw))
    if packing == ".zst":
        with naming_the_extra("reading .zst", "arrow"):
            import pyarrow as pa
        return _Unpacked(pa.CompressedInputStream(raw, "zstd"))
    return raw if isinstance(raw, io.BufferedIOBase) else io.BufferedReader(raw)


class _Unpacked(io.BufferedReader):
    """A few bytes may unpack to gibibytes: they are never read at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_READ:
            raise ValueError(f"a part of it has more than {_MAX_READ >> 20} MiB")
        return super().read(size)
