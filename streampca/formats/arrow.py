"""Arrow IPC: a value is a stream of record batches, whose rows hold vectors."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampca.errors import on_one_line
from streampca.formats.base import MAX_BATCH_BYTES, MAX_OBJECT_BYTES, Counts, Fields, Reader, Writer
from streampca.formats.errors import (
    CONDITION_UNMET,
    NO_VALUE,
    NULL_HINT,
    SKIP_REASONS,
    MissingFieldError,
    VectorError,
    check_length,
    check_size,
    missing_field_error,
    quote_names,
    refuse_missing_fields,
    wrong_length_error,
)
from streampca.formats.fields import NumberFields
from streampca.formats.layout import holds_bytes, row_bounds
from streampca.formats.numbers import RowVectors, VectorBytes, pack_rows, spell_key, with_common_guess
from streampca.pca.arrays import F64, Array
from streampca.settings.field_paths import Choice, Path, PathPart, get_steps, parse_paths, spell_path

_BYTES_BY_TEXT_TYPE = {
    pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view(),
}  # fmt: skip
_NULL_LENGTH = -1  # stands for the length of a list that is null

Column: TypeAlias = Any  # pyarrow has no types


class ArrowReader(Reader):
    """Reads the vectors of all rows. One bad row makes the whole value invalid; a row that is null is left out."""

    is_batch = True
    value_name = "record batch"

    def read(self, value: bytes) -> VectorBytes:
        """Return the numbers of all rows, one vector after the other. Raises `VectorError`.

        A column of bytes does not say the type of its numbers, so the type is guessed from the length of the bytes.
        If all numbers have the same guessed type, returns them as `GuessedNumbers` of this type.
        """
        try:
            with _open_stream(value) as batches:
                vectors_of_batches, guessed_dtypes = self._read_batches(batches)
        except VectorError:
            raise
        except Exception as error:
            raise VectorError("undecodable", f"not an Arrow IPC stream: {on_one_line(error)[:200]}") from None
        # The vectors are float64, even if float32 was guessed: `guessed_dtypes` only say how their bytes were read.
        if len(vectors_of_batches) == 1:  # not copied
            joined = vectors_of_batches[0]
        else:
            # A stream may hold no record batch.
            no_vectors = np.empty((0, self.dimensions))
            joined = np.concatenate([no_vectors, *vectors_of_batches])
        return with_common_guess(joined.ravel().data, guessed_dtypes)

    def read_tree(self, value: bytes) -> Any:
        """Return the rows in which a label is looked up: each is a dict with only the column that holds the label.

        For the label `meta.id`, this is the column `meta`. Texts are returned as bytes, because they may not be UTF-8.
        """
        [path] = parse_paths(self.label)  # the setting `label` is one path
        column_name = get_steps(path)[0]
        with _open_stream(value) as batches:
            rows: list[Any] = []
            for batch in batches:
                batch_of_label = batch.select([column_name])
                validate(batch_of_label)
                rows += with_texts_as_bytes(batch_of_label).to_pylist()
        return rows

    def _read_batches(self, batches: Any) -> tuple[list[Array], set[str | None]]:
        """Return the vectors of each record batch, and the types that were guessed for their numbers.

        If all rows are skipped, raises `VectorError` with the reason.
        """
        # `numbers` are the `NumberFields` at the paths. Without paths, the numbers are in the only column.
        fields = self.numbers if self.paths else self._fields_of_only_column(batches.schema.names)
        vectors = list[Array]()
        guessed_dtypes = set[str | None]()
        total_size = 0
        error_by_skip_reason: dict[str, VectorError] = {}
        for batch in batches:
            # The batch's buffers, and the vectors that are decoded from the buffers. `batch.nbytes` would read offsets
            # that are not validated yet.
            total_size += batch.get_total_buffer_size() + len(batch) * self.dimensions * self.dtype.itemsize
            check_size(total_size, MAX_BATCH_BYTES)
            validate(batch)
            rows = vectors_in(batch, fields)
            # If a row is bad, its error is raised. The errors of rows that are only skipped are kept.
            error_by_skip_reason |= _raise_or_group_errors(rows.errors)
            vectors.append(rows.vectors)
            guessed_dtypes |= rows.guessed_dtypes
        has_vectors = any(map(len, vectors))
        if error_by_skip_reason and not has_vectors:
            # All rows were skipped. An unmet `where` is reported rather than a null, because `where` may be a mistake,
            # and the row may hold a vector.
            raise error_by_skip_reason.get(CONDITION_UNMET) or error_by_skip_reason[NO_VALUE]
        return vectors, guessed_dtypes

    def _fields_of_only_column(self, names: Sequence[str]) -> NumberFields:
        """Return the `NumberFields` that read the only column of record batches.

        If there are several columns, raises `VectorError`.
        """
        if len(names) != 1:
            raise VectorError("undecodable", f"{len(names)} columns in the record batch: field must name one")
        path = (PathPart(names[0]),)
        return self.find_numbers_at([path], self.where)


def _open_stream(value: bytes) -> Any:
    """Open an IPC stream, outside of Arrow's own memory pools, which would keep freed memory."""
    return pa.ipc.open_stream(pa.py_buffer(value), memory_pool=pa.system_memory_pool())


