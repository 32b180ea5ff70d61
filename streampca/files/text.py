"""Reads text files: CSV, whose records have one line or a few, and JSON Lines, with a JSON document on each line."""

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, choose_columns, open_text, refuse_patterns
from streampca.files.csv_lines import lines, read_head, suggest_skipping
from streampca.files.rows import (
    ALL_FIELDS,
    FileBatch,
    Rows,
    choose_batch_size,
    input_errors,
    no_vectors_error,
    open_stream,
)
from streampca.formats.csv import pack_cells
from streampca.formats.errors import VectorError, quote_names, unmet_error
from streampca.formats.fields import NumberFields
from streampca.formats.json import loads
from streampca.formats.numbers import GuessedNumbers, VectorBytes, pack_rows
from streampca.formats.tensors import names_beside
from streampca.formats.text import MISSING_HINT, begins_as_array, is_missing, parse_cell, parse_value
from streampca.formats.walk import are_met
from streampca.settings.field_paths import Condition, Path, get_steps, parse_paths

_MAX_LINE = 2**24  # bytes of a line
_MAX_RECORD = 2**24  # characters of a record of CSV, which has several lines if a quoted cell has several lines
_TEXT_ROWS = 256  # largest number of rows in a batch: the objects of more rows do not stay in the processor's cache
_TYPES: dict[type, str | None] = {str: None, int: "int64", float: "float64"}  # names of Arrow's types; None: text
_SEPARATORS = (",", ";", "\t")
_HEAD_LINES = 8  # number of first lines of a CSV file that show its separator and header
_MAX_PREAMBLE = 64  # number of first lines of a CSV file among which its first row is searched, for advice in errors
_MIN_FREQUENCIES = 4  # numbers in a header that rise or fall; fewer numbers often do so by chance


def text_batches(
    path: str, read_records: Callable[[Any], Iterator[Any]], pack: Callable[[Any], VectorBytes | GuessedNumbers],
    getter_by_column: Mapping[str, Callable[[Any], Any]], d: int, fields: NumberFields | None,
) -> Iterator[FileBatch]:  # fmt: skip
    """Yield the vectors of d numbers in a file of text, in batches.

    `read_records` yields the records of an opened file, and `pack` returns the numbers of a record.
    """
    rows_per_batch = min(choose_batch_size(d), _TEXT_ROWS)
    with input_errors(path, csv.Error), open_stream(path) as (file, compute_progress):
        records = read_records(file)
        while batch := list(islice(records, rows_per_batch)):
            yield FileBatch(
                found=pack_rows(batch, pack, d),
                progress=compute_progress(),
                other_columns={name: _make_column(get_value, batch) for name, get_value in getter_by_column.items()},
                places=fields.places if fields else None,
            )


def _make_column(get_value: Callable[[Any], Any], records: Sequence[Any]) -> NDArray[Any]:
    """Return an array of Python objects: the value of a column in each record."""
    return np.fromiter(map(get_value, records), object, len(records))


def _byte_lines(file: Any) -> Iterator[bytes]:
    """Yield the bytes of each line. Raises `ValueError` for a very long line."""
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise ValueError(f"a line has more than {_MAX_LINE >> 20} MiB")
        yield line


class _CsvLayout(NamedTuple):
    """How a CSV file is written."""

    separator: str
    has_header: bool
    names: list[str]  # of the columns; 0, 1, 2, … in a file without a header
    first_row: list[str]  # the cells of the first row, which follows the header; empty if there is no row
    advice: str = ""  # what errors add, if the file seems to begin with lines that are neither header nor rows

    def describe_separator(self) -> str:
        return f"(cells are separated by {self.separator!r})"


