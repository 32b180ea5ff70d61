"""Reads the rows of Parquet and Arrow IPC files, and of record batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, choose_columns, refuse_remaining_wildcards
from streampca.files.rows import (
    FileBatch,
    Rows,
    choose_batch_size,
    input_errors,
    no_vectors_error,
    open_seekable,
    open_stream,
    require_kind,
)
from streampca.formats.arrow import are_numbers, is_list, row_to_dict, validate, vectors_in, with_texts_as_bytes
from streampca.formats.errors import VectorError
from streampca.formats.fields import NumberFields

_NUMBERS_PER_BATCH = 2**21  # how many numbers of a Parquet file are read at a time
_BUFFER_BYTES = 2**20  # how many bytes of each column are read at a time
_FILE_MAGIC = b"ARROW1"  # first and last bytes of a file in the IPC file format; a file in the stream format has others
_BLOCK_FIELDS = (2, 3)  # numbers of the footer's fields `dictionaries` and `recordBatches`
_BLOCK = np.dtype([("offset", "<i8"), ("metadata_bytes", "<i4"), ("padding", "<i4"), ("body_bytes", "<i8")])
_PARQUET_MAGIC = b"PAR1"  # first and last bytes of a Parquet file
_SEVERAL_FILES = "it is several files, one behind the other: keep each of them, or write one file with all rows"
_MAX_PADDING = 128  # bytes between the last batch and the footer: the end mark, and perhaps an alignment


def rows_of_arrow(path: str, options: FileOptions, row_group_bounds: tuple[int, int] | None = None) -> Rows:
    """Open an Arrow IPC file or a Parquet file; of Parquet, only the row groups within `row_group_bounds` if given."""
    with input_errors(path, pa.ArrowException), _open_tables(path) as tables:
        schema = tables.schema
        columns = choose_columns_by_schema(schema, options, path)
        d = options.dimensions
        if d is None:
            d = _find_dimensions(tables, columns, path)
            # Choose again, now with d: if there are as many paths as dimensions, the paths become the names.
            columns = choose_columns_by_schema(schema, options._replace(dimensions=d), path)
    vector_reader = columns.create_vector_reader(dimensions=d, value_name="record batch")
    return Rows(
        path=path,
        dimensions=d,
        batches=partial(
            _read_rows, path=path, row_group_bounds=row_group_bounds, columns=columns, vector_reader=vector_reader
        ),
        impute=options.impute,
        names=columns.names,
        notes="; ".join(columns.notes),
        vector_reader=vector_reader,
        other_types={name: schema.field(name).type for name in columns.other_columns},
    )


def _read_rows(
    path: str, row_group_bounds: tuple[int, int] | None, columns: Columns, vector_reader: NumberFields
) -> Iterator[FileBatch]:
    """Open a file, and yield its rows, or those of a range of row groups, in batches of bounded size."""
    names = list(dict.fromkeys([*columns.needed, *columns.other_columns]))
    batch_size = choose_batch_size(vector_reader.dimensions)
    with input_errors(path, pa.ArrowException, VectorError), _open_tables(path) as tables:
        for batch, progress in tables.read(names, row_group_bounds):
            for start in range(0, len(batch), batch_size):
                yield read_record_batch(batch.slice(start, batch_size), columns, vector_reader, progress)


def _find_dimensions(tables: "_Tables", columns: Columns, path: str) -> int:
    """Return the length of the first vector in a file. Raises `InputError` if there is none."""
    needed_names = columns.list_entry_names()  # of columns, and of fields in them
    all_row_groups = None
    for batch, _ in tables.read(columns.needed, all_row_groups):
        for i in range(len(batch)):
            # Only texts in needed fields are decoded: any other text may not be UTF-8, and would raise an error.
            one_row = with_texts_as_bytes(batch.slice(i, 1), except_names=needed_names)
            d = columns.count_dimensions(row_to_dict(one_row), path)
            if d:
                return d
    raise no_vectors_error(path, columns.where)


def choose_columns_by_schema(schema: Any, options: FileOptions, path: str) -> Columns:
    """Choose where the numbers are in record batches with this schema. Raises `InputError`."""
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{path} has several columns of one name: {', '.join(schema.names)}")
    example_row = {field.name: _make_example(field.type) for field in schema}
    columns = choose_columns(example_row, options, path)  # replaces wildcards by the names in the example that match
    # A schema does not list the names in a map or a JSON text. So wildcards for these names remain, and are refused.
    refuse_remaining_wildcards(columns, path)
    return columns


def read_record_batch(batch: Any, columns: Columns, vector_reader: NumberFields, progress: float) -> FileBatch:
    """Return the vectors and other columns of a record batch. `progress` is the share of the file read so far.

    The result also has the reader's `element_indices`, which remember the index of each element of an array, such as 0
    for `temp` in [{"id": "temp", "v": 1}, {"id": "hum", "v": 2}]. If an element is at another index in a later row, the
    user is warned. Raises `VectorError` if the columns cannot hold vectors.
    """
    return FileBatch(
        row_vectors=vectors_in(batch, vector_reader),
        progress=progress,
        other_columns={name: batch.column(name) for name in columns.other_columns},
        element_indices=vector_reader.element_indices,
    )


def _make_example(arrow_type: Any) -> Any:
    """Return an example of a value of an Arrow type, as JSON: 0.0 for a number, the type's name as a text for others.

    The example of a map is empty, since a type does not say which names a map has.
    """
    if pa.types.is_struct(arrow_type):
        return {field.name: _make_example(field.type) for field in arrow_type}
    if is_list(arrow_type):
        return [_make_example(arrow_type.value_type)]
    if pa.types.is_null(arrow_type):
        return None
    if pa.types.is_map(arrow_type):
        return []  # a map is a list of pairs
    return 0.0 if are_numbers(arrow_type) else str(arrow_type)


class _Tables(NamedTuple):
    """The record batches of an open file."""

    schema: Any
    read: Callable[[Sequence[str], tuple[int, int] | None], Iterator[tuple[Any, float]]]
    """Yields record batches with the named columns, each with the share of the file read so far.

    Of Parquet, reads only the row groups within bounds if given.
    """


def _open_tables(path: str) -> AbstractContextManager[_Tables]:
    """Open a Parquet or an Arrow file."""
    kind, _ = require_kind(path)
    if kind == "parquet":
        return _open_parquet(path)
    with open_stream(path) as (file, _):
        is_file_format = file.peek(len(_FILE_MAGIC)).startswith(_FILE_MAGIC)
    return _open_arrow_file(path) if is_file_format else _open_arrow_stream(path)


@contextmanager
def _open_random_access(path: str) -> Iterator[Any]:
    """Open a file, so that pyarrow can read it from any position."""
    with open_seekable(path) as path_or_file:
        file = pa.OSFile(path_or_file) if isinstance(path_or_file, str) else path_or_file
        with file:
            yield file


@contextmanager
def _open_parquet(path: str) -> Iterator[_Tables]:
    """Open a Parquet file."""
    # `pre_buffer` would read a whole row group at once.
    with (
        _open_random_access(path) as source,
        parquet.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False) as table,
    ):
        if table.num_row_groups:
            _refuse_concatenated_parquet(source, table.metadata)
        yield _Tables(table.schema_arrow, partial(_read_parquet, table))


@contextmanager
def _open_arrow_stream(path: str) -> Iterator[_Tables]:
    """Open a file in Arrow's stream format."""
    with open_stream(path) as (file, compute_progress), pa.ipc.open_stream(_MarkedStream(file)) as stream:
        yield _Tables(stream.schema, partial(_read_stream, stream, file, compute_progress))


