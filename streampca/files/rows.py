"""Files by their suffix, local or at a URL, compressed or not; and their rows as vectors, in batches.

So a file may be larger than memory. Errors name the file and the row.
"""

import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.errors import InputError, naming_the_extra
from streampca.files.columns import FileOptions, choose_columns
from streampca.formats.errors import NO_VALUE, NULL_HINT
from streampca.formats.judge import first_not_finite
from streampca.formats.numbers import RowVectors
from streampca.pca.arrays import Array

KINDS = {
    ".npy": "npy", ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow",
}  # fmt: skip
READABLE = f"can be read: {', '.join(KINDS)}, and these with .gz or .zst behind"
_COMPRESSIONS = (".gz", ".zst")
_MAX_READ = 2**28  # bytes of a compressed file at a time
_BATCH_BYTES = 1 << 22
_BATCH_ROWS = 4096


class FileKind(NamedTuple):
    """What the name of a file says."""

    kind: str  # one of the values of `KINDS`
    compression: str  # .gz or .zst, or "" if the file is not compressed


def find_kind(path: str) -> FileKind | None:
    """Return what the name of a file says; None if the file cannot be read."""
    name = path.rsplit("/", 1)[-1].lower()
    compression = next((suffix for suffix in _COMPRESSIONS if name.endswith(suffix)), "")
    kind = KINDS.get(Path(name.removesuffix(compression)).suffix)
    return FileKind(kind, compression) if kind else None


def require_kind(path: str) -> FileKind:
    """Return what the name of a file says. Raises `InputError` if the file cannot be read."""
    kind = find_kind(path)
    if kind is None:
        raise InputError(f"{path}: its suffix is none of those that {READABLE}")
    return kind