def _raise_or_group_errors(errors: Iterable[tuple[int, VectorError]]) -> dict[str, VectorError]:
    """Raise the error of a bad row, because one bad row makes the whole value invalid.

    If all errors are of rows that are skipped, return one error for each reason: `NO_VALUE` for null, or
    `CONDITION_UNMET` for an unmet condition. `errors` are pairs of a row's index and its error.
    """
    error_by_skip_reason = {}
    for _, error in errors:
        if error.reason not in SKIP_REASONS:
            raise error
        error_by_skip_reason[error.reason] = error
    return error_by_skip_reason


def validate(batch: Any) -> None:
    """If offsets in a record batch point outside of its buffers, raise `pyarrow.ArrowInvalid`.

    Texts that are not UTF-8 are accepted.
    """
    with_texts_as_bytes(batch).validate(full=True)


def with_texts_as_bytes(batch: Any, except_names: Collection[str] = ()) -> Any:
    """Return the record batch with texts as bytes, except in the fields named in `except_names`.

    Arrow would raise an error for a text that is not UTF-8, even if nobody needs the text.
    """
    columns_as_struct = pa.struct(list(batch.schema))
    new_struct = _type_with_bytes(columns_as_struct, except_names, keeps_texts=False)
    columns = []
    for field, column in zip(new_struct, batch.columns, strict=True):
        columns.append(column if column.type == field.type else column.view(field.type))
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _type_with_bytes(arrow_type: Any, except_names: Collection[str], *, keeps_texts: bool) -> Any:
    """Return the type of a field with bytes in place of texts, because Arrow cannot read a text that is not UTF-8.

    Fields named in `except_names`, which are needed as texts, keep them. `keeps_texts` says whether this field does.
    """
    types = pa.types
    if types.is_struct(arrow_type):
        # An inner field keeps its texts if its own name is in `except_names`; the name of the struct does not matter.
        fields = []
        for field in arrow_type:
            new_type = _type_with_bytes(field.type, except_names, keeps_texts=field.name in except_names)
            fields.append(field.with_type(new_type))
        return pa.struct(fields)
    if is_list(arrow_type):
        # Items have no name of their own, so the name of the list decides.
        item_type = _type_with_bytes(arrow_type.value_type, except_names, keeps_texts=keeps_texts)
        item = arrow_type.value_field.with_type(item_type)
        if types.is_fixed_size_list(arrow_type):
            return pa.list_(item, arrow_type.list_size)
        return pa.large_list(item) if types.is_large_list(arrow_type) else pa.list_(item)
    if keeps_texts:
        return arrow_type
    if types.is_map(arrow_type):
        # A map that keeps its texts was returned above. In this map, the texts of keys and items become bytes.
        key_type = _type_with_bytes(arrow_type.key_type, except_names, keeps_texts=False)
        item_type = _type_with_bytes(arrow_type.item_type, except_names, keeps_texts=False)
        return pa.map_(key_type, item_type)
    return _BYTES_BY_TEXT_TYPE.get(arrow_type, arrow_type)


def vectors_in(batch: Any, fields: NumberFields) -> RowVectors:
    """Return the vectors at the paths of `fields` in the rows of a record batch."""
    columns = _find_columns(batch, fields)  # None for a path into a type other than structs, such as a list
    # A sparse vector or a tensor has fields with names such as `indices` or `shape`.
    may_be_sparse_or_tensor = _may_have_field(batch.schema, fields.tensor_field_names)
    has_conditions = len(fields.where) > 0
    if has_conditions or may_be_sparse_or_tensor:  # each row must be looked at
        return _read_objects(batch, fields)
    only_column = columns[0] if len(columns) == 1 else None
    if only_column is not None and is_list(only_column.type) and are_numbers(only_column.type.value_type):
        return _read_lists(only_column, fields.dimensions, fields.impute)
    if all(column is not None and are_numbers(column.type) for column in columns):
        return _read_number_columns(batch, columns, fields)
    return _read_objects(batch, fields)


