"""Arrow IPC: a value is a stream of record batches, whose rows hold vectors."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampca.formats.base import MAX_BATCH_BYTES, MAX_OBJECT_BYTES, Counts, Fields, Reader, Writer
from streampca.formats.errors import (
    NO_VALUE,
    NULL_HINT,
    VectorError,
    check_length,
    check_size,
    missing_field_error,
    quote_names,
    wrong_length_error,
)
from streampca.formats.fields import NumberFields
from streampca.formats.layout import row_bounds
from streampca.formats.numbers import GuessedNumbers, RowVectors, VectorBytes, common_dtype, pack_rows
from streampca.pca.arrays import F64, Array
from streampca.settings.field_paths import Part, Path, spelled

Column: TypeAlias = Any  # pyarrow has no types


class ArrowReader(Reader):
    """Reads the vectors of all rows. One bad row makes the whole value invalid; a row that is null is left out."""

    is_batch = True

    def read(self, value: bytes) -> VectorBytes | GuessedNumbers:
        try:
            # Arrow's own pools keep what they have freed: a few large messages took 120 MiB more.
            with pa.ipc.open_stream(pa.py_buffer(value), memory_pool=pa.system_memory_pool()) as batches:
                vectors, dtypes = self._read_batches(batches)
        except VectorError:
            raise
        except Exception as error:  # of many kinds: Arrow's own, OSError, UnicodeDecodeError …
            raise VectorError("undecodable", f"not an Arrow IPC stream: {' '.join(str(error).split())[:200]}") from None
        # Joining copies, even a single array. There may be no arrays.
        joined = vectors[0] if len(vectors) == 1 else np.concatenate([np.empty((0, self.dimensions)), *vectors])
        numbers = joined.ravel().data
        dtype = common_dtype(dtypes)
        return GuessedNumbers(numbers, dtype) if dtype else numbers

    def _read_batches(self, batches: Any) -> tuple[list[Array], set[str | None]]:
        """Return the vectors of each record batch, and the types that were guessed for their numbers.

        If a row has no vector, raises `VectorError`; a row that is null is only an error if all rows are null.
        """
        paths = self.paths or tuple((Part(name),) for name in batches.schema.names)
        if not self.paths and len(paths) != 1:
            raise VectorError("undecodable", f"{len(paths)} columns in the record batch: field must name one")
        vectors = list[Array]()
        dtypes = set[str | None]()
        total_size = 0  # of the record batches and their vectors
        null_row: VectorError | None = None
        for batch in batches:
            total_size += batch.nbytes + len(batch) * self.dimensions * self.dtype.itemsize
            check_size(total_size, MAX_BATCH_BYTES)
            batch.validate(full=True)  # offsets that point outside the buffers are refused
            rows = vectors_in(batch, paths, self.dimensions, impute=self.impute)
            for _, error in rows.errors:
                if error.reason != NO_VALUE:
                    raise error
                null_row = error
            vectors.append(rows.vectors)
            dtypes.add(rows.guessed_dtype)
        if null_row is not None and not any(map(len, vectors)):
            raise null_row
        return vectors, dtypes


def vectors_in(batch: Any, paths: Sequence[Path], dimensions: int, *, impute: bool) -> RowVectors:
    """Return the vectors at paths in the rows of a record batch.

    If the columns there cannot hold vectors, raises `VectorError`.
    """
    columns = [_column_at(batch, path) for path in paths]
    # The numbers may be in one column of arrays, in a column for each number, or anywhere in other columns.
    only_column = columns[0] if len(columns) == 1 else None
    if only_column is not None and is_list(only_column.type) and are_numbers(only_column.type.value_type):
        return _read_lists(only_column, dimensions, impute)
    if all(column is not None and are_numbers(column.type) for column in columns):
        check_length(len(columns), dimensions)
        is_null = np.logical_and.reduce([_is_null_before_end(batch, path) for path in paths])
        null_row = VectorError(NO_VALUE, "the row is null")
        return RowVectors(
            vectors=np.column_stack([_to_floats(column) for column in columns])[~is_null],
            counts=(~is_null).astype(np.int64),
            errors=[(row, null_row) for row in np.flatnonzero(is_null).tolist()],
        )
    return _read_objects(batch, paths, dimensions, impute)


def _read_lists(column: Column, dimensions: int, impute: bool) -> RowVectors:
    """Return the vectors in a column of lists of numbers."""
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)  # -1: the row is null
    fits = lengths == dimensions
    fitting_rows = column if fits.all() else column.filter(pa.array(fits))
    entries = fitting_rows.flatten()
    if entries.null_count and not impute:
        raise VectorError("undecodable", f"an entry of the record batch is null{NULL_HINT}")
    rows_without_vector = np.flatnonzero(~fits).tolist()
    return RowVectors(
        vectors=_to_floats(entries).reshape(-1, dimensions),
        counts=fits.astype(np.int64),
        # A generator: a few bytes may claim millions of rows, and the first error often ends the reading.
        errors=((row, _list_error(lengths[row], dimensions)) for row in rows_without_vector),
    )


def _list_error(length: int, dimensions: int) -> VectorError:
    """Return the error of a list that is not a vector; the length -1 stands for null."""
    if length < 0:
        return VectorError(NO_VALUE, "the row is null")
    return wrong_length_error(length, dimensions)


def _read_objects(batch: Any, paths: Sequence[Path], dimensions: int, impute: bool) -> RowVectors:
    """Return the vectors in columns of any other types. Reads row by row, as Python objects."""
    fields = NumberFields(paths, dimensions, impute=impute, value_name="record batch")
    names = list(dict.fromkeys(path[0].name for path in paths))
    columns = batch.select(names)

    def pack(row: int) -> VectorBytes | GuessedNumbers:
        one_row = columns.slice(row, 1)
        check_size(one_row.nbytes, MAX_OBJECT_BYTES + 8 * dimensions)
        return fields.pack(one_row.to_pylist()[0], refuse_booleans=False)

    return pack_rows(range(len(batch)), pack, dimensions)


def _column_at(batch: Any, path: Path) -> Column | None:
    """Return the column at a path through structs; None if the path leads through another type.

    If there is no such column, raises `VectorError`.
    """
    name = path[0].name
    indices = batch.schema.get_all_field_indices(name)  # searches fast, even among thousands of columns
    if len(indices) != 1:
        columns = "no column" if not indices else f"{len(indices)} columns"
        names = quote_names(batch.schema.names)
        raise VectorError("undecodable", f"{columns} {name!r} in the record batch: there is {names}")
    column = batch.column(indices[0])
    for part in path[1:]:
        if not pa.types.is_struct(column.type):
            return None
        if column.type.get_field_index(part.name) < 0:
            dotted_path = spelled([part.name for part in path])
            siblings = {field.name: field for field in column.type}
            raise missing_field_error(dotted_path, part.name, siblings, "record batch")
        column = pc.struct_field(column, part.name)
    return column


def _is_null_before_end(batch: Any, path: Path) -> NDArray[np.bool_]:
    """Return for each row whether a struct on the way to the end of a path is null.

    Only the last struct is looked at, since it is null wherever one around it is.
    """
    column = _column_at(batch, path[:-1]) if len(path) > 1 else None
    if column is None:
        return np.zeros(len(batch), np.bool_)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


class ArrowWriter(Writer):
    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        n = len(next(iter(fields.values())))
        values = list[bytes]()
        for start, end in row_bounds(counts, n):
            columns = {name: column_of(rows[start:end]) for name, rows in fields.items()}
            values.append(stream_of(self._put_inside(columns)))
        return values

    def _put_inside(self, columns: Mapping[str, Column]) -> Mapping[str, Column]:
        """Put columns inside of structs with the names `around`."""
        for name in reversed(self.around):
            columns = {name: pa.StructArray.from_arrays(list(columns.values()), list(columns))}
        return columns


def stream_of(columns: Mapping[str, Column]) -> bytes:
    """Return an IPC stream of one record batch with these columns."""
    batch = pa.record_batch(dict(columns))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue().to_pybytes())


def column_of(values: NDArray[Any]) -> Column:
    """Return a column of numbers or bytes (n,), where NaN and None become null, or of lists (n, width)."""
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    return pa.array(values, pa.binary() if values.dtype.kind == "O" else None, from_pandas=True)


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def are_numbers(kind: Any) -> bool:
    types = pa.types
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_boolean(kind))


def _to_floats(column: Column) -> F64:
    """Return the numbers of a column, large integers rounded, NaN for null."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
