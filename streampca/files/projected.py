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
    """A function that appends rows to a file, which appears at the end of the block. Raises `InputError`.

    A table gets columns for coordinates and residuals after the `others`, which have these Arrow types, None for text.
    An .npy file holds only the coordinates, as an array (n, k).
    """
    opener = {".npy": _npy, ".csv": _csv, ".jsonl": _jsonl, ".ndjson": _jsonl, ".parquet": _parquet}.get(path.suffix)
    if opener is None:
        raise InputError(f"{path}: only .npy, .csv, .jsonl and .parquet files can be written")
    if clash := others.keys() & {"residual", "coordinates", *_headings(k)}:
        raise InputError(f"a column {min(clash)} would be written to {path}, but the file that is read has that column")
    temporary = path.with_name(f"~{path.name}")
    try:
        with temporary.open("wb") as file, contextmanager(opener)(file, k, others) as write:
            yield write
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _headings(k: int) -> list[str]:
    return [f"coordinate_{i + 1}" for i in range(k)]


def _npy(file: BinaryIO, k: int, others: Mapping[str, Any]) -> Iterator[Write]:
    dtype = np.dtype("<f8")
    start = file.write(npy.encode_header(dtype, (0, k)))  # with room for more rows
    yield lambda coordinates, residual, columns: file.write(np.ascontiguousarray(coordinates, dtype).data)
    rows = (file.tell() - start) // (k * dtype.itemsize)
    file.seek(0)
    file.write(npy.encode_header(dtype, (rows, k)))


def _jsonl(file: BinaryIO, k: int, others: Mapping[str, Any]) -> Iterator[Write]:
    writer = writer_of("json")
    yield lambda coordinates, residual, columns: file.writelines(
        value + b"\n" for value in writer.write({"coordinates": coordinates, "residual": residual})
    )


def _csv(file: BinaryIO, k: int, others: Mapping[str, Any]) -> Iterator[Write]:
    text = io.TextIOWrapper(file, "utf-8", newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*others, *_headings(k), "residual"])

    def write(coordinates: Array, residual: Array, columns: Mapping[str, Any]) -> None:
        texts = [columns[name] if kind is None else _texts(name, columns[name]) for name, kind in others.items()]
        table.writerows(zip(*texts, *coordinates.T.tolist(), residual.tolist(), strict=True))

    yield write
    text.detach()  # flushes


def _texts(name: str, column: Any) -> list[str]:
    import pyarrow as pa

    try:
        texts: list[str] = column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        raise InputError(f"column {name}, {column.type}, cannot be written as CSV: write a .parquet file") from None
    return texts


def _parquet(file: BinaryIO, k: int, others: Mapping[str, Any]) -> Iterator[Write]:
    with naming_the_extra("writing Parquet", "arrow"):
        import pyarrow as pa
        from pyarrow import parquet

        from streampca.formats.arrow import column_of
    kinds = {name: pa.string() if kind is None else kind for name, kind in others.items()}
    schema = pa.schema({**kinds, "coordinates": pa.list_(pa.float64(), k), "residual": pa.float64()})

    def write(coordinates: Array, residual: Array, columns: Mapping[str, Any]) -> None:
        arrays = [*(columns[name] for name in others), column_of(coordinates), residual]
        writer.write_batch(pa.record_batch(arrays, schema=schema))

    with parquet.ParquetWriter(file, schema) as writer:
        yield write