class _CsvReader:
    """Finds the numbers in the records of a CSV file. A record is a list of cells."""

    def __init__(self, layout: _CsvLayout, columns: Columns, options: FileOptions) -> None:
        """Prepare to read records in which `columns` say where the numbers are."""
        self._layout = layout
        self._options = options
        # Conditions of more steps lead into JSON in a cell, such as `readings.ok=true`.
        self._cell_conditions = [condition for condition in options.where if len(condition.steps) == 1]
        self._inner_conditions = [condition for condition in options.where if len(condition.steps) > 1]

        self.number_columns = [str(get_steps(path)[0]) for path in columns.paths]
        index_by_name = {name: index for index, name in enumerate(layout.names)}
        # None: the file does not have this column, so its numbers are missing.
        self._number_indices = [index_by_name.get(name) for name in self.number_columns]
        self._columns_beside = names_beside(self.number_columns)  # such as `shape` beside `data`
        inner_columns = [condition.steps[0] for condition in self._inner_conditions]
        columns_to_parse = dict.fromkeys([*self.number_columns, *self._columns_beside, *inner_columns])
        self._index_of_parsed_column = {name: index_by_name[name] for name in columns_to_parse if name in index_by_name}

    def records(self, file: Any) -> Iterator[list[str]]:
        """Yield the records of an opened file, without the header."""
        first_row = 1 if self._layout.has_header else 0
        text = lines(file, self._options.encoding, self._options.skip_lines)
        return islice(_csv_records(text, self._layout.separator, strict=True), first_row, None)

    def pack_numbers(self, cells: list[str]) -> VectorBytes | GuessedNumbers:
        """Return the numbers of a record, one in each column. Raises `VectorError`."""
        self._refuse_record(cells, self._options.where)
        number_cells = ["" if index is None else cells[index] for index in self._number_indices]
        return pack_cells(number_cells, describe=self._describe_cell)

    def pack_texts(self, fields: NumberFields, cells: list[str]) -> VectorBytes | GuessedNumbers:
        """Return the vectors of a record whose cells hold vectors or JSON. Raises `VectorError`."""
        # `NumberFields` tests the inner conditions, which may choose elements of an array.
        self._refuse_record(cells, self._cell_conditions)
        return fields.pack(self.parse_values(cells))

    def create_fields(self, paths: Sequence[Path], dimensions: int) -> NumberFields:
        """Create the object that finds the numbers in records whose cells hold several."""
        return NumberFields(
            paths, dimensions, impute=self._options.impute, value_name="row", where=self._inner_conditions
        )

    def parse_values(self, cells: list[str]) -> dict[str, Any]:
        """Return the values of the columns that numbers and conditions lead into, by column."""
        values = {name: parse_value(_get_cell(index, cells)) for name, index in self._index_of_parsed_column.items()}
        if self._columns_beside:
            # `shape` beside `data` says how it is read only if both are arrays, not JSON texts.
            values = {name: open_text(value) for name, value in values.items()}
        return values

    def _refuse_record(self, cells: list[str], conditions: Sequence[Condition]) -> None:
        """Raise `VectorError` if a record has a wrong number of cells, or does not meet conditions."""
        layout = self._layout
        if len(cells) != len(layout.names):
            text = f"{len(cells)} cells, not {len(layout.names)} {layout.describe_separator()}{layout.advice}"
            raise VectorError("wrong_length", text)
        if conditions:
            cell_by_name = dict(zip(layout.names, map(str.strip, cells), strict=True))
            if not are_met(conditions, cell_by_name):
                raise unmet_error()

    def _describe_cell(self, i: int, cell: str) -> str:
        """Say what is wrong with the cell of the i-th number."""
        layout = self._layout
        name = self.number_columns[i]
        position = layout.names.index(name) + 1
        text = f"column {position} ({name}) is not a number: {cell!r} {layout.describe_separator()}"
        return f"{text}; {MISSING_HINT}{layout.advice}"


def rows_of_csv(path: str, options: FileOptions) -> Rows:
    """Open a CSV file with numbers in columns, or with vectors as text in one column."""
    layout = _find_csv_layout(path, options)
    try:
        columns = _choose_csv_columns(path, layout, options)
    except InputError as error:
        raise InputError(f"{error}{layout.advice}") from None
    reader = _CsvReader(layout, columns, options)
    first_values = _find_first_values(path, reader)
    pack: Callable[[list[str]], VectorBytes | GuessedNumbers]
    if _may_hold_several_numbers(columns.paths, [first_values.get(name) for name in reader.number_columns]):
        # The first row tells the dimensions even if it does not meet the conditions.
        d = options.dimensions or columns._replace(where=()).count_dimensions(first_values, path)
        # Choose again: if there are d columns, their names are those of the dimensions.
        columns = _choose_csv_columns(path, layout, options._replace(dimensions=d))
        fields = reader.create_fields(columns.paths, d)
        pack = partial(reader.pack_texts, fields)
    else:
        d = len(columns.paths)
        fields = None
        pack = reader.pack_numbers
    getter_by_column = {name: partial(_get_cell, layout.names.index(name)) for name in columns.other_columns}
    about_header = "the first line is the header" if layout.has_header else "the first line is a row"
    return Rows(
        path=path,
        dimensions=d,
        batches=partial(text_batches, path, reader.records, pack, getter_by_column, d, fields),
        impute=options.impute,
        names=columns.names,
        fields=fields,
        notes="; ".join([about_header, *columns.notes]),
        other_types=dict.fromkeys(columns.other_columns, None),
    )


