"""Reads the rows of Parquet and Arrow IPC files, and of record batches."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, choose_columns, refuse_patterns
from streampca.files.rows import (
    FileBatch,
    Rows,
    batch_rows,
    input_errors,
    no_vectors_error,
    open_seekable,
    open_stream,
    require_kind,
)
from streampca.formats.arrow import are_numbers, is_list, row_to_dict, validate, vectors_in, with_unread_as_bytes
from streampca.formats.errors import VectorError
from streampca.formats.fields import NumberFields

_BATCH_NUMBERS = 2**21  # how many numbers of a Parquet file are read at a time
_BUFFER_BYTES = 2**20  # how many bytes of each column are read at a time
_FILE_MAGIC = b"ARROW1"  # first and last bytes of a file in the IPC file format; a file in the stream format has others
# The footer of an Arrow file is a table of FlatBuffers:
#     footer:  place of the table (u4)
#     table:   distance back to the vtable (i4), fields
#     vtable:  size of the vtable (u2), size of the table (u2), offset of each field in the table (u2; 0: not set)
#     field:   distance to the blocks (u4)
#     blocks:  number of blocks (u4), blocks (`_BLOCK`), each with the place and the sizes of a batch
_BLOCK_FIELDS = (2, 3)  # the fields that lead to the dictionaries and to the record batches
_BLOCK = np.dtype([("offset", "<i8"), ("metadata_bytes", "<i4"), ("padding", "<i4"), ("body_bytes", "<i8")])
_PARQUET_MAGIC = b"PAR1"  # first and last bytes of a Parquet file
_SEVERAL_FILES = "it is several files, one behind the other: keep each of them, or write one file with all rows"
_MAX_PADDING = 128  # bytes between the last batch and the footer: the end mark, and perhaps an alignment


def rows_of_arrow(path: str, options: FileOptions, part: tuple[int, int] | None = None) -> Rows:
    """Open an Arrow IPC file, a Parquet file, or a range of a Parquet file's row groups."""
    with input_errors(path, pa.ArrowException), _open_source(path) as (schema, read_batches):
        columns = columns_of(schema, options, path)
        d = options.dimensions
        if d is None:
            batches = (batch for batch, _ in read_batches(columns.needed, None))
            d = _find_dimensions(batches, columns, path)
            # Choose again: d columns name the dimensions, once d is known.
            columns = columns_of(schema, options._replace(dimensions=d), path)

    fields = columns.create_fields(dimensions=d, value_name="record batch")

    def read() -> Iterator[FileBatch]:
        """Open the file again, and yield its rows in batches of bounded size."""
        names = list(dict.fromkeys([*columns.needed, *columns.other_columns]))
        step = batch_rows(d)
        with input_errors(path, pa.ArrowException, VectorError), _open_source(path) as (_, read_batches):
            for batch, share_read in read_batches(names, part):
                for start in range(0, len(batch), step):
                    yield batch_of(batch.slice(start, step), columns, fields, share_read)

    return Rows(
        path=path,
        dimensions=d,
        batches=read,
        impute=options.impute,
        names=columns.names,
        notes="; ".join(columns.notes),
        fields=fields,
        others={name: schema.field(name).type for name in columns.other_columns},
    )


def _find_dimensions(batches: Iterator[Any], columns: Columns, path: str) -> int:
    """Return the length of the first vector in record batches. Raises `InputError` if there is none."""
    read_names = columns.create_fields(dimensions=0, value_name="record batch").names
    for batch in batches:
        for i in range(len(batch)):
            # A text that is not UTF-8 would be an error in a column that is not needed.
            one_row = with_unread_as_bytes(batch.slice(i, 1), read_names)
            d = columns.count_dimensions(row_to_dict(one_row), path)
            if d:
                return d
    raise no_vectors_error(path, columns.where)


