"""The rows of a file as vectors, in batches, so that a file may be larger than memory. Errors name the row."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.errors import InputError
from streampca.files.columns import FileOptions, resolved
from streampca.files.kinds import naming, seekable
from streampca.formats.packing import NO_VALUE, NULL_HINT, RowVectors
from streampca.pca.arrays import Array, not_finite

_BATCH_BYTES = 1 << 22
_BATCH_ROWS = 4096


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
        for (vectors, counts, misfits), share, columns in self.batches():
            for row, error in misfits:
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
        if (bad := not_finite(vectors, impute=self.impute)).any():
            i, column = np.argwhere(bad)[0]
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
