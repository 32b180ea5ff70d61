"""The rows of Parquet and Arrow IPC files, and of record batches."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from streampca.errors import InputError
from streampca.files.columns import ARRAY, NULL, NUMBER, Columns, Tree, Wanted, dimensions_in, resolved
from streampca.files.kinds import naming, opened, readable, seekable
from streampca.files.rows import FileBatch, Rows, rows_of_batch
from streampca.formats.arrow import is_list, vectors_in
from streampca.formats.batch import Decoded, Reject
from streampca.formats.packing import VectorError

_BATCH_NUMBERS = 2**21  # that are read at a time
_BUFFER = 2**20  # bytes of a column that are read at a time
_FILE_FORMAT = b"ARROW1\0\0"  # how a file begins that is not in the stream format; the stream follows


def rows_of_arrow(path: str, wanted: Wanted, part: tuple[int, int] | None = None) -> Rows:
    """The rows of a file, or of a part of a Parquet file: from a row group to another."""
    with naming(path, pa.ArrowException):
        with _source(path) as (schema, _):
            columns = columns_of(schema, wanted, path)
        others = others_of(schema, columns, wanted)
        d = wanted.dimensions or _dimensions(path, columns)

    def batches() -> Iterator[FileBatch]:
        with naming(path, pa.ArrowException), _source(path) as (_, record_batches):
            for whole, share in record_batches([*columns.top, *others], part):
                for start in range(0, len(whole), step := rows_of_batch(d)):
                    yield batch_of(whole.slice(start, step), columns, others, d, share)

    types = {name: schema.field(name).type for name in others}
    return Rows(path, d, batches, columns.named(d), wanted.impute, types, columns.said)


def columns_of(schema: Any, wanted: Wanted, path: str) -> Columns:
    """Where the numbers are in record batches with this schema. Raises `InputError`."""
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{path} has several columns of one name: {', '.join(schema.names)}")
    return resolved({field.name: _tree(field.type) for field in schema}, wanted, path)


def others_of(schema: Any, columns: Columns, wanted: Wanted) -> list[str]:
    """The further columns that are wanted."""
    if wanted.others is True:
        return [name for name in schema.names if name not in columns.top]
    return list(wanted.others or ())


def batch_of(batch: Any, columns: Columns, others: Any, dimensions: int, share: float) -> FileBatch:
    """The rows of a record batch. Raises `InputError` if its columns cannot hold vectors."""
    try:
        found = vectors_in(batch, columns.paths, dimensions, impute=True)
    except VectorError as error:
        raise InputError(str(error)) from None
    rejects = [Reject(row, error.reason, str(error)) for row, error in found.misfits]
    holding = np.flatnonzero(found.counts)
    decoded = Decoded(found.vectors, holding, rejects, found.counts[holding])
    return FileBatch(decoded, len(batch), share, {name: batch.column(name) for name in others})


def _tree(kind: Any) -> Tree:
    if pa.types.is_struct(kind):
        return {field.name: _tree(field.type) for field in kind}
    if is_list(kind):
        inner = _tree(kind.value_type)
        return ARRAY if isinstance(inner, str) else inner
    if pa.types.is_null(kind):
        return NULL
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return NUMBER if is_number or pa.types.is_boolean(kind) else str(kind)


def _dimensions(path: str, columns: Columns) -> int:
    """How many numbers the first row with a vector has."""
    with _source(path) as (_, batches):
        for batch, _ in batches(columns.top, None):
            for row in range(len(batch)):
                value = batch.slice(row, 1).to_pylist()[0]
                if not all(inner is None for inner in value.values()):
                    return dimensions_in(value, columns, path)
    raise InputError(f"{path} holds no vectors")


@contextmanager
def _source(path: str) -> Iterator[Any]:
    """The schema of a file, and a function that yields its record batches, and the share that has been read."""
    if readable(path).name == "parquet":
        with seekable(path) as file, parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as table:
            # else it would read the whole row group
            yield table.schema_arrow, lambda names, part: _of_parquet(table, names, part)
        return
    with opened(path) as source:
        if source.file.peek(len(_FILE_FORMAT)).startswith(_FILE_FORMAT):
            source.file.read(len(_FILE_FORMAT))
        with pa.ipc.open_stream(source.file) as stream:
            yield stream.schema, lambda names, part: _of_stream(stream, source.share, names)


def _of_parquet(table: Any, names: list[str], part: tuple[int, int] | None) -> Iterator[tuple[Any, float]]:
    total, done = table.metadata.num_rows, 0
    for i in range(*(part or (0, table.num_row_groups))):
        group = table.metadata.row_group(i)
        entries = sum(group.column(j).num_values for j in range(group.num_columns))  # bytes say little: encodings
        step = max(_BATCH_NUMBERS * group.num_rows // max(entries, 1), 1)
        for batch in table.iter_batches(step, row_groups=[i], columns=names):
            done += len(batch)
            yield batch, done / total


def _of_stream(stream: Any, share: Any, names: list[str]) -> Iterator[tuple[Any, float]]:
    for whole in stream:
        batch = whole.select(names)
        batch.validate(full=True)  # offsets that point outside the buffers are refused
        step = max(8 * _BATCH_NUMBERS * len(batch) // max(batch.nbytes, 1), 1)
        for start in range(0, len(batch), step):
            yield batch.slice(start, step), share()