@contextmanager
def input_errors(path: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors of reading, and these `errors`, into `InputError` with the path."""
    expected: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, zlib.error, *errors)
    try:
        yield
    except InputError:  # a ValueError that names the file already
        raise
    except expected as error:
        text = str(getattr(error, "strerror", None) or error)
        text, _, _ = text.partition(" (b'")  # bytes of the file follow
        raise InputError(f"{path} cannot be read: {' '.join(text.split())}") from None


@contextmanager
def open_stream(path: str) -> Iterator[tuple[Any, Callable[[], float]]]:
    """Open a file to read its bytes in one pass, decompressed. Raises errors of reading.

    Yields the file, and a function that returns the share that has been read.
    """
    with _open_stored(path) as stored:
        size = stored.seek(0, os.SEEK_END)
        stored.seek(0)
        _, compression = require_kind(path)
        yield _decompress(stored, compression), lambda: stored.tell() / max(size, 1)


@contextmanager
def open_seekable(path: str) -> Iterator[Any]:
    """Yield a file that can be read anywhere: its path, or a file of pyarrow's if the path is a URL.

    A compressed file is decompressed to a temporary file.
    """
    _, compression = require_kind(path)
    if not compression:
        yield _open_stored(path) if "://" in path else path
        return
    with _open_stored(path) as stored, tempfile.NamedTemporaryFile() as temporary:
        copyfileobj(_decompress(stored, compression), temporary, 2**20)
        temporary.flush()
        yield temporary.name


def _open_stored(path: str) -> Any:
    """Open a file, local or at a URL, as it is stored."""
    if "://" not in path:
        return Path(path).open("rb")
    import pyarrow.fs

    file_system, path_in_it = pyarrow.fs.FileSystem.from_uri(path)
    return file_system.open_input_file(path_in_it)


def _decompress(stored: Any, compression: str) -> Any:
    """Return the file to read a stored one by: decompressed, and with a buffer."""
    if compression == ".gz":
        return _LimitedReader(gzip.GzipFile(fileobj=stored))
    if compression == ".zst":
        with naming_the_extra("reading .zst", "arrow"):
            import pyarrow as pa
        return _LimitedReader(pa.CompressedInputStream(stored, "zstd"))
    return stored if isinstance(stored, io.BufferedIOBase) else io.BufferedReader(stored)


class _LimitedReader(io.BufferedReader):
    """Refuses to read very much of a compressed file at once: a few bytes may unpack to gibibytes."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_READ:
            raise ValueError(f"a part of it has more than {_MAX_READ >> 20} MiB")
        return super().read(size)


class FileBatch(NamedTuple):
    """The next rows of a file. Their vectors were not judged: they may hold NaN and infinity."""

    found: RowVectors
    share: float  # of the file that has been read
    columns: Mapping[str, Any]  # the other columns: arrays of NumPy, or of Arrow


class RowChunk(NamedTuple):
    """The vectors of the next rows of a file; all are finite, except for missing entries."""

    vectors: Array  # (n, d)
    share: float  # of the file that has been read
    others: Mapping[str, Any]  # the other columns, with a value for each vector
    rows: NDArray[np.int64]  # (n,), the row of each vector, from 1
    skipped: int  # rows without a vector


class Rows(NamedTuple):
    """A file whose rows can be read."""

    path: str
    dimensions: int
    batches: Callable[[], Iterator[FileBatch]]
    impute: bool = False
    names: list[str] | None = None  # of the dimensions
    notes: str = ""  # for the user, on how the file is read
    others: Mapping[str, Any] = {}  # Arrow types of the other columns; None: text

    def chunks(self, *, skip_nulls: bool = False) -> Iterator[RowChunk]:
        """Yield the vectors of all rows.

        If a row holds no vector, or one that is not finite, raises `InputError` with the number of the row. With
        `skip_nulls`, a row may be null.
        """
        rows_before = 0
        for found, share, columns in self.batches():
            for row, error in found.errors:
                if not skip_nulls or error.reason != NO_VALUE:
                    raise InputError(f"{self.path}, row {rows_before + row + 1}: {error}")
            row_of_vector = np.repeat(np.arange(len(found.counts)), found.counts)
            row_numbers = rows_before + row_of_vector + 1
            self._check_finite(found.vectors, row_numbers)
            yield RowChunk(
                vectors=found.vectors,
                share=share,
                others={name: column.take(row_of_vector) for name, column in columns.items()},
                rows=row_numbers,
                skipped=int((found.counts == 0).sum()),
            )
            rows_before += len(found.counts)
        if rows_before == 0:
            raise InputError(f"{self.path} holds no vectors")

    def _check_finite(self, vectors: Array, row_numbers: NDArray[np.int64]) -> None:
        """Raise `InputError` if an entry of the vectors (n, d) can be neither learned nor projected."""
        bad = first_not_finite(vectors, impute=self.impute)
        if bad is None:
            return
        i, column = bad
        name = f" ({self.names[column]})" if self.names else ""
        hint = NULL_HINT if np.isnan(vectors[i, column]) else ""
        raise InputError(f"{self.path}, row {row_numbers[i]}: number {column + 1}{name} is {vectors[i, column]}{hint}")


def batch_of_vectors(vectors: Array, share: float) -> FileBatch:
    """Return a batch of rows, each of which is one of the vectors (n, d)."""
    rows = RowVectors(vectors, counts=np.ones(len(vectors), np.int64), errors=())
    return FileBatch(rows, share, columns={})


def rows_of_npy(path: str, options: FileOptions, part: tuple[int, int] | None) -> Rows:
    """Open an .npy file. `part` is its start and end in rows."""
    columns = choose_columns([], options, path)  # refuses options for columns, which the file does not have
    if "://" in path:
        raise InputError(f"{path}: .npy files are read from local folders, files in buckets as .parquet")
    with input_errors(path), open_seekable(path) as file:
        array = map_npy(file, path)
    if part is not None:
        start, end = part
        array = array[start:end]
    n, d = array.shape
    step = batch_rows(d)

    def batches() -> Iterator[FileBatch]:
        for first in range(0, n, step):
            vectors = np.asarray(array[first : first + step])
            if vectors.dtype.kind != "f":
                vectors = vectors.astype(np.float64)
            yield batch_of_vectors(vectors, share=min(first + step, n) / n)

    return Rows(path, d, batches, options.impute, notes="; ".join(columns.notes))


def batch_rows(d: int) -> int:
    """Return how many rows of d numbers are read at a time."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // (8 * max(d, 1))))


def map_npy(file: str, path: str) -> Array:
    """Map the array (n, d) of a file into memory. Raises `InputError`, which calls the file `path`."""
    try:
        array = np.lib.format.open_memmap(file, mode="r")  # `np.load` would open archives, and advises to unpickle
    except ValueError as error:
        text, _, _ = str(error).partition(";")  # bytes of the file follow
        raise InputError(f"{path} is not an .npy array of numbers, as numpy.save writes it: {text}") from None
    if array.ndim != 2 or not array.shape[1] or array.dtype.kind not in "fiub":
        raise InputError(
            f"{path} must hold real numbers of shape (rows, dimensions), not {array.dtype} of shape {array.shape}"
        )
    return array
