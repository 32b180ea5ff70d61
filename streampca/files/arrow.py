"""The rows of Parquet and Arrow IPC files, and of record batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, choose_columns
from streampca.files.rows import (
    FileBatch,
    Rows,
    batch_rows,
    input_errors,
    open_seekable,
    open_stream,
    require_kind,
)
from streampca.formats.arrow import are_numbers, is_list, vectors_in
from streampca.formats.errors import VectorError

_BATCH_NUMBERS = 2**21  # that are read at a time
_BUFFER_BYTES = 2**20  # of a column that are read at a time
_FILE_MAGIC = b"ARROW1\0\0"  # the beginning of a file in the IPC file format; the same stream follows


def rows_of_arrow(path: str, options: FileOptions, part: tuple[int, int] | None = None) -> Rows:
    """Open a Parquet or an Arrow IPC file. `part` is its start and end in row groups of Parquet."""
    with input_errors(path, pa.ArrowException), _open_source(path) as (schema, read_batches):
        columns = columns_of(schema, options, path)
        d = options.dimensions
        if d is None:
            batches = (batch for batch, _ in read_batches(columns.with_numbers, None))
            d = _find_dimensions(batches, columns, path)
            # Columns give the dimensions their names only if there are d of them, so they are chosen again.
            columns = columns_of(schema, options._replace(dimensions=d), path)

    def read() -> Iterator[FileBatch]:
        names = [*columns.with_numbers, *columns.others]
        step = batch_rows(d)
        with input_errors(path, pa.ArrowException, VectorError), _open_source(path) as (_, read_batches):
            for batch, share in read_batches(names, part):
                for start in range(0, len(batch), step):
                    yield batch_of(batch.slice(start, step), columns, d, share)

    return Rows(
        path=path,
        dimensions=d,
        batches=read,
        impute=options.impute,
        names=columns.names,
        notes="; ".join(columns.notes),
        others={name: schema.field(name).type for name in columns.others},
    )


def _find_dimensions(batches: Iterator[Any], columns: Columns, path: str) -> int:
    """Return how many numbers the first vector in record batches has. Raises `InputError` if there is none."""
    for batch in batches:
        for i in range(len(batch)):
            row = batch.slice(i, 1).to_pylist()[0]
            d = columns.dimensions_in(row, path)
            if d:
                return d
    raise InputError(f"{path} holds no vectors")


def columns_of(schema: Any, options: FileOptions, path: str) -> Columns:
    """Choose where the numbers are in record batches with this schema. Raises `InputError`."""
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{path} has several columns of one name: {', '.join(schema.names)}")
    example = {field.name: _example(field.type) for field in schema}
    return choose_columns(example, options, path)


def batch_of(batch: Any, columns: Columns, dimensions: int, share: float) -> FileBatch:
    """Return the rows of a record batch. Raises `VectorError` if its columns cannot hold vectors."""
    found = vectors_in(batch, columns.paths, dimensions, impute=True)
    return FileBatch(found, share, {name: batch.column(name) for name in columns.others})


def _example(kind: Any) -> Any:
    """Return an example of a value of an Arrow type: 0.0 for numbers, and text for other values."""
    if pa.types.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if is_list(kind):
        return [_example(kind.value_type)]
    if pa.types.is_null(kind):
        return None
    return 0.0 if are_numbers(kind) else str(kind)


@contextmanager
def _open_source(path: str) -> Iterator[Any]:
    """Open a file. Yields its schema, and a function that reads its record batches.

    The function takes the names of columns and a part of the file. With each batch it yields the share of the file that
    has been read.
    """
    kind, _ = require_kind(path)
    if kind == "parquet":
        # With `pre_buffer`, a whole row group would be read at once.
        with (
            open_seekable(path) as file,
            parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False) as table,
        ):
            yield table.schema_arrow, partial(_read_parquet, table)
        return
    with open_stream(path) as (file, share_read):
        if file.peek(len(_FILE_MAGIC)).startswith(_FILE_MAGIC):
            file.read(len(_FILE_MAGIC))
        with pa.ipc.open_stream(file) as stream:
            yield stream.schema, partial(_read_stream, stream, share_read)


def _read_parquet(table: Any, names: list[str], part: tuple[int, int] | None) -> Iterator[tuple[Any, float]]:
    start, end = part or (0, table.num_row_groups)
    rows_read = 0
    for i in range(start, end):
        group = table.metadata.row_group(i)
        # Sizes in bytes do not tell how many numbers a group holds, since they are encoded.
        numbers = sum(group.column(j).num_values for j in range(group.num_columns))
        step = max(_BATCH_NUMBERS * group.num_rows // max(numbers, 1), 1)
        for batch in table.iter_batches(step, row_groups=[i], columns=names):
            rows_read += len(batch)
            yield batch, rows_read / table.metadata.num_rows


def _read_stream(
    stream: Any, share_read: Callable[[], float], names: list[str], _part: tuple[int, int] | None
) -> Iterator[tuple[Any, float]]:
    for batch in stream:
        chosen = batch.select(names)
        chosen.validate(full=True)  # offsets that point outside the buffers are refused
        yield chosen, share_read()