def _may_have_field(schema: Any, names: Collection[str]) -> bool:
    """Return whether a field, or a field nested in it, seems to have one of these names.

    The answer may be wrongly True, such as for the name `shape` and a field `my_shape`.
    """
    schema_text = str(schema)  # has "name: type" for each field, also for nested fields
    return any(f"{name}:" in schema_text for name in names)


def _read_number_columns(batch: Any, columns: Sequence[Column], fields: NumberFields) -> RowVectors:
    """Return the vectors in columns that hold one number in each row.

    If every number of a row is inside of a struct that is null, the row has no vector.
    """
    check_length(len(columns), fields.dimensions)
    vectors = np.column_stack([_to_floats(column) for column in columns])
    is_null_row = np.logical_and.reduce([_is_parent_null(batch, path) for path in fields.paths])
    null_row_error = VectorError(NO_VALUE, "the row is null")
    return RowVectors(
        vectors=vectors[~is_null_row],
        counts=(~is_null_row).astype(np.int64),
        errors=[(row, null_row_error) for row in np.flatnonzero(is_null_row).tolist()],
    )


def _read_lists(column: Column, dimensions: int, impute: bool) -> RowVectors:
    """Return the vectors in a column of lists, and an error for each row that has no vector, or one of a wrong length.

    If an entry of any vector is null, raises `VectorError`, unless entries may be missing (`impute`).
    """
    lengths = pc.fill_null(pc.list_value_length(column), _NULL_LENGTH).to_numpy(zero_copy_only=False)
    is_vector = lengths == dimensions
    vector_rows = column if is_vector.all() else column.filter(pa.array(is_vector))
    entries = vector_rows.flatten()
    if entries.null_count and not impute:
        raise VectorError("undecodable", f"an entry of the record batch is null{NULL_HINT}")
    rows_without_vector = np.flatnonzero(~is_vector).tolist()
    return RowVectors(
        vectors=_to_floats(entries).reshape(-1, dimensions),
        counts=is_vector.astype(np.int64),
        # A generator: a few bytes may hold millions of null rows, and a list of their errors would fill the memory.
        errors=((row, _list_error(lengths[row], dimensions)) for row in rows_without_vector),
    )


def _list_error(length: int, dimensions: int) -> VectorError:
    """Return the error of a row whose list is null or has a wrong length."""
    if length == _NULL_LENGTH:
        return VectorError(NO_VALUE, "the row is null")
    return wrong_length_error(length, dimensions)


def _read_objects(batch: Any, fields: NumberFields) -> RowVectors:
    """Return the vectors in columns of any types. Reads each row as Python objects, which is slow."""
    needed_names = fields.names  # of columns, and of fields of structs
    needed_columns = [name for name in batch.schema.names if name in needed_names]
    # A struct may have fields that are not needed. If a text in such a field is not UTF-8, Arrow would refuse to read
    # the struct. So the texts in these fields become bytes.
    readable_columns = with_texts_as_bytes(batch.select(needed_columns), except_names=needed_names)

    def pack(row: int) -> VectorBytes:
        # `GuessedNumbers` if the row has bytes, which do not say the type of their numbers.
        one_row = readable_columns.slice(row, 1)
        # `MAX_OBJECT_BYTES` is the limit of what a row holds beside its d numbers, which take 8 bytes each.
        check_size(one_row.nbytes, MAX_OBJECT_BYTES + 8 * fields.dimensions)
        return fields.pack(row_to_dict(one_row))

    return pack_rows(range(len(batch)), pack, fields.dimensions)


def row_to_dict(one_row: Any) -> dict[str, Any]:
    """Return the only row of a record batch as a dict from column to value, in which maps are dicts, too."""
    row = {}
    for field, column in zip(one_row.schema, one_row.columns, strict=True):
        try:
            [value] = column.to_pylist()
        except UnicodeDecodeError:
            text = f"the field {field.name!r} holds a text that is not UTF-8"
            raise VectorError("undecodable", text) from None
        row[field.name] = _maps_to_dicts(value, field.type)
    return row


