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
    listed,
    missing_field,
    wrong_length,
)
from streampca.formats.fields import NumberFields
from streampca.formats.layout import bounds
from streampca.formats.numbers import Guessed, RowVectors, VectorBytes, only_kind, packed_rows
from streampca.pca.arrays import F64, Array
from streampca.settings.field_paths import Part, Path, spelled

Column: TypeAlias = Any  # pyarrow has no types


class ArrowReader(Reader):
    """One bad row makes the whole value invalid; a row that is null is left out."""

    is_batch = True

    def read(self, value: bytes) -> VectorBytes | Guessed:
        found, nulls, kinds, size = list[Array](), list[VectorError](), set[str | None](), 0
        try:
            # Arrow's own pools keep what they have freed: a few large messages took 120 MiB more.
            with pa.ipc.open_stream(pa.py_buffer(value), memory_pool=pa.system_memory_pool()) as batches:
                paths = self.paths or tuple((Part(name),) for name in batches.schema.names)
                if not self.paths and len(paths) != 1:
                    raise VectorError("undecodable", f"{len(paths)} columns in the record batch: field must name one")
                for batch in batches:
                    size += batch.nbytes + len(batch) * self.dimensions * self.dtype.itemsize
                    check_size(size, MAX_BATCH_BYTES)
                    batch.validate(full=True)  # offsets that point outside the buffers are refused
                    rows = vectors_in(batch, paths, self.dimensions, impute=self.impute)
                    for _, error in rows.misfits:
                        if error.reason != NO_VALUE:
                            raise error
                        nulls = [error]
                    found.append(rows.vectors)
                    kinds.add(rows.guessed)
        except VectorError:
            raise
        except Exception as error:  # of many kinds: Arrow's own, OSError, UnicodeDecodeError …
            raise VectorError("undecodable", f"not an Arrow IPC stream: {' '.join(str(error).split())[:200]}") from None
        if nulls and not any(map(len, found)):
            raise nulls[0]
        numbers = np.concatenate(found) if len(found) > 1 else found[0] if found else np.empty(0)
        kind = only_kind(kinds)
        return Guessed(numbers.ravel().data, kind) if kind else numbers.ravel().data


def vectors_in(batch: Any, paths: Sequence[Path], dimensions: int, *, impute: bool) -> RowVectors:
    """The vectors at paths in the rows of a record batch. Raises `VectorError` if the columns cannot hold any."""
    columns = [_column_at(batch, path) for path in paths]
    if (
        len(paths) == 1
        and columns[0] is not None
        and is_list(columns[0].type)
        and are_numbers(columns[0].type.value_type)
    ):
        return _of_lists(columns[0], dimensions, impute)
    if all(column is not None and are_numbers(column.type) for column in columns):
        check_length(len(columns), dimensions)
        is_absent = np.logical_and.reduce([_is_null_before(batch, path) for path in paths])
        vectors = np.column_stack([_floats(column) for column in columns])[~is_absent]
        error = VectorError(NO_VALUE, "the row is null")
        return RowVectors(vectors, (~is_absent).astype(np.int64), [(int(i), error) for i in np.flatnonzero(is_absent)])
    return _of_objects(batch, paths, dimensions, impute)


def _of_lists(column: Column, dimensions: int, impute: bool) -> RowVectors:
    """The vectors in a column of lists of numbers."""
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    fits = lengths == dimensions
    entries = (column if fits.all() else column.filter(pa.array(fits))).flatten()
    if entries.null_count and not impute:
        raise VectorError("undecodable", f"an entry of the record batch is null{NULL_HINT}")
    vectors = _floats(entries).reshape(-1, dimensions)
    misfits = (  # one by one: a few bytes may claim millions of rows
        (row, VectorError(NO_VALUE, "the row is null") if lengths[row] < 0 else wrong_length(lengths[row], dimensions))
        for row in np.flatnonzero(~fits).tolist()
    )
    return RowVectors(vectors, fits.astype(np.int64), misfits)


def _of_objects(batch: Any, paths: Sequence[Path], dimensions: int, impute: bool) -> RowVectors:
    """The vectors in columns of any other types, row by row."""
    fields = NumberFields(paths, dimensions, impute=impute, kind="record batch")
    chosen = batch.select(list({path[0].name: None for path in paths}))

    def pack(row: int) -> VectorBytes | Guessed:
        one = chosen.slice(row, 1)
        check_size(one.nbytes, MAX_OBJECT_BYTES + 8 * dimensions)
        return fields.pack(one.to_pylist()[0], booleans=False)

    return packed_rows(range(len(batch)), pack, dimensions)


def _column_at(batch: Any, path: Path) -> Column | None:
    """The column at a path through structs; None if it leads through another type."""
    found = batch.schema.get_all_field_indices(path[0].name)  # of thousands, for each of thousands of paths
    if (count := len(found)) != 1:
        text = f"{count or 'no'} column{'s' * (count > 1)} {path[0].name!r} in the record batch"
        raise VectorError("undecodable", f"{text}: there is {listed(batch.schema.names)}")
    column = batch.column(found[0])
    for part in path[1:]:
        if not pa.types.is_struct(column.type):
            return None
        if column.type.get_field_index(part.name) < 0:
            dotted = spelled([part.name for part in path])
            raise missing_field(dotted, part.name, {field.name: field for field in column.type}, "record batch")
        column = pc.struct_field(column, part.name)
    return column


def _is_null_before(batch: Any, path: Path) -> NDArray[np.bool_]:
    """Whether each row is null on the way to the end of a path."""
    column = _column_at(batch, path[:-1]) if len(path) > 1 else None
    if column is None:
        return np.zeros(len(batch), np.bool_)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))


class ArrowWriter(Writer):
    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        return [
            stream_of(self._inside({name: column_of(values[i:j]) for name, values in fields.items()}))
            for i, j in bounds(counts, len(next(iter(fields.values()))))
        ]

    def _inside(self, columns: Mapping[str, Column]) -> Mapping[str, Column]:
        for name in reversed(self.around):
            columns = {name: pa.StructArray.from_arrays(list(columns.values()), list(columns))}
        return columns


def stream_of(columns: Mapping[str, Column]) -> bytes:
    batch, out = pa.record_batch(dict(columns)), pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue().to_pybytes())


def column_of(values: NDArray[Any]) -> Column:
    """A column of numbers or bytes (n,), where NaN and None become null, or of lists (n, width)."""
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    return pa.array(values, pa.binary() if values.dtype.kind == "O" else None, from_pandas=True)


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def are_numbers(kind: Any) -> bool:
    types = pa.types
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_boolean(kind))


def _floats(column: Column) -> F64:
    """The numbers of a column, large integers rounded, NaN for null."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
