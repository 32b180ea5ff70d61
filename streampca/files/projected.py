"""Writes coordinates and residuals to .npy, .csv, .jsonl and .parquet files, chunk by chunk."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from streampca.errors import InputError, naming_the_extra
from streampca.formats import npy, writer_of
from streampca.pca.arrays import Array

TABLES = (".csv", ".parquet")  # files that keep the other columns
Write = Callable[[Array, Array, Mapping[str, Any]], object]
"""Takes coordinates (n, k), residuals (n,), and the other columns, of a table."""


@contextmanager
def projected_file(path: Path, k: int, others: Mapping[str, Any]) -> Iterator[Write]:
    """Write a file of vectors that were projected. Raises `InputError`.

    Yields the function that appends rows. The file appears when the block ends without an error.

    `others` are the other columns of a table, by name, with their Arrow types, or None for text. The columns for
    coordinates and residuals follow them. An .npy file holds only the coordinates, as an array (n, k).
    """
    open_writer = _WRITERS.get(path.suffix)
    if open_writer is None:
        raise InputError(f"{path}: only .npy, .csv, .jsonl and .parquet files can be written")
    clashes = others.keys() & {"residual", "coordinates", *_headings(k)}
    if clashes:
        raise InputError(
            f"a column {min(clashes)} would be written to {path}, but the file that is read has that column"
        )
    temporary = path.with_name(f"~{path.name}")
    try:
        with temporary.open("wb") as file, open_writer(file, k, others) as write:
            yield write
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _headings(k: int) -> list[str]:
    """Return the names of the columns with coordinates in CSV."""
    return [f"coordinate_{i + 1}" for i in range(k)]


@contextmanager
def _write_npy(file: BinaryIO, k: int, others: Mapping[str, Any]) -> Iterator[Write]:
    dtype = np.dtype("<f8")
    # NumPy pads headers, so that the number of rows can be written into the header when it is known.
    start = file.write(npy.encode_header(dtype, (0, k)))
    yield lambda coordinates, residual, columns: file.write(np.ascontiguousarray(coordinates, dtype).data)
    rows = (file.tell() - start) // (k * dtype.itemsize)
    file.seek(0)
    file.write(npy.encode_header(dtype, (rows, k)))


@contextmanager
def _write_jsonl(file: BinaryIO, k: int, others: Mapping[str, Any]) -> Iterator[Write]:
    writer = writer_of("json")

    def write(coordinates: Array, residual: Array, columns: Mapping[str, Any]) -> None:
        for value in writer.write({"coordinates": coordinates, "residual": residual}):
            file.write(value + b"\n")

    yield write


@contextmanager
def _write_csv(file: BinaryIO, k: int, others: Mapping[str, Any]) -> Iterator[Write]:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*others, *_headings(k), "residual"])

    def write(coordinates: Array, residual: Array, columns: Mapping[str, Any]) -> None:
        texts = [columns[name] if kind is None else _to_texts(name, columns[name]) for name, kind in others.items()]
        table.writerows(zip(*texts, *coordinates.T.tolist(), residual.tolist(), strict=True))

    yield write
    text.detach()  # flushes, and leaves the file open


def _to_texts(name: str, column: Any) -> list[str]:
    """Return the texts of a column of Arrow. Raises `InputError`."""
    import pyarrow as pa

    try:
        texts: list[str] = column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        raise InputError(f"column {name}, {column.type}, cannot be written as CSV: write a .parquet file") from None
    return texts


@contextmanager
def _write_parquet(file: BinaryIO, k: int, others: Mapping[str, Any]) -> Iterator[Write]:
    with naming_the_extra("writing Parquet", "arrow"):
        import pyarrow as pa
        from pyarrow import parquet

        from streampca.formats.arrow import column_of
    types = {name: pa.string() if kind is None else kind for name, kind in others.items()}
    schema = pa.schema({**types, "coordinates": pa.list_(pa.float64(), k), "residual": pa.float64()})

    def write(coordinates: Array, residual: Array, columns: Mapping[str, Any]) -> None:
        arrays = [*(columns[name] for name in others), column_of(coordinates), residual]
        writer.write_batch(pa.record_batch(arrays, schema=schema))

    with parquet.ParquetWriter(file, schema) as writer:
        yield write


_WRITERS = {
    ".npy": _write_npy, ".csv": _write_csv, ".jsonl": _write_jsonl, ".ndjson": _write_jsonl, ".parquet": _write_parquet,
}  # fmt: skip