def _maps_to_dicts(value: Any, arrow_type: Any) -> Any:
    """Return a value with a dict in place of each map, which Arrow gives as pairs."""
    if value is None or not _has_maps(arrow_type):
        return value
    if pa.types.is_struct(arrow_type):
        return {field.name: _maps_to_dicts(value[field.name], field.type) for field in arrow_type}
    if pa.types.is_map(arrow_type):
        entries = {spell_key(key): _maps_to_dicts(item, arrow_type.item_type) for key, item in value}
        if len(entries) < len(value):
            raise VectorError("undecodable", f"a map has a key twice, of {quote_names([key for key, _ in value])}")
        return entries
    # Only lists are left: no other type can hold maps.
    return [_maps_to_dicts(item, arrow_type.value_type) for item in value]


@cache
def _has_maps(arrow_type: Any) -> bool:
    return "map<" in str(arrow_type)


def _find_columns(batch: Any, fields: NumberFields) -> list[Column | None]:
    """Return the column at each path; None if the path leads into a column that is not a struct, such as a list.

    A column that does not exist becomes a column of nulls. If entries must not be missing, or if none of the columns
    exists, raises `VectorError`.
    """
    columns: list[Column | None] = []
    errors: list[VectorError] = []  # of the columns that do not exist
    for path in fields.paths:
        try:
            columns.append(_find_column(batch, path))  # None for a path into a list
        except MissingFieldError as error:
            columns.append(pa.nulls(len(batch), pa.float64()))
            errors.append(error)
    refuse_missing_fields(errors, path_count=len(fields.paths), impute=fields.impute)
    return columns


def _find_column(batch: Any, path: Path) -> Column | None:
    """Return the column at a path through structs; None if the path leads into other types, such as lists."""
    steps = get_steps(path)
    first, *further_steps = steps
    if isinstance(first, Choice):  # such as `[id=temp]`
        raise VectorError("undecodable", f"{spell_path(steps)} chooses among elements of an array, not among columns")
    column = _require_column(batch, first)
    for step in further_steps:
        if isinstance(step, Choice) or not pa.types.is_struct(column.type):
            return None  # the path goes on inside of each cell, such as in the elements of a list
        if column.type.get_field_index(step) < 0:
            siblings = {field.name: field for field in column.type}
            raise missing_field_error(spell_path(steps), step, siblings, "record batch")
        column = pc.struct_field(column, step)
    return column


def _require_column(batch: Any, name: str) -> Column:
    """Return the column of this name. Raises `VectorError` if there is none, or if there are several."""
    indices = batch.schema.get_all_field_indices(name)
    if len(indices) > 1:
        raise VectorError("undecodable", f"{len(indices)} columns {name!r} in the record batch")
    if not indices:
        existing = quote_names(batch.schema.names)
        raise MissingFieldError("undecodable", f"no column {name!r} in the record batch: there is {existing}")
    return batch.column(indices[0])


def _is_parent_null(batch: Any, path: Path) -> NDArray[np.bool_]:
    """Return for each row whether the struct that a path's last field belongs to is null, or is not in the batch.

    A path with one step leads to a column, which belongs to no struct: then the result is False for each row.
    """
    parent_path = path[:-1]
    if not parent_path:
        return np.zeros(len(batch), np.bool_)
    try:
        parent: Column = _find_column(batch, parent_path)
    except VectorError:  # the batch does not have this struct
        return np.ones(len(batch), np.bool_)
    return np.asarray(parent.is_null().to_numpy(zero_copy_only=False))


class ArrowWriter(Writer):
    holds_names = True

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a stream for each row or, with `counts`, for each group of `counts[i]` rows."""
        first_field = next(iter(fields.values()))
        values = list[bytes]()
        for start, end in row_bounds(counts, len(first_field)):
            columns = {name: column_of(rows[start:end]) for name, rows in fields.items()}
            values.append(stream_of(self._put_into_structs(columns)))
        return values

    def _put_into_structs(self, columns: Mapping[str, Column]) -> Mapping[str, Column]:
        """Put columns inside of structs with the names `enclosing_names`."""
        for name in reversed(self.enclosing_names):
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
    """Return a column of numbers, texts or bytes (n,), or of lists (n, width).

    None becomes null. NaN becomes null in a column of numbers, but stays NaN in a list.
    """
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    # Arrow cannot infer bytes from None alone.
    arrow_type = pa.binary() if holds_bytes(values) else None
    return pa.array(values, arrow_type, from_pandas=True)


def is_list(arrow_type: Any) -> bool:
    tests = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
    return any(is_of_kind(arrow_type) for is_of_kind in tests)


def are_numbers(arrow_type: Any) -> bool:
    tests = (pa.types.is_floating, pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean)
    return any(is_of_kind(arrow_type) for is_of_kind in tests)


def _to_floats(column: Column) -> F64:
    """Return the numbers of a column, large integers rounded, NaN for null."""
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
