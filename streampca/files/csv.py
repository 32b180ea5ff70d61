"""Reads CSV files: a record is a list of cells, and has one line or a few."""

import csv
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, choose_columns, parse_json_text, refuse_remaining_wildcards
from streampca.files.csv_layout import CsvLayout, find_csv_layout
from streampca.files.rows import Rows, input_errors, open_stream
from streampca.files.text import text_batches
from streampca.formats.csv import pack_cells
from streampca.formats.errors import VectorError, condition_unmet_error
from streampca.formats.fields import NumberFields
from streampca.formats.numbers import VectorBytes
from streampca.formats.tensors import tensor_field_names
from streampca.formats.text import MISSING_HINT, begins_as_array, parse_value
from streampca.formats.walk import are_met
from streampca.settings.field_paths import Condition, Path, get_steps


def rows_of_csv(path: str, options: FileOptions) -> Rows:
    """Open a CSV file with a number in each cell, or with cells that hold several numbers: arrays, base64, or JSON."""
    layout = find_csv_layout(path, options)
    try:
        chosen = _choose_csv_columns(path, layout, options)
    except InputError as error:
        raise InputError(f"{error}{layout.advice}") from None
    # The first step of a path is the name of a column.
    names_of_number_columns = [str(get_steps(path_to_number)[0]) for path_to_number in chosen.paths]
    parser = _CellParser(layout, names_of_number_columns, options.where)
    first_values = _find_first_values(path, layout, options, parser)  # by the name of the column
    first_cells = [first_values.get(name) for name in names_of_number_columns]  # parsed; None: the cell is empty
    if _may_hold_several_numbers(chosen.paths, first_cells):
        return _rows_of_parsed_cells(path, layout, options, chosen, parser, first_values)
    # A single number in each cell is read faster, without the parser.
    pack_numbers = _NumberColumns(layout, names_of_number_columns, options.where).pack
    return _create_rows(path, layout, chosen, options, d=len(chosen.paths), pack=pack_numbers)


def _rows_of_parsed_cells(
    path: str, layout: CsvLayout, options: FileOptions, provisional_columns: Columns, parser: "_CellParser",
    first_values: dict[str, Any],
) -> Rows:  # fmt: skip
    """Open a CSV file whose cells hold several numbers.

    `first_values` are the values, by column, of the first row that has a number; {} if no row has one. From these
    values and the `provisional_columns`, d is found, and then the columns are chosen again.
    """
    # The first row tells the number of dimensions even if it does not meet the conditions of `where`.
    columns_without_conditions = provisional_columns._replace(where=())
    d = options.dimensions or columns_without_conditions.count_dimensions(first_values, path)
    # Choose again with d, because the names depend on d: if there are d paths, each path names a dimension.
    columns = _choose_csv_columns(path, layout, options._replace(dimensions=d))
    vector_reader = NumberFields(
        columns.paths,
        d,
        impute=options.impute,
        value_name="row",
        where=parser.conditions_on_json,  # `parser.pack` tests the other conditions
    )
    pack = partial(parser.pack, vector_reader)
    return _create_rows(path, layout, columns, options, d=d, pack=pack, vector_reader=vector_reader)


def _create_rows(
    path: str, layout: CsvLayout, columns: Columns, options: FileOptions, *, d: int,
    pack: Callable[[list[str]], VectorBytes], vector_reader: NumberFields | None = None,
) -> Rows:  # fmt: skip
    """Return the rows of a CSV file, as vectors of d numbers.

    `pack` returns the numbers in the cells of a row: the bytes of one or more vectors, or `GuessedNumbers` if a cell in
    base64 does not tell their type. If cells hold several numbers, `vector_reader` is the reader that `pack` uses: it
    warns if array elements change places between rows. If each cell is one number, `vector_reader` is None.
    """
    getter_by_column = {name: partial(_get_cell, layout.names.index(name)) for name in columns.other_columns}
    about_header = "the first line is the header" if layout.has_header else "the first line is a row"
    read_batches = partial(
        text_batches,
        path,
        read_records=partial(layout.read_records, options=options),
        pack=pack,
        getter_by_column=getter_by_column,
        d=d,
        vector_reader=vector_reader,
    )
    return Rows(
        path=path,
        dimensions=d,
        batches=read_batches,
        impute=options.impute,
        names=columns.names,
        vector_reader=vector_reader,
        notes="; ".join([about_header, *columns.notes]),
        other_types=dict.fromkeys(columns.other_columns, None),  # None: text
    )


class _NumberColumns:
    """Columns of a CSV file that hold a number in each record."""

    def __init__(self, layout: CsvLayout, names: Sequence[str], where: Sequence[Condition]) -> None:
        """`names` are those of the columns. If the file does not have a column, its numbers are missing."""
        self._layout = layout
        self._names = names
        self._where = where
        index_by_name = {name: index for index, name in enumerate(layout.names)}
        self._indices = [index_by_name.get(name) for name in names]

    def pack(self, cells: list[str]) -> VectorBytes:
        """Return the numbers of a record. Raises `VectorError`."""
        _refuse_record(cells, self._layout, self._where)
        number_cells = ["" if index is None else cells[index] for index in self._indices]
        return pack_cells(number_cells, describe=self._describe_cell)

    def _describe_cell(self, i: int, cell: str) -> str:
        """Say what is wrong with the cell of the i-th number."""
        layout = self._layout
        name = self._names[i]
        position = layout.names.index(name) + 1
        text = f"column {position} ({name}) is not a number: {cell!r} {layout.describe_separator()}"
        return f"{text}; {MISSING_HINT}{layout.advice}"


