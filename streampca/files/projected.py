"""Writes coordinates and residuals to .npy, .csv, .jsonl and .parquet files, chunk by chunk."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from streampca.errors import InputError, explain_missing_extra, on_one_line
from streampca.files.rows import ALL_FIELDS
from streampca.formats import npy, writer_of
from streampca.pca.arrays import Array

TABLE_SUFFIXES = (".csv", ".parquet")  # suffixes of files into which columns of the input are copied, too
Write = Callable[[Array, Array, Mapping[str, Any]], object]
"""A function that appends n rows: coordinates (n, k), residuals (n,), and columns copied from the input, by name."""


@contextmanager
def projected_file(path: Path, k: int, copied_types: Mapping[str, Any]) -> Iterator[Write]:
    """Write a file of projected vectors. Raises `InputError`.

    Yields the function that appends rows with k coordinates. The file appears only if the `with` block ends without an
    error. `copied_types` has the Arrow type of each column that is copied from the input; None means text.
    """
    open_writer = _WRITERS.get(path.suffix)
    if open_writer is None:
        raise InputError(f"{path}: only .npy, .csv, .jsonl and .parquet files can be written")
    clashes = copied_types.keys() & {"residual", "coordinates", *_name_coordinates(k)}
    if clashes:
        raise InputError(
            f"a column {min(clashes)} would be written to {path}, but the file that is read has that column"
        )
    temporary = path.with_name(f"~{path.name}")
    try:
        with temporary.open("wb") as file, open_writer(file, k, copied_types) as write:
            yield write
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _encode_json(value: Any) -> bytes:
    """Return a value as JSON."""
    try:
        return orjson.dumps(value)
    except TypeError:  # integers beyond 64 bits, and text such as half an emoji
        return json.dumps(value).encode()


def _name_coordinates(k: int) -> list[str]:
    """Return the names of the columns with coordinates in CSV."""
    return [f"coordinate_{i + 1}" for i in range(k)]


@contextmanager
def _write_npy(file: BinaryIO, k: int, copied_types: Mapping[str, Any]) -> Iterator[Write]:
    """Write only the coordinates, as an array (n, k). Only writers of other formats need `copied_types`."""
    dtype = np.dtype("<f8")
    # The number of rows is not known yet. The right header has the same size, and overwrites this one.
    header_size = file.write(npy.encode_header(dtype, (0, k)))

    def write(coordinates: Array, residual: Array, columns: Mapping[str, Any]) -> None:
        file.write(np.ascontiguousarray(coordinates, dtype).data)

    yield write
    row_count = (file.tell() - header_size) // (k * dtype.itemsize)
    file.seek(0)
    file.write(npy.encode_header(dtype, (row_count, k)))


@contextmanager
def _write_jsonl(file: BinaryIO, k: int, copied_types: Mapping[str, Any]) -> Iterator[Write]:
    """Write a JSON object on each line: the fields copied from the input, the coordinates and the residual.

    Only writers of other formats need `k` and `copied_types`.
    """
    json_writer = writer_of("json")

    def write(coordinates: Array, residual: Array, columns: Mapping[str, Any]) -> None:
        """Write an object for each row. If the input is JSON Lines, its fields are copied."""
        results = json_writer.write({"coordinates": coordinates, "residual": residual})
        no_fields: list[dict[str, Any]] = [{}] * len(results)
        copied_fields = columns.get(ALL_FIELDS, no_fields)  # a dict for each row
        for fields, result in zip(copied_fields, results, strict=True):
            clashes = fields.keys() & {"coordinates", "residual"}
            if clashes:
                raise InputError(f"a field {min(clashes)} would be written, but the file that is read has that field")
            file.write(_join_objects(fields, result) + b"\n")

    yield write


def _join_objects(fields: Mapping[str, Any], result: bytes) -> bytes:
    """Return one JSON object with fields and those of `result`: {"id":1} and {"residual":0} → {"id":1,"residual":0}."""
    if not fields:
        return result
    return _encode_json(fields).removesuffix(b"}") + b"," + result.removeprefix(b"{")


@contextmanager
def _write_csv(file: BinaryIO, k: int, copied_types: Mapping[str, Any]) -> Iterator[Write]:
    """Write a header, the columns copied from the input, a column for each coordinate, and the residual."""
    # Text such as half an emoji is not valid UTF-8.
    text = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*copied_types, *_name_coordinates(k), "residual"])

    def write(coordinates: Array, residual: Array, columns: Mapping[str, Any]) -> None:
        copied_cells = [_to_csv_cells(name, columns[name]) for name in copied_types]
        table.writerows(zip(*copied_cells, *coordinates.T.tolist(), residual.tolist(), strict=True))

    yield write
    text.detach()  # flushes, and leaves the file open


def _to_csv_cells(name: str, column: Any) -> list[Any]:
    """Return the cells of a column, an Arrow array or an array of objects, so that `csv.writer` takes them.

    Raises `InputError`.
    """
    if isinstance(column, np.ndarray):
        # Python would write True, not true.
        return [_encode_json(value).decode() if isinstance(value, dict | list | bool) else value for value in column]
    import pyarrow as pa

    try:
        texts: list[str] = column.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        raise InputError(f"column {name}, {column.type}, cannot be written as CSV: write a .parquet file") from None
    return texts


@contextmanager
def _write_parquet(file: BinaryIO, k: int, copied_types: Mapping[str, Any]) -> Iterator[Write]:
    """Yield a function that writes rows: the columns copied from the input, the coordinates as lists, the residual."""
    with explain_missing_extra("arrow", needed_by="writing Parquet"):
        import pyarrow as pa
        from pyarrow import parquet

        from streampca.formats.arrow import column_of
    # Columns of text have the type None.
    types = {name: pa.string() if arrow_type is None else arrow_type for name, arrow_type in copied_types.items()}
    schema = pa.schema({**types, "coordinates": pa.list_(pa.float64(), k), "residual": pa.float64()})

    with parquet.ParquetWriter(file, schema) as writer:

        def write(coordinates: Array, residual: Array, columns: Mapping[str, Any]) -> None:
            """Append a record batch with the schema. Raises `InputError` if a value does not have its column's type."""
            copied_columns = [columns[name] for name in copied_types]
            arrays = [*copied_columns, column_of(coordinates), residual]  # in the order of the schema
            try:
                batch = pa.record_batch(arrays, schema=schema)
            except (pa.ArrowException, OverflowError, UnicodeError) as error:
                # For JSON Lines, the types come from the first row, and a field may have another type in a later row.
                raise InputError(
                    "Parquet cannot hold the columns copied from the input, so write a .jsonl file: "
                    f"{on_one_line(error)}"
                ) from None
            writer.write_batch(batch)

        yield write


_WRITERS = {
    ".npy": _write_npy, ".csv": _write_csv, ".jsonl": _write_jsonl, ".ndjson": _write_jsonl, ".parquet": _write_parquet,
}  # fmt: skip
