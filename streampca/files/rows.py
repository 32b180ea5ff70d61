"""The rows of a file as vectors, in batches, so that a file may be larger than memory. Errors name the row."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.errors import InputError
from streampca.files.columns import ARRAY, Wanted, resolved
from streampca.files.kinds import Opened, naming, seekable
from streampca.formats.batch import Decoded, Reject
from streampca.formats.packing import NULL_HINT, VectorBytes, VectorError
from streampca.pca.arrays import Array, not_finite

_BATCH_BYTES = 1 << 22
_BATCH_ROWS = 4096
_MAX_LINE = 2**24  # bytes of a row of text
_NO_COLUMNS: Mapping[str, Any] = {}


class FileBatch(NamedTuple):
    """The next rows of a file. Nobody has judged the vectors: they may hold NaN and infinity."""

    decoded: Decoded  # its indices count the rows of the batch
    rows: int
    share: float  # of the file that has been read
    columns: Mapping[str, Any] = _NO_COLUMNS  # the other columns: lists of text, arrays of Arrow


class RowChunk(NamedTuple):
    vectors: Array  # (n, d)
    share: float  # of the file that has been read
    others: Mapping[str, Any]  # the other columns of a table, with a value for each vector
    rows: NDArray[np.int64]  # (n,), the row of each vector, from 1
    skipped: int  # rows with null instead of a vector


@dataclass(frozen=True)
class Rows:
    path: str
    dimensions: int
    batches: Callable[[], Iterator[FileBatch]]
    names: tuple[str, ...] | None = None  # of the dimensions
    impute: bool = False
    others: Mapping[str, Any] = field(default_factory=dict)  # Arrow types of the other columns; None: text
    said: str = ""  # what was made of the file that a user should see

    def chunks(self, *, skip_nulls: bool = False) -> Iterator[RowChunk]:
        """The vectors of all rows. Raises `InputError` that names the first row that is none, or not finite."""
        start = 0
        for decoded, count, share, columns in self.batches():
            bad = [reject for reject in decoded.rejects if reject.reason != "no_value" or not skip_nulls]
            if bad:
                raise InputError(f"{self.path}, row {start + bad[0].index + 1}: {bad[0].message}")
            rows = np.repeat(decoded.indices, decoded.counts)
            self._check_finite(decoded.vectors, start + rows + 1)
            others = columns if len(rows) == count else {n: _taken(c, rows) for n, c in columns.items()}
            yield RowChunk(decoded.vectors, share, others, start + rows + 1, len(decoded.rejects))
            start += count
        if not start:
            raise InputError(f"{self.path} holds no vectors")

    def _check_finite(self, vectors: Array, rows: NDArray[np.int64]) -> None:
        if (bad := not_finite(vectors, impute=self.impute)).any():
            i, column = np.argwhere(bad)[0]
            name = f" ({self.names[column]})" if self.names else ""
            hint = NULL_HINT if np.isnan(vectors[i, column]) else ""
            raise InputError(f"{self.path}, row {rows[i]}: number {column + 1}{name} is {vectors[i, column]}{hint}")


def _taken(column: Any, rows: NDArray[np.int64]) -> Any:
    return [column[row] for row in rows] if isinstance(column, list) else column.take(rows)


def batch_of_vectors(vectors: Array, share: float) -> FileBatch:
    """A batch of rows that are a vector each."""
    n = len(vectors)
    return FileBatch(Decoded(vectors, np.arange(n), [], np.ones(n, np.int64)), n, share)


def rows_of_npy(path: str, wanted: Wanted, part: tuple[int, int] | None) -> Rows:
    """The rows of an .npy file, or of a part of it."""
    columns = resolved(ARRAY, wanted, path)
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

    return Rows(path, array.shape[1], batches, impute=wanted.impute, said=columns.said)


class Text(NamedTuple):
    """The records of a text, and how they become vectors."""

    records: Callable[[Any], Iterator[Any]]  # of a binary file
    load: Callable[[Any], Any]  # a record; what it raises rejects the row, as in `numbers`
    numbers: Callable[[Any], VectorBytes]  # of a loaded record
    others: Mapping[str, Callable[[Any], Any]]  # the other columns of a loaded record


def text_batches(opened: Opened, text: Text, dimensions: int) -> Iterator[FileBatch]:
    """The rows of a text."""
    records, step = text.records(opened.file), rows_of_batch(dimensions)
    while some := list(islice(records, step)):
        runs, rejects, indices = list[VectorBytes](), list[Reject](), list[int]()
        columns = {name: list[Any]([None]) * len(some) for name in text.others}
        for i, record in enumerate(some):
            try:
                value = text.load(record)
                for name, of in text.others.items():
                    columns[name][i] = of(value)
                runs.append(text.numbers(value))
                indices.append(i)
            except VectorError as error:
                rejects.append(Reject(i, error.reason, str(error)))
            except (ValueError, RecursionError) as error:
                rejects.append(Reject(i, "undecodable", str(error)))
        vectors = np.frombuffer(b"".join(runs)).reshape(-1, dimensions)
        counts = np.array([memoryview(run).nbytes for run in runs], np.int64) // (8 * dimensions)
        decoded = Decoded(vectors, np.array(indices, np.int64), rejects, counts)
        yield FileBatch(decoded, len(some), opened.share(), columns)


def lines(file: Any) -> Iterator[str]:
    """The lines of a text. Raises `ValueError` for a line of any length, and for bytes that are no text."""
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise ValueError(f"a line has more than {_MAX_LINE >> 20} MiB")
        try:
            yield line.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError("it is not text in UTF-8") from None


def rows_of_batch(d: int) -> int:
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // (8 * max(d, 1))))


def mapped_npy(file: str, path: str) -> Array:
    """The array (n, d) of a file, mapped into memory. Raises `InputError`, which calls the file `path`."""
    try:
        array = np.lib.format.open_memmap(file, mode="r")  # `np.load` would open archives, and advises to unpickle
    except ValueError as error:
        cause = str(error).partition(";")[0]  # bytes of the file follow
        raise InputError(f"{path} is not an .npy array of numbers, as numpy.save writes it: {cause}") from None
    if array.ndim != 2 or not array.shape[1] or array.dtype.kind not in "fiub":
        content = f"{array.dtype} of shape {array.shape}"
        raise InputError(f"{path} must hold real numbers of shape (rows, dimensions), not {content}")
    return array
