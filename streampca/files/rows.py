"""Opens files by their suffix, local or at a URL, compressed or not, and reads their rows as vectors, in batches.

A file may be larger than memory. Errors name the file and the row.
"""

import gzip
import io
import os
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.errors import InputError, explain_missing_extra, on_one_line
from streampca.files.columns import FileOptions, choose_columns
from streampca.formats.element_indices import ElementIndices
from streampca.formats.errors import CONDITION_UNMET, NO_VALUE, missing_hint
from streampca.formats.fields import NumberFields
from streampca.formats.judge import first_not_finite
from streampca.formats.numbers import RowVectors
from streampca.pca.arrays import Array
from streampca.pca.missing_values import NO_MISSING_VALUES, MissingValues
from streampca.settings.field_paths import Condition

KINDS = {
    ".npy": "npy", ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow",
}  # fmt: skip
READABLE_SUFFIXES = f"{', '.join(KINDS)}, and these with .gz or .zst behind"
ALL_FIELDS = "\0"  # name of the column with all fields of a JSON Lines row except the vector; no field has this name
_COMPRESSIONS = (".gz", ".zst")
_MAX_READ = 2**28  # largest number of decompressed bytes that are read at a time
_BATCH_BYTES = 1 << 22
_BATCH_ROWS = 4096


class FileKind(NamedTuple):
    """What the name of a file says."""

    kind: str  # one of the values of `KINDS`
    compression: str  # .gz or .zst, or "" if the file is not compressed


def find_kind(path: str) -> FileKind | None:
    """Return the kind and compression of a file by its name, or None if files with its suffix cannot be read."""
    name = path.rsplit("/", 1)[-1].lower()
    compression = next((suffix for suffix in _COMPRESSIONS if name.endswith(suffix)), "")
    kind = KINDS.get(Path(name.removesuffix(compression)).suffix)
    return FileKind(kind, compression) if kind else None


def require_kind(path: str) -> FileKind:
    """Return the kind and compression of a file by its name. Raises `InputError` if its suffix cannot be read."""
    kind = find_kind(path)
    if kind is None:
        raise InputError(f"{path}: its suffix is none of those that can be read: {READABLE_SUFFIXES}")
    return kind


