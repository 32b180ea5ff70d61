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
from streampca.files.columns import FileOptions, resolved
from streampca.formats.errors import NO_VALUE, NULL_HINT
from streampca.formats.judge import first_not_finite
from streampca.formats.numbers import RowVectors
from streampca.pca.arrays import Array

KINDS = {
    ".npy": "npy", ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow",
}  # fmt: skip
READABLE = f"can be read: {', '.join(KINDS)}, and these with .gz or .zst behind"
_PACKINGS = (".gz", ".zst")
_MAX_READ = 2**28  # bytes of a compressed file at a time
_BATCH_BYTES = 1 << 22
_BATCH_ROWS = 4096


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


class FileBatch(NamedTuple):
    """The next rows of a file. Nobody has judged the vectors: they may hold NaN and infinity."""

    found: RowVectors
    share: float  # of the file that has been read
    columns: Mapping[str, Any]  # the other columns: arrays of NumPy, or of Arrow


class RowChunk(NamedTuple):
    vectors: Array  # (n, d)
    share: float  # of the file that has been read
    others: Mapping[str, Any]  # the other columns, with a value for each vector
    rows: NDArray[np.int64]  # (n,), the row of each vector, from 1
    skipped: int  # rows without a vector


class Rows(NamedTuple):
    path: str
    dimensions: int
    batches: Callable[[], Iterator[FileBatch]]
    impute: bool = False
    names: list[str] | None = None  # of the dimensions
    said: str = ""  # what was made of the file that a user should see
    others: Mapping[str, Any] = {}  # Arrow types of the other columns; None: text

    def chunks(self, *, skip_nulls: bool = False) -> Iterator[RowChunk]:
        """The vectors of all rows. Raises `InputError` that names the first row that is none, or not finite."""
        start = 0
        for found, share, columns in self.batches():
            vectors, counts = found.vectors, found.counts
            for row, error in found.errors:
                if not skip_nulls or error.reason != NO_VALUE:
                    raise InputError(f"{self.path}, row {start + row + 1}: {error}")
            rows = np.repeat(np.arange(len(counts)), counts)
            self._check_finite(vectors, start + rows + 1)
            others = {name: column.take(rows) for name, column in columns.items()}
            yield RowChunk(vectors, share, others, start + rows + 1, int((counts == 0).sum()))
            start += len(counts)
        if not start:
            raise InputError(f"{self.path} holds no vectors")

    def _check_finite(self, vectors: Array, rows: NDArray[np.int64]) -> None:
        bad = first_not_finite(vectors, impute=self.impute)
        if bad is not None:
            i, column = bad
            name = f" ({self.names[column]})" if self.names else ""
            hint = NULL_HINT if np.isnan(vectors[i, column]) else ""
            raise InputError(f"{self.path}, row {rows[i]}: number {column + 1}{name} is {vectors[i, column]}{hint}")


def batch_of_vectors(vectors: Array, share: float) -> FileBatch:
    """A batch of rows that are a vector each."""
    return FileBatch(RowVectors(vectors, np.ones(len(vectors), np.int64), ()), share, {})


def rows_of_npy(path: str, options: FileOptions, part: tuple[int, int] | None) -> Rows:
    """The rows of an .npy file, or of a part of it."""
    columns = resolved([], options, path)
    if "://" in path:
        raise InputError(f"{path}: .npy files are read from local folders, files in buckets as .parquet")
    with naming(path), seekable(path) as file:
        array = mapped_npy(file, path)[slice(*(part or (None,)))]
    step = rows_of_batch(array.shape[1])

    def batches() -> Iterator[FileBatch]:
        for first in range(0, len(array), step):
            vectors = np.asarray(array[first : first + step])
            vectors = vectors if vectors.dtype.kind == "f" else vectors.astype(np.float64)
            yield batch_of_vectors(vectors, min(first + step, len(array)) / len(array))

    return Rows(path, array.shape[1], batches, options.impute, said="; ".join(columns.said))


def rows_of_batch(d: int) -> int:
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // (8 * max(d, 1))))


def mapped_npy(file: str, path: str) -> Array:
    """The array (n, d) of a file, mapped into memory. Raises `InputError`, which calls the file `path`."""
    try:
        array = np.lib.format.open_memmap(file, mode="r")  # `np.load` would open archives, and advises to unpickle
    except ValueError as error:
        raise InputError(
            f"{path} is not an .npy array of numbers, as numpy.save writes it: "
            f"{str(error).partition(';')[0]}"  # bytes of the file follow
        ) from None
    if array.ndim != 2 or not array.shape[1] or array.dtype.kind not in "fiub":
        raise InputError(
            f"{path} must hold real numbers of shape (rows, dimensions), not {array.dtype} of shape {array.shape}"
        )
    return array