@contextmanager
def _open_arrow_file(path: str) -> Iterator[_Tables]:
    """Open a file in Arrow's file format."""
    with _open_random_access(path) as source, pa.ipc.open_file(source) as batches:
        _refuse_concatenated_arrow(source)
        yield _Tables(batches.schema, partial(_read_file, batches))


def _read_parquet(
    table: Any, names: Sequence[str], row_group_bounds: tuple[int, int] | None
) -> Iterator[tuple[Any, float]]:
    """Yield record batches of the row groups, each with the share of their rows that was read so far."""
    start, end = row_group_bounds or (0, table.num_row_groups)
    groups = {i: table.metadata.row_group(i) for i in range(start, end)}
    row_count = sum(group.num_rows for group in groups.values())
    rows_read = 0
    for i, group in groups.items():
        # All columns count, even if only some are read: batches are then smaller, but never too large. A list in a row
        # counts as several numbers.
        number_count = sum(group.column(j).num_values for j in range(group.num_columns))
        # As many rows as hold `_NUMBERS_PER_BATCH` numbers, but at least one.
        rows_per_batch = max(_NUMBERS_PER_BATCH * group.num_rows // max(number_count, 1), 1)
        for batch in table.iter_batches(rows_per_batch, row_groups=[i], columns=names):
            rows_read += len(batch)
            yield batch, rows_read / row_count


def _read_stream(
    stream: Any, file: Any, compute_progress: Callable[[], float], names: Sequence[str], _row_group_bounds: object
) -> Iterator[tuple[Any, float]]:
    """Yield the record batches of a stream, each with the share read so far.

    Raises `ValueError` if bytes follow the end of the stream. `_row_group_bounds` are unused: only Parquet has row
    groups.
    """
    for batch in stream:
        yield _select_columns(batch, names), compute_progress()
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
        """Read up to `size` bytes. Raises `EOFError` at the end of the file.

        pyarrow stops reading at the end mark, so a read at the end of the file means that the mark is missing.
        """
        data: bytes = self._file.read(size)
        is_end_of_file = size > 0 and not data
        if is_end_of_file:
            raise EOFError("its Arrow stream has no end mark, so it was cut: copy or write it again")
        return data


def _refuse_concatenated_arrow(file: Any) -> None:
    """Raise `ValueError` if several Arrow files were joined: the wrong rows would be read.

    In joined files, the positions in the last footer are too small by the length of the earlier files. The batches then
    seem to end long before the footer.
    """
    footer_start, footer = _read_footer(file, _FILE_MAGIC)
    end_of_batches = _find_end_of_batches(footer)
    has_batches = end_of_batches > 0
    if has_batches and footer_start - end_of_batches > _MAX_PADDING:
        raise ValueError(_SEVERAL_FILES)


def _refuse_concatenated_parquet(file: Any, metadata: Any) -> None:
    """Raise `ValueError` if several Parquet files were joined: the wrong rows would be read.

        PAR1 columns footer PAR1 PAR1 columns footer PAR1

    The positions in the last footer are counted from the start of the last file, so in the joined file they lead to
    bytes too early. The columns then seem to end long before the last footer, with the boundary PAR1 PAR1 between them
    and the footer.

    If the last file is longer than all earlier files together, it is not refused here. For example, after 100 bytes of
    earlier files, columns that end at byte 380 seem to end at byte 280, after the boundary at byte 100. But pyarrow
    raises an error when it reads the boundary as part of a column.
    """
    footer_start, _ = _read_footer(file, _PARQUET_MAGIC)
    last_group = metadata.row_group(metadata.num_row_groups - 1)
    columns = [last_group.column(i) for i in range(last_group.num_columns)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    ends = [start + column.total_compressed_size for start, column in zip(starts, columns, strict=True)]
    end_of_columns = max(ends)
    file.seek(end_of_columns)
    bytes_before_footer = file.read(max(footer_start - end_of_columns, 0))
    boundary_of_files = 2 * _PARQUET_MAGIC  # a file ends with the magic bytes, and the next file begins with them
    if boundary_of_files in bytes_before_footer:
        raise ValueError(_SEVERAL_FILES)


def _read_footer(file: Any, magic: bytes) -> tuple[int, bytes]:
    """Return where the footer of a file starts, and its bytes. Its length and `magic` follow it."""
    length_bytes = 4
    footer_end = file.size() - len(magic) - length_bytes
    file.seek(footer_end)
    footer_length = int.from_bytes(file.read(length_bytes), "little")
    footer_start = footer_end - footer_length
    file.seek(footer_start)
    return footer_start, file.read(footer_length)


def _find_end_of_batches(footer: bytes) -> int:
    """Return where the last batch of an Arrow file ends, by its footer; 0 if the file has no batch.

    pyarrow does not tell where the batches are. The footer is a table of FlatBuffers, in these parts:

        footer:  position of the table (u4)
        table:   distance back to the vtable (i4, negative if the vtable comes later), fields
        vtable:  size of the vtable (u2), size of the table (u2), offset of each field in the table (u2; 0: not set)
        field:   distance to the blocks (u4)
        blocks:  number of blocks (u4), blocks (`_BLOCK`), each with the position and the sizes of a batch
    """

    def read_number(position: int, number_type: str = "<u4") -> int:
        return int(np.frombuffer(footer, number_type, count=1, offset=position)[0])

    table_position = read_number(0)
    # The table begins with its distance from the vtable, which is negative if the vtable comes after the table.
    distance_from_vtable = read_number(table_position, "<i4")
    vtable_position = table_position - distance_from_vtable
    vtable_size = read_number(vtable_position, "<u2")
    end_of_batches = 0
    for field_number in _BLOCK_FIELDS:  # dictionaries, then record batches
        # The vtable has two sizes, then the offset of each field. Each size and each offset is a number of 2 bytes.
        place_in_vtable = 2 + 2 + 2 * field_number
        is_in_vtable = place_in_vtable < vtable_size
        field_offset = read_number(vtable_position + place_in_vtable, "<u2") if is_in_vtable else 0
        if field_offset == 0:  # the field is not set
            continue
        field_position = table_position + field_offset
        # The field holds the distance from itself to the number of blocks (4 bytes). The blocks come after this number.
        count_position = field_position + read_number(field_position)
        block_count = read_number(count_position)
        blocks = np.frombuffer(footer, _BLOCK, count=block_count, offset=count_position + 4)
        ends = blocks["offset"] + blocks["metadata_bytes"] + blocks["body_bytes"]
        end_of_batches = max(end_of_batches, int(ends.max(initial=0)))
    return end_of_batches


def _read_file(batches: Any, names: Sequence[str], _row_group_bounds: object) -> Iterator[tuple[Any, float]]:
    """Yield the record batches of a file in the IPC file format, each with the share read so far.

    `_row_group_bounds` are unused: only Parquet has row groups.
    """
    count = batches.num_record_batches
    for i in range(count):
        yield _select_columns(batches.get_batch(i), names), (i + 1) / count


def _select_columns(batch: Any, names: Sequence[str]) -> Any:
    """Return the named columns of a record batch. Raises an error of pyarrow if the batch is damaged."""
    selected = batch.select(names)
    validate(selected)
    return selected