@contextmanager
def input_errors(path: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors of reading into `InputError` with the path. `errors` are further types to turn."""
    expected: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, zlib.error, *errors)
    try:
        yield
    except InputError:  # names the file already
        raise
    except expected as error:
        text = str(getattr(error, "strerror", None) or error)
        # Some libraries end the error with bytes of the file: "Not a gzipped file (b'PK')".
        text, _, _ = text.partition(" (b'")
        raise InputError(f"{path} cannot be read: {on_one_line(text)}") from None


@contextmanager
def open_stream(path: str) -> Iterator[tuple[Any, Callable[[], float]]]:
    """Open a file to read its decompressed bytes in one pass.

    Yields the file, and a function that returns the share read so far.
    """
    with _open_stored(path) as stored:
        size = stored.seek(0, os.SEEK_END)
        stored.seek(0)

        def compute_progress() -> float:
            return float(stored.tell() / max(size, 1))

        yield _decompress(stored, require_kind(path).compression), compute_progress


@contextmanager
def open_seekable(path: str) -> Iterator[Any]:
    """Yield a file that can be read from any position: a local path, or a file of pyarrow at a URL.

    A compressed file is decompressed to a temporary file.
    """
    compression = require_kind(path).compression
    if compression:
        with _open_stored(path) as stored, tempfile.NamedTemporaryFile() as temporary:
            copyfileobj(_decompress(stored, compression), temporary, 2**20)
            temporary.flush()
            yield temporary.name
    elif "://" in path:
        with _open_stored(path) as file:
            yield file
    else:
        yield path


def _open_stored(path: str) -> Any:
    """Open a file, local or at a URL, without decompressing it."""
    if "://" not in path:
        return Path(path).open("rb")
    import pyarrow.fs

    file_system, path_in_it = pyarrow.fs.FileSystem.from_uri(path)
    return file_system.open_input_file(path_in_it)


def _decompress(stored: Any, compression: str) -> Any:
    """Return a buffered file from which the decompressed bytes of a stored file are read."""
    # A few compressed bytes may become gibibytes, so each read is limited.
    if compression == ".gz":
        return _LimitedReads(gzip.GzipFile(fileobj=stored))
    if compression == ".zst":
        with explain_missing_extra("arrow", needed_by="reading .zst"):
            import pyarrow as pa
        return _LimitedReads(pa.CompressedInputStream(stored, "zstd"))
    # Not compressed: no read returns more bytes than are stored.
    return stored if isinstance(stored, io.BufferedIOBase) else io.BufferedReader(stored)


class _LimitedReads(io.BufferedReader):
    """A file whose bytes are decompressed as they are read: at most 256 MiB at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes. Raises `ValueError` for a size above 256 MiB."""
        if size is not None and size > _MAX_READ:
            raise ValueError(f"a part of it has more than {_MAX_READ >> 20} MiB")
        return super().read(size)


class FileBatch(NamedTuple):
    """The next rows of a file. Their vectors were not checked: they may hold NaN and infinity."""

    row_vectors: RowVectors
    progress: float  # share of the file read so far
    other_columns: Mapping[str, Any]  # arrays of NumPy, or of Arrow
    element_indices: ElementIndices | None = None  # of array elements that are read by position, in the rows so far

    @property
    def row_count(self) -> int:
        return len(self.row_vectors.counts)


class RowChunk(NamedTuple):
    """The vectors of the next rows of a file; all are finite, except for missing entries."""

    vectors: Array  # (n, d)
    progress: float  # share of the file read so far
    other_columns: Mapping[str, Any]  # with a value for each vector
    rows: NDArray[np.int64]  # (n,), the row of each vector, from 1
    skipped: Counter[str]  # rows without a vector, by reason


class Rows(NamedTuple):
    """A file whose rows can be read."""

    path: str
    dimensions: int
    batches: Callable[[], Iterator[FileBatch]]
    impute: bool = False
    names: list[str] | None = None  # of the dimensions
    notes: str = ""  # for the user, on how the file is read
    vector_reader: NumberFields | None = None  # reads the vectors from its rows; None: each column holds a number
    other_types: Mapping[str, Any] = {}  # Arrow types of the other columns; None: text
    missing_values: MissingValues = NO_MISSING_VALUES

    def chunks(self, *, skip_nulls: bool = False) -> Iterator[RowChunk]:
        """Yield the vectors of all rows in chunks. Raises `InputError` with the number of the bad row.

        Rows that do not meet the conditions are skipped, and with `skip_nulls` also null rows.
        """
        reasons_to_skip = {CONDITION_UNMET}
        if skip_nulls:
            reasons_to_skip.add(NO_VALUE)
        rows_before = 0
        for batch in self.batches():
            yield self._make_chunk(batch, rows_before, reasons_to_skip)
            rows_before += batch.row_count
        if rows_before == 0:
            raise no_vectors_error(self.path)

    def _make_chunk(self, batch: FileBatch, rows_before: int, reasons_to_skip: Set[str]) -> RowChunk:
        """Check a batch, and return its vectors with their row numbers. Raises `InputError` if a row is bad.

        `rows_before` is the number of rows before the batch.
        """
        vectors_in_file = batch.row_vectors.vectors
        vectors_per_row = batch.row_vectors.counts
        skipped = Counter[str]()
        for row, error in batch.row_vectors.errors:
            if error.reason not in reasons_to_skip:
                raise InputError(f"{self.path}, row {rows_before + row + 1}: {error}")
            skipped[error.reason] += 1
        row_of_vector = np.repeat(np.arange(batch.row_count), vectors_per_row)
        row_numbers = rows_before + row_of_vector + 1
        vectors = self.missing_values.to_nan(vectors_in_file)
        # The error quotes a number as the file has it, such as -9999. In `vectors`, the number may be NaN by now.
        self._refuse_not_finite(vectors, numbers_in_file=vectors_in_file, row_numbers=row_numbers)
        return RowChunk(
            vectors=vectors,
            progress=batch.progress,
            other_columns={name: column.take(row_of_vector) for name, column in batch.other_columns.items()},
            rows=row_numbers,
            skipped=skipped,
        )

    def describe_moved_array_elements(self) -> str:
        """Return a warning if array elements that are read by position have moved; else ""."""
        return self.vector_reader.element_indices.warning if self.vector_reader else ""

    def _refuse_not_finite(self, vectors: Array, numbers_in_file: Array, row_numbers: NDArray[np.int64]) -> None:
        """Raise `InputError` if an entry of the vectors (n, d) is infinite, or NaN where no gaps are allowed.

        The error shows the number in the file: -9999 if -9999 means "missing", which is NaN in `vectors`.
        """
        bad_entry = first_not_finite(vectors, impute=self.impute)
        if bad_entry is None:
            return
        i, column = bad_entry
        name = f" ({self.names[column]})" if self.names else ""
        number = numbers_in_file[i, column]
        hint = missing_hint(number) if np.isnan(vectors[i, column]) else ""
        raise InputError(f"{self.path}, row {row_numbers[i]}: number {column + 1}{name} is {number}{hint}")


def no_vectors_error(path: str, where: Sequence[Condition] = ()) -> InputError:
    """Return the error of a file in which no row holds a vector and meets the conditions."""
    return InputError(f"{path} holds no vectors" + (" in rows that meet --where" if where else ""))


def describe_skipped(skipped: Mapping[str, int]) -> list[str]:
    """Return a line of text for each reason, with the number of rows that were skipped for it."""
    text_by_reason = {NO_VALUE: "null instead of a vector", CONDITION_UNMET: "they do not meet --where"}
    return [f"{count:,} rows skipped: {text_by_reason[reason]}" for reason, count in skipped.items()]


def batch_of_vectors(vectors: Array, progress: float) -> FileBatch:
    """Return a batch of n rows that hold one vector each, from the vectors (n, d)."""
    row_vectors = RowVectors(vectors, counts=np.ones(len(vectors), np.int64), errors=())
    return FileBatch(row_vectors, progress, other_columns={})


def rows_of_npy(path: str, options: FileOptions, row_bounds: tuple[int, int] | None) -> Rows:
    """Open an .npy file, or its rows within `row_bounds`."""
    # An .npy file has no columns (`[]`), so `choose_columns` raises if the options ask for one.
    notes_for_user = choose_columns([], options, path).notes
    if "://" in path:
        raise InputError(f"{path}: .npy files are read from local folders, files in buckets as .parquet")
    with input_errors(path), open_seekable(path) as file:
        array = map_npy(file, path)
    if row_bounds is not None:
        start, end = row_bounds
        array = array[start:end]
    n, d = array.shape
    batch_size = choose_batch_size(d)

    def batches() -> Iterator[FileBatch]:
        """Yield the rows in batches, integers as float64."""
        for start in range(0, n, batch_size):
            end = min(start + batch_size, n)
            vectors = np.asarray(array[start:end])
            if vectors.dtype.kind != "f":
                vectors = vectors.astype(np.float64)
            yield batch_of_vectors(vectors, progress=end / n)

    return Rows(path, d, batches, options.impute, notes="; ".join(notes_for_user))


def choose_batch_size(d: int) -> int:
    """Return how many rows of d numbers are read at a time."""
    row_bytes = 8 * max(d, 1)
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes))


def map_npy(file: str, path: str) -> Array:
    """Map the array (n, d) of a file into memory. Raises `InputError`.

    `file` may be a temporary copy, so errors name `path`.
    """
    try:
        # `np.load` would also open archives.
        array = np.lib.format.open_memmap(file, mode="r")
        end_of_array = array.offset + array.nbytes
        if Path(file).stat().st_size > end_of_array:
            raise ValueError("something follows its array, perhaps a second one")
    except ValueError as error:
        text, _, _ = str(error).partition(";")  # the rest shows bytes of the file
        raise InputError(f"{path} is not an .npy array of numbers, as numpy.save writes it: {text}") from None
    are_vectors = array.ndim == 2 and array.shape[1] > 0
    are_real_numbers = array.dtype.kind in "fiub"  # floats, integers or truth values
    if not are_vectors or not are_real_numbers:
        raise InputError(
            f"{path} must hold real numbers of shape (rows, dimensions), not {array.dtype} of shape {array.shape}"
        )
    return array