def columns_of(schema: Any, options: FileOptions, path: str) -> Columns:
    """Choose where the numbers are in record batches with this schema. Raises `InputError`."""
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{path} has several columns of one name: {', '.join(schema.names)}")
    example = {field.name: _example(field.type) for field in schema}
    columns = choose_columns(example, options, path)
    refuse_patterns(columns, path)
    return columns


def batch_of(batch: Any, columns: Columns, fields: NumberFields, share_read: float) -> FileBatch:
    """Return the vectors and other columns of a record batch.

    Raises `VectorError` if the columns cannot hold vectors.
    """
    return FileBatch(
        found=vectors_in(batch, fields),
        share=share_read,
        columns={name: batch.column(name) for name in columns.other_columns},
        places=fields.places,
    )


def _example(kind: Any) -> Any:
    """Return an example of a value of an Arrow type: 0.0 for numbers, text for other values."""
    if pa.types.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if is_list(kind):
        return [_example(kind.value_type)]
    if pa.types.is_null(kind):
        return None
    if pa.types.is_map(kind):
        return []  # a schema does not say which names a map has
    return 0.0 if are_numbers(kind) else str(kind)


def _open_source(path: str) -> AbstractContextManager[Any]:
    """Return a context that opens a Parquet or an Arrow file.

    The context yields the schema, and a function that yields record batches, each with the share of the file read so
    far.
    """
    kind, _ = require_kind(path)
    if kind == "parquet":
        return _open_parquet(path)
    with open_stream(path) as (file, _):
        is_file_format = file.peek(len(_FILE_MAGIC)).startswith(_FILE_MAGIC)
    return _open_arrow_file(path) if is_file_format else _open_arrow_stream(path)


@contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    """Open a Parquet file. Yields its schema, and the function that reads record batches."""
    # `pre_buffer` would read a whole row group at once.
    with (
        open_seekable(path) as file,
        pa.OSFile(file) if isinstance(file, str) else file as source,
        parquet.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False) as table,
    ):
        if table.num_row_groups:
            _refuse_joined_parquet(source, table.metadata)
        yield table.schema_arrow, partial(_read_parquet, table)


@contextmanager
def _open_arrow_stream(path: str) -> Iterator[Any]:
    """Open a file in Arrow's stream format. Yields its schema, and the function that reads record batches."""
    with open_stream(path) as (file, share_read), pa.ipc.open_stream(_MarkedStream(file)) as stream:
        yield stream.schema, partial(_read_stream, stream, file, share_read)


@contextmanager
def _open_arrow_file(path: str) -> Iterator[Any]:
    """Open a file in Arrow's file format. Yields its schema, and the function that reads record batches."""
    with (
        open_seekable(path) as file,
        pa.OSFile(file) if isinstance(file, str) else file as source,
        pa.ipc.open_file(source) as batches,
    ):
        _refuse_joined_arrow(source)
        yield batches.schema, partial(_read_file, batches)


