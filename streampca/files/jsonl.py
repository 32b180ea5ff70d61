"""Reads JSON Lines files: each line is a JSON document, and is read like a message of the format json."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, choose_columns, parse_json_text
from streampca.files.rows import ALL_FIELDS, Rows, input_errors, no_vectors_error, open_stream
from streampca.files.text import text_batches
from streampca.formats.errors import VectorError
from streampca.formats.fields import NumberFields
from streampca.formats.json import loads
from streampca.formats.numbers import VectorBytes
from streampca.formats.walk import are_met
from streampca.settings.field_paths import Condition, get_steps, parse_paths

_MAX_LINE = 2**24  # bytes of a line
_TYPES: dict[type, str | None] = {str: None, int: "int64", float: "float64"}  # names of Arrow's types; None: text


def rows_of_jsonl(path: str, options: FileOptions) -> Rows:
    """Open a JSON Lines file. Its rows are read like messages of the format json."""
    with input_errors(path):
        layout = _find_json_layout(path, options)
    columns = layout.columns
    d = layout.dimensions
    vector_reader = NumberFields(
        columns.paths,
        d,
        impute=options.impute,
        value_name="JSON document",
        where=options.where,  # conditions that a row must meet
    )
    # `options.other_columns` lists fields, or is True for all fields of the first row that hold no numbers of vectors.
    # Each of these fields is a column.
    getter_by_column: dict[str, Callable[[Any], Any]] = {
        name: partial(_get_entry, name) for name in columns.other_columns
    }
    other_types: dict[str, str | None] = {}  # needed only by `streampca project`, which asks for all fields
    are_all_fields_wanted = options.other_columns is True
    if are_all_fields_wanted:
        # Later rows may have fields that the first row lacks. So one more column, `ALL_FIELDS`, holds all fields of
        # a row that hold no numbers of vectors, including the fields that have a column of their own.
        # `vector_fields` are the outermost fields of the paths to numbers, such as `a` of the path `a.b`.
        vector_fields = {str(get_steps(path_to_number)[0]) for path_to_number in columns.paths}
        getter_by_column[ALL_FIELDS] = partial(_get_other_fields, vector_fields)
        other_types = _find_types(_get_other_fields(vector_fields, layout.first_row))
    return Rows(
        path=path,
        dimensions=d,
        batches=partial(
            text_batches,
            path,
            read_records=_json_values,
            pack=partial(_pack, vector_reader),
            getter_by_column=getter_by_column,
            d=d,
            vector_reader=vector_reader,
        ),
        impute=options.impute,
        names=columns.names,
        notes="; ".join(columns.notes),
        vector_reader=vector_reader,
        other_types=other_types,
    )


def _pack(vector_reader: NumberFields, row: Any) -> VectorBytes:
    """Return the numbers of a row. Raises `VectorError`, also if the row is the error of a line that is not JSON."""
    if isinstance(row, VectorError):
        raise row
    return vector_reader.pack(row)


def _find_types(fields: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the Arrow type of each field that holds a number or a text; None stands for text."""
    return {name: _TYPES[type(value)] for name, value in fields.items() if type(value) in _TYPES}


class _JsonLayout(NamedTuple):
    """Where the numbers of a JSON Lines file are."""

    columns: Columns
    dimensions: int
    first_row: Any  # the first row that holds a vector; None if there is none


def _find_json_layout(path: str, options: FileOptions) -> _JsonLayout:
    """Find out where the numbers are from the first row that holds a vector.

    Without such a row, raises `InputError` unless the options give the dimensions.
    """
    with open_stream(path) as (file, _):
        for row_number, row in enumerate(_json_values(file), 1):
            if isinstance(row, VectorError):
                raise InputError(f"{path}, row {row_number}: {row}")
            if not _meets_conditions(row, options.where):
                continue
            columns = choose_columns(row, options, path)
            if columns.are_all_null:  # a later row shows which columns hold numbers
                continue
            d = options.dimensions or columns.count_dimensions(row, path)
            if d:
                # Choose again with d, because the names depend on d: if there are d paths, each path names a dimension.
                columns = choose_columns(row, options._replace(dimensions=d), path)
                return _JsonLayout(columns, dimensions=d, first_row=row)
    if options.dimensions is None:
        raise no_vectors_error(path, options.where)
    columns = Columns(parse_paths(options.field), where=options.where)
    return _JsonLayout(columns, dimensions=options.dimensions, first_row=None)


def _meets_conditions(row: Any, conditions: Sequence[Condition]) -> bool:
    """Return whether a row meets the conditions. A null row does not."""
    try:
        return row is not None and are_met(conditions, row)
    except VectorError:  # such as for the condition `[id=temp].unit=C`, if several elements have the id `temp`
        return False


def _json_values(file: Any) -> Iterator[Any]:
    """Yield the JSON value on each line that is not blank, or a `VectorError` if the line is not JSON."""
    for line in _byte_lines(file):
        if not line.strip():
            continue
        try:
            yield loads(line)
        except VectorError as error:
            yield error


def _get_entry(name: str, value: Any) -> Any:
    """Return an entry of a JSON object; None if there is no such entry."""
    parsed = parse_json_text(value)
    return parsed.get(name) if isinstance(parsed, dict) else None


def _get_other_fields(vector_fields: Collection[str], value: Any) -> dict[str, Any]:
    """Return the fields of a JSON object that do not hold the vector; {} for other values."""
    parsed = parse_json_text(value)
    if not isinstance(parsed, dict):
        return {}
    return {name: entry for name, entry in parsed.items() if name not in vector_fields}


def _byte_lines(file: Any) -> Iterator[bytes]:
    """Yield the bytes of each line. Raises `ValueError` for a very long line."""
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise ValueError(f"a line has more than {_MAX_LINE >> 20} MiB")
        yield line
