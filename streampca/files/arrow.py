"""The rows of Parquet and Arrow IPC files, and of record batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, resolved
from streampca.files.rows import FileBatch, Rows, naming, opened, readable, rows_of_batch, seekable
from streampca.formats.arrow import are_numbers, is_list, vectors_in
from streampca.formats.errors import VectorError

_BATCH_NUMBERS = 2**21  # that are read at a time
_BUFFER = 2**20  # bytes of a column that are read at a time
_FILE_FORMAT = b"ARROW1\0\0"  # how a file begins that is not in the stream format; the stream follows


def rows_of_arrow(path: str, options: FileOptions, part: tuple[int, int] | None = None) -> Rows:
    """The rows of a file, or of a part of a Parquet file: from a row group to another."""
    with naming(path, pa.ArrowException), _source(path) as (schema, record_batches):
        columns = columns_of(schema, options, path)
        if (d := options.dimensions) is None:
            rows = (each.slice(i, 1) for each, _ in record_batches(columns.top, None) for i in range(len(each)))
            found = (columns.dimensions_in(row.to_pylist()[0], path) for row in rows)
            if (d := next(filter(None, found), None)) is None:
                raise InputError(f"{path} holds no vectors")
            columns = columns_of(schema, options._replace(dimensions=d), path)

    def batches() -> Iterator[FileBatch]:
        with naming(path, pa.ArrowException, VectorError), _source(path) as (_, record_batches):
            for whole, share in record_batches([*columns.top, *columns.others], part):
                for start in range(0, len(whole), step := rows_of_batch(d)):
                    yield batch_of(whole.slice(start, step), columns, d, share)

    others = {name: schema.field(name).type for name in columns.others}
    return Rows(path, d, batches, options.impute, columns.names, "; ".join(columns.said), others)


def columns_of(schema: Any, options: FileOptions, path: str) -> Columns:
    """Where the numbers are in record batches with this schema. Raises `InputError`."""
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{path} has several columns of one name: {', '.join(schema.names)}")
    return resolved({field.name: _example(field.type) for field in schema}, options, path)


def batch_of(batch: Any, columns: Columns, dimensions: int, share: float) -> FileBatch:
    """The rows of a record batch. Raises `VectorError` if its columns cannot hold vectors."""
    found = vectors_in(batch, columns.paths, dimensions, impute=True)
    return FileBatch(found, share, {name: batch.column(name) for name in columns.others})


def _example(kind: Any) -> Any:
    """A value of this type: 0.0 of those that are numbers, and text of others."""
    if pa.types.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if is_list(kind):
        return [_example(kind.value_type)]
    return None if pa.types.is_null(kind) else 0.0 if are_numbers(kind) else str(kind)


@contextmanager
def _source(path: str) -> Iterator[Any]:
    """The schema of a file, and a function that yields its record batches, and the share that has been read."""
    if readable(path)[0] == "parquet":
        with seekable(path) as file, parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as table:
            # else it would read the whole row group
            yield table.schema_arrow, partial(_of_parquet, table)
        return
    with opened(path) as (file, share):
        if file.peek(len(_FILE_FORMAT)).startswith(_FILE_FORMAT):
            file.read(len(_FILE_FORMAT))
        with pa.ipc.open_stream(file) as stream:
            yield stream.schema, partial(_of_stream, stream, share)


def _of_parquet(table: Any, names: list[str], part: tuple[int, int] | None) -> Iterator[tuple[Any, float]]:
    total, done = table.metadata.num_rows, 0
    for i in range(*(part or (0, table.num_row_groups))):
        group = table.metadata.row_group(i)
        entries = sum(group.column(j).num_values for j in range(group.num_columns))  # bytes say little: encodings
        step = max(_BATCH_NUMBERS * group.num_rows // max(entries, 1), 1)
        for batch in table.iter_batches(step, row_groups=[i], columns=names):
            done += len(batch)
            yield batch, done / total


def _of_stream(
    stream: Any, share: Callable[[], float], names: list[str], _: tuple[int, int] | None
) -> Iterator[tuple[Any, float]]:
    for whole in stream:
        batch = whole.select(names)
        batch.validate(full=True)  # offsets that point outside the buffers are refused
        yield batch, share()