def _read_parquet(table: Any, names: list[str], part: tuple[int, int] | None) -> Iterator[tuple[Any, float]]:
    """Yield record batches of the row groups, each with the share of the file read so far."""
    start, end = part or (0, table.num_row_groups)
    rows_read = 0
    for i in range(start, end):
        group = table.metadata.row_group(i)
        number_count = sum(group.column(j).num_values for j in range(group.num_columns))
        rows_per_batch = max(_BATCH_NUMBERS * group.num_rows // max(number_count, 1), 1)
        for batch in table.iter_batches(rows_per_batch, row_groups=[i], columns=names):
            rows_read += len(batch)
            yield batch, rows_read / table.metadata.num_rows


def _read_stream(
    stream: Any, file: Any, share_read: Callable[[], float], names: list[str], _part: tuple[int, int] | None
) -> Iterator[tuple[Any, float]]:
    """Yield the record batches of a stream. Raises `ValueError` if more bytes follow its end."""
    for batch in stream:
        yield _select_columns(batch, names), share_read()
    if file.read(1):
        raise ValueError("something follows the end of its Arrow stream, perhaps a second one: write it as one stream")


class _MarkedStream:
    """An Arrow stream that must end with its end mark: a stream without the mark has been cut.

    pyarrow stops reading at the end mark, so it meets the end of the file only if the mark is missing.
    """

    closed = False  # pyarrow asks for this attribute

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes. Raises `EOFError` at the end of the file."""
        data: bytes = self._file.read(size)
        if size and not data:
            raise EOFError("its Arrow stream has no end mark, so it was cut: copy or write it again")
        return data


def _refuse_joined_arrow(file: Any) -> None:
    """Raise `ValueError` if several Arrow files were joined: the wrong rows would be read."""
    footer_start, footer = _read_footer(file, _FILE_MAGIC)
    end_of_batches = _find_end_of_batches(footer)
    # Places in the footer count from the start of the last file, not of the whole.
    if end_of_batches and footer_start - end_of_batches > _MAX_PADDING:
        raise ValueError(_SEVERAL_FILES)


def _refuse_joined_parquet(file: Any, metadata: Any) -> None:
    """Raise `ValueError` if several Parquet files were joined: the wrong rows would be read."""
    footer_start, _ = _read_footer(file, _PARQUET_MAGIC)
    group = metadata.row_group(metadata.num_row_groups - 1)
    columns = [group.column(i) for i in range(group.num_columns)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    ends = [start + column.total_compressed_size for start, column in zip(starts, columns, strict=True)]
    end_of_numbers = max(ends)
    file.seek(end_of_numbers)
    # One file's last bytes, followed by the next file's first bytes.
    if 2 * _PARQUET_MAGIC in file.read(max(footer_start - end_of_numbers, 0)):
        raise ValueError(_SEVERAL_FILES)


def _read_footer(file: Any, magic: bytes) -> tuple[int, bytes]:
    """Return where the footer of a file starts, and its bytes."""
    length_bytes = 4
    footer_end = file.size() - len(magic) - length_bytes
    file.seek(footer_end)
    footer_start = footer_end - int.from_bytes(file.read(length_bytes), "little")
    file.seek(footer_start)
    return footer_start, file.read(footer_end - footer_start)


def _find_end_of_batches(footer: bytes) -> int:
    """Return where the last batch of an Arrow file ends, by its footer; 0 if the file has no batch.

    pyarrow does not show where the batches are. The comment above `_BLOCK_FIELDS` shows the layout of the footer.
    """

    def number_at(position: int, kind: str = "<u4") -> int:
        return int(np.frombuffer(footer, kind, count=1, offset=position)[0])

    table = number_at(0)
    vtable = table - number_at(table, "<i4")
    vtable_size = number_at(vtable, "<u2")
    end = 0
    for field in _BLOCK_FIELDS:
        entry = 2 + 2 + 2 * field  # behind two sizes and the offsets of earlier fields
        has_entry = entry < vtable_size
        field_offset = number_at(vtable + entry, "<u2") if has_entry else 0
        if not field_offset:
            continue
        field_place = table + field_offset
        blocks_place = field_place + number_at(field_place)
        block_count = number_at(blocks_place)
        blocks = np.frombuffer(footer, _BLOCK, count=block_count, offset=blocks_place + 4)
        ends = blocks["offset"] + blocks["metadata_bytes"] + blocks["body_bytes"]
        end = max(end, int(ends.max(initial=0)))
    return end


def _read_file(batches: Any, names: list[str], _part: tuple[int, int] | None) -> Iterator[tuple[Any, float]]:
    """Yield the record batches of a file in the IPC file format, each with the share read so far."""
    count = batches.num_record_batches
    for i in range(count):
        yield _select_columns(batches.get_batch(i), names), (i + 1) / count


def _select_columns(batch: Any, names: list[str]) -> Any:
    """Return the named columns of a record batch. Raises an error of pyarrow if the batch is damaged."""
    selected = batch.select(names)
    validate(selected)
    return selected