def _find_first_values(path: str, reader: _CsvReader) -> dict[str, Any]:
    """Return the values, by column, of the first row that has a number; {} if no row has one."""
    with input_errors(path, csv.Error), open_stream(path) as (file, _):
        for cells in reader.records(file):
            value_by_name = reader.parse_values(cells)
            if any(value_by_name.get(name) is not None for name in reader.number_columns):
                return value_by_name
    return {}


def _may_hold_several_numbers(paths: Sequence[Path], values: Sequence[Any]) -> bool:
    """Return whether a cell may hold several numbers, by the paths and the first values there."""
    lead_into_cells = any(len(path) > 1 for path in paths)  # such as `reading.temp`
    texts = [value for value in values if isinstance(value, str)]
    may_be_base64 = len(paths) == 1 and bool(texts)  # such as AACAPwAAAEA=
    are_arrays = any(map(begins_as_array, texts))  # such as [1, 2]
    are_parsed_arrays = any(isinstance(value, list) for value in values)
    return lead_into_cells or may_be_base64 or are_arrays or are_parsed_arrays


def _find_csv_layout(path: str, options: FileOptions) -> _CsvLayout:
    """Find out how a CSV file is written, unless the options say it.

    Raises `InputError` if the first line may be either a header or a row.
    """
    separators = [options.separator] if options.separator else _SEPARATORS
    with input_errors(path, csv.Error), open_stream(path) as (file, _):
        head = read_head(lines(file, options.encoding, options.skip_lines), _MAX_PREAMBLE)
        first_lines = head[:_HEAD_LINES]
        separator = max(separators, key=lambda candidate: _rank_separator(candidate, first_lines))
        records = [[cell.strip() for cell in cells] for cells in _csv_records(first_lines, separator)]
        skipping = suggest_skipping(head, separators, options.skip_lines)
    advice = f"; if the first lines are not the header and rows, say {skipping}" if skipping else ""
    first = records[0] if records else []
    second = records[1] if len(records) > 1 else []
    has_header = options.header
    if has_header is None:
        has_header = _require_header_or_row(path, first, second)
    if has_header:
        return _CsvLayout(separator, has_header, names=first, first_row=second, advice=advice)
    column_numbers = [str(i) for i in range(len(first))]
    return _CsvLayout(separator, has_header, names=column_numbers, first_row=first, advice=advice)


def _require_header_or_row(path: str, first: Sequence[str], second: Sequence[str]) -> bool:
    """Return whether the first line of a file is a header. Raises `InputError` if it may also be a row."""
    has_header = _is_header(first, second)
    if has_header is None:
        raise InputError(
            f"{path}: the first line may be a header or a row: say --header or --no-header. It is {quote_names(first)}"
        )
    return has_header


def _choose_csv_columns(path: str, layout: _CsvLayout, options: FileOptions) -> Columns:
    """Choose which columns of a CSV file hold the numbers. Raises `InputError`."""
    # A column with text in its first cell is not chosen by default.
    example_row: dict[str, float | str | None] = dict.fromkeys(layout.names, 0.0)
    for name, cell in zip(layout.names, layout.first_row, strict=False):
        is_text = parse_cell(cell) is None
        if is_missing(cell):
            example_row[name] = None
        elif is_text:
            example_row[name] = cell
    described_path = f"{path} {layout.describe_separator()}"
    columns = choose_columns(example_row, options, described_path, has_names=layout.has_header)
    repeated = [name for name in columns.needed if layout.names.count(name) > 1]
    if repeated:
        raise InputError(f"{path} has several columns {repeated[0]}")
    refuse_patterns(columns, path)
    return columns


def _get_cell(index: int, cells: list[str]) -> str:
    """Return the cell with this index, or "" if the record is too short."""
    return cells[index].strip() if index < len(cells) else ""


def _rank_separator(separator: str, head: Sequence[str]) -> tuple[bool, int]:
    """Rank a separator by how well it fits the first lines; the best has the largest rank.

    The best one divides all records into the same number of cells, as many as possible.
    """
    cell_counts = [len(cells) for cells in _csv_records(head, separator)]
    if not cell_counts:
        return False, 0
    are_equal = len(set(cell_counts)) == 1
    return are_equal and cell_counts[0] > 1, cell_counts[0]


def _csv_records(text: Iterable[str], separator: str, *, strict: bool = False) -> Iterator[list[str]]:
    """Yield the cells of each record that is not empty.

    If not `strict`, the last cell may lack its closing quote.
    """
    record_length = 0

    def bounded_lines() -> Iterator[str]:
        """Yield the lines. Raises `ValueError` if a record becomes too long."""
        nonlocal record_length
        for line in text:
            record_length += len(line)
            if record_length > _MAX_RECORD:  # a quote without an end would join all further lines
                raise ValueError(f"a row has more than {_MAX_RECORD // 10**6} million characters")
            yield line

    for cells in csv.reader(bounded_lines(), delimiter=separator, strict=strict, skipinitialspace=True):
        record_length = 0
        is_blank_line = len(cells) <= 1 and not "".join(cells).strip()
        if not is_blank_line:
            yield cells