class _CellParser:
    """Parses the cells of a CSV file that may hold several numbers: arrays, base64, or JSON."""

    def __init__(self, layout: CsvLayout, number_columns: Sequence[str], where: Sequence[Condition]) -> None:
        """`number_columns` are the columns with the numbers. `where` are the conditions that rows must meet."""
        self._layout = layout
        # The path of a condition has one step in `room=hall`, which compares the text of a cell. The path has two steps
        # in `readings.ok=true`, which leads into JSON in the cells of `readings`.
        self._conditions_on_text = [condition for condition in where if len(condition.steps) == 1]
        self.conditions_on_json = [condition for condition in where if len(condition.steps) > 1]
        self.number_columns = number_columns
        # Columns that say how tensors are read, if the file has them, such as `shape` for the tensors in `data`.
        self._tensor_description_columns = tensor_field_names(number_columns)
        condition_columns = {condition.steps[0] for condition in self.conditions_on_json}
        parsed_columns = {*number_columns, *self._tensor_description_columns, *condition_columns}
        self._index_of_parsed_column = {name: i for i, name in enumerate(layout.names) if name in parsed_columns}

    def parse(self, cells: list[str]) -> dict[str, Any]:
        """Return the values in the columns that the numbers or the conditions of `where` need, by column.

        A value is a number, None if it is missing, or a text. A text with JSON is parsed later, or here for tensors.
        """
        values = {name: parse_value(_get_cell(index, cells)) for name, index in self._index_of_parsed_column.items()}
        if self._tensor_description_columns:  # such as `shape`
            # A tensor and its shape are recognised only as arrays, so texts such as "[2, 3]" must become arrays.
            values = {name: parse_json_text(value) for name, value in values.items()}
        return values

    def pack(self, vector_reader: NumberFields, cells: list[str]) -> VectorBytes:
        """Return the vectors of a record. Raises `VectorError`."""
        # `vector_reader` tests the conditions on JSON, which may choose elements of an array.
        _refuse_record(cells, self._layout, self._conditions_on_text)
        return vector_reader.pack(self.parse(cells))


def _refuse_record(cells: list[str], layout: CsvLayout, conditions: Sequence[Condition]) -> None:
    """Raise `VectorError` if a record has a wrong number of cells, or does not meet the conditions on its cells."""
    if len(cells) != len(layout.names):
        # Such as "3 cells, not 4 (cells are separated by ',')", perhaps with the advice to skip the first lines.
        text = f"{len(cells)} cells, not {len(layout.names)} {layout.describe_separator()}{layout.advice}"
        raise VectorError("wrong_length", text)
    if conditions:
        cell_by_name = dict(zip(layout.names, map(str.strip, cells), strict=True))
        if not are_met(conditions, cell_by_name):
            raise condition_unmet_error()


def _get_cell(index: int, cells: list[str]) -> str:
    """Return the cell with this index, or "" if the record is too short."""
    return cells[index].strip() if index < len(cells) else ""


def _find_first_values(path: str, layout: CsvLayout, options: FileOptions, parser: _CellParser) -> dict[str, Any]:
    """Return the values, by column, of the first row that has a number; {} if no row has one."""
    with input_errors(path, csv.Error), open_stream(path) as (file, _):
        for cells in layout.read_records(file, options):
            value_by_name = parser.parse(cells)
            if any(value_by_name.get(name) is not None for name in parser.number_columns):
                return value_by_name
    return {}


def _may_hold_several_numbers(paths: Sequence[Path], values: Sequence[Any]) -> bool:
    """Return whether a cell may hold several numbers, by the paths and the first values there."""
    lead_into_json = any(len(path) > 1 for path in paths)  # such as `reading.temp`: the cells of `reading` hold JSON
    texts = [value for value in values if isinstance(value, str)]
    # Base64, such as AACAPwAAAEA=, is a whole vector. It is decoded only if there is a single path.
    may_be_base64 = len(paths) == 1 and bool(texts)
    are_arrays = any(map(begins_as_array, texts))  # such as [1, 2]
    are_parsed_arrays = any(isinstance(value, list) for value in values)
    return lead_into_json or may_be_base64 or are_arrays or are_parsed_arrays


def _choose_csv_columns(path: str, layout: CsvLayout, options: FileOptions) -> Columns:
    """Choose which columns of a CSV file hold the numbers. Raises `InputError`."""
    # Columns count as numbers unless the first row has a text there. 0.0 stands for cells that a short first row lacks.
    example_row: dict[str, float | str | None] = dict.fromkeys(layout.names, 0.0)
    for name, cell in zip(layout.names, layout.first_row, strict=False):
        example_row[name] = parse_value(cell)
    described_path = f"{path} {layout.describe_separator()}"
    columns = choose_columns(example_row, options, described_path, has_names=layout.has_header)
    repeated = [name for name in columns.needed if layout.names.count(name) > 1]
    if repeated:
        raise InputError(f"{path} has several columns {repeated[0]}")
    # `choose_columns` replaces `labels.x*` by the names in the first cell of `labels`. An empty cell has no names.
    refuse_remaining_wildcards(columns, path)
    return columns