def _is_header(first: Sequence[str], second: Sequence[str]) -> bool | None:
    """Return whether the first line is a header, by the first two lines; None if it may be either."""
    numbers = [parse_cell(cell) for cell in first]
    has_text = None in numbers
    has_empty_name = "" in first  # pandas writes no name for the index
    if has_text or has_empty_name:
        return True
    has_missing_word = any(map(is_missing, first))  # such as NA
    are_positions = bool(numbers) and numbers == list(range(len(first)))  # pandas writes 0, 1, 2, … without names
    second_numbers = [parse_cell(cell) for cell in second]
    # The header of a table of spectra may be 400, 410, 420, …
    may_be_frequencies = len(first) >= _MIN_FREQUENCIES and _are_frequencies(numbers, second_numbers)
    may_be_header = has_missing_word or are_positions or may_be_frequencies
    if may_be_header:
        return None
    return False


def _are_frequencies(first: Sequence[float | None], second: Sequence[float | None]) -> bool:
    """Return whether the first line may hold names that are frequencies: they rise or fall.

    If the second line does the same, both lines are rows.
    """
    if _is_rising(first):
        return not _is_rising(second)
    first_falls = _is_rising(first[::-1])
    second_falls = _is_rising(second[::-1])
    return first_falls and not second_falls


def _is_rising(numbers: Sequence[float | None]) -> bool:
    """Return whether each number is greater than the one before it. False if one is None."""
    if not numbers or None in numbers:
        return False
    return all(earlier < later for earlier, later in pairwise(numbers))  # type: ignore[operator]


def rows_of_jsonl(path: str, options: FileOptions) -> Rows:
    """Open a JSON Lines file. Its rows are read like messages of the format json."""
    with input_errors(path):
        layout = _find_json_layout(path, options)
    columns = layout.columns
    d = layout.dimensions
    fields = NumberFields(columns.paths, d, impute=options.impute, value_name="JSON document", where=options.where)

    def pack(value: Any) -> VectorBytes | GuessedNumbers:
        if isinstance(value, VectorError):
            raise value
        return fields.pack(value)

    getter_by_column: dict[str, Callable[[Any], Any]] = {
        name: partial(_get_entry, name) for name in columns.other_columns
    }
    other_types: dict[str, str | None] = {}
    # Later rows may have fields that the first row lacks, so all other fields are one column.
    if options.other_columns is True:
        vector_fields = {str(get_steps(vector_path)[0]) for vector_path in columns.paths}
        getter_by_column[ALL_FIELDS] = partial(_get_other_fields, vector_fields)
        other_types = _find_types(_get_other_fields(vector_fields, layout.first_row))
    return Rows(
        path=path,
        dimensions=d,
        batches=partial(text_batches, path, _json_values, pack, getter_by_column, d, fields),
        impute=options.impute,
        names=columns.names,
        notes="; ".join(columns.notes),
        fields=fields,
        other_types=other_types,
    )


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
        for row, value in enumerate(_json_values(file), 1):
            if isinstance(value, VectorError):
                raise InputError(f"{path}, row {row}: {value}")
            if not _meets_conditions(value, options.where):
                continue
            columns = choose_columns(value, options, path)
            if columns.are_all_null:  # a later row shows which columns hold numbers
                continue
            d = options.dimensions or columns.count_dimensions(value, path)
            if d:
                # Choose again: if there are d columns, their names are those of the dimensions.
                columns = choose_columns(value, options._replace(dimensions=d), path)
                return _JsonLayout(columns, dimensions=d, first_row=value)
    if options.dimensions is None:
        raise no_vectors_error(path, options.where)
    columns = Columns(parse_paths(options.field), where=options.where)
    return _JsonLayout(columns, dimensions=options.dimensions, first_row=None)


def _meets_conditions(row: Any, conditions: Sequence[Condition]) -> bool:
    """Return whether a row meets the conditions. A null row does not."""
    try:
        return row is not None and are_met(conditions, row)
    except VectorError:  # a path chooses one element of an array, but several fit
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
    opened = open_text(value)
    return opened.get(name) if isinstance(opened, dict) else None


def _get_other_fields(vector_fields: Collection[str], value: Any) -> dict[str, Any]:
    """Return the fields of a JSON object that do not hold the vector; {} for other values."""
    opened = open_text(value)
    if not isinstance(opened, dict):
        return {}
    return {name: entry for name, entry in opened.items() if name not in vector_fields}
