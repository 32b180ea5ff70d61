"""Files of text: CSV, with a record on each line or a few, and JSON Lines, with a document on each line."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, choose_columns
from streampca.files.rows import FileBatch, Rows, batch_rows, input_errors, open_stream
from streampca.formats.csv import MISSING, pack_cells, parse_cell
from streampca.formats.errors import VectorError, quote_names
from streampca.formats.fields import NumberFields
from streampca.formats.json import loads
from streampca.formats.numbers import GuessedNumbers, VectorBytes, pack_rows
from streampca.settings.field_paths import paths_of

_MAX_LINE = 2**24  # bytes of a line
_MAX_RECORD = 2**24  # characters of a record of CSV, which has several lines if a quoted cell has them
_TEXT_ROWS = 256  # of a batch: the objects of more rows do not stay in the processor's cache
_SEPARATORS = (",", ";", "\t")
_HEAD_LINES = 8  # from which it is found out how a CSV file is written
_MIN_AXIS_NUMBERS = 4  # fewer numbers often rise or fall by chance


def text_batches(
    path: str, records: Callable[[Any], Iterator[Any]], pack: Callable[[Any], VectorBytes | GuessedNumbers],
    others: Mapping[str, Callable[[Any], Any]], d: int,
) -> Iterator[FileBatch]:  # fmt: skip
    """Read a file of text in batches.

    `records` yields the records of the opened file, and `pack` returns the numbers of a record. `others` are further
    columns: their names, each with the function that returns its value in a record.
    """
    n = min(batch_rows(d), _TEXT_ROWS)
    with input_errors(path, csv.Error), open_stream(path) as (file, share_read):
        remaining = records(file)
        while batch := list(islice(remaining, n)):
            columns = {name: np.fromiter(map(value_in, batch), object, len(batch)) for name, value_in in others.items()}
            yield FileBatch(pack_rows(batch, pack, d), share_read(), columns)


def lines(file: Any) -> Iterator[str]:
    """Yield the lines of a text in UTF-8. Raises `ValueError` for bytes that are not text, and for a very long line."""
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise ValueError(f"a line has more than {_MAX_LINE >> 20} MiB")
        yield line.decode("utf-8-sig")


class _CsvLayout(NamedTuple):
    """How a CSV file is written."""

    separator: str
    has_header: bool
    names: list[str]  # of the columns; 0, 1, 2, … in a file without a header
    first_row: list[str]  # the first one after the header

    def describe_separator(self) -> str:
        return f"(cells are separated by {self.separator!r})"


def rows_of_csv(path: str, options: FileOptions) -> Rows:
    """Open a CSV file with numbers in columns. Empty cells, NA and NaN are missing numbers."""
    layout = _find_csv_layout(path, options)
    columns = _choose_csv_columns(path, layout, options)
    indices = [layout.names.index(name) for name in columns.with_numbers]
    others = {name: partial(_cell, layout.names.index(name)) for name in columns.others}

    def records(file: Any) -> Iterator[list[str]]:
        first_row = 1 if layout.has_header else 0
        return islice(_csv_records(lines(file), layout.separator, strict=True), first_row, None)

    def pack(cells: list[str]) -> bytes:
        if len(cells) != len(layout.names):
            text = f"{len(cells)} cells, not {len(layout.names)} {layout.describe_separator()}"
            raise VectorError("wrong_length", text)
        return pack_cells([cells[index] for index in indices], describe=describe_cell)

    def describe_cell(i: int, cell: str) -> str:  # the i-th of the cells with numbers
        column = indices[i]
        name = layout.names[column]
        return f"column {column + 1} ({name}) is no number: {cell!r} {layout.describe_separator()}"

    about_header = "the first line is the header" if layout.has_header else "the first line is a row"
    return Rows(
        path=path,
        dimensions=len(indices),
        batches=partial(text_batches, path, records, pack, others, len(indices)),
        impute=options.impute,
        names=columns.names,
        notes="; ".join([about_header, *columns.notes]),
        others=dict.fromkeys(others),  # the type None: text
    )


def _find_csv_layout(path: str, options: FileOptions) -> _CsvLayout:
    """Find out from its first lines how a CSV file is written, unless the options say it.

    If the first line may be a header or a row, raises `InputError`.
    """
    with input_errors(path, csv.Error), open_stream(path) as (file, _):
        head = list(islice(lines(file), _HEAD_LINES))
        separators = options.separator or _SEPARATORS
        separator = max(separators, key=lambda candidate: _rank(candidate, head))
        records = [[cell.strip() for cell in cells] for cells in _csv_records(head, separator)]
    first, second = [*records, [], []][:2]
    has_header = _is_header(first, second) if options.header is None else options.header
    if has_header is None:
        raise InputError(
            f"{path}: the first line may be a header or a row: say --header or --no-header. It is {quote_names(first)}"
        )
    if has_header:
        return _CsvLayout(separator, has_header, names=first, first_row=second)
    return _CsvLayout(separator, has_header, names=[str(i) for i in range(len(first))], first_row=first)


def _choose_csv_columns(path: str, layout: _CsvLayout, options: FileOptions) -> Columns:
    """Choose which columns of a CSV file hold the numbers, and which further ones are read. Raises `InputError`."""
    # Columns are chosen by an example of a row. In it, any number stands for a cell that holds one; other cells stay
    # texts, which cannot be chosen.
    example: dict[str, float | str] = dict.fromkeys(layout.names, 0.0)
    for name, cell in zip(layout.names, layout.first_row, strict=False):
        if parse_cell(cell) is None:
            example[name] = cell
    columns = choose_columns(example, options, f"{path} {layout.describe_separator()}", named=layout.has_header)
    repeated = [name for name in columns.with_numbers if layout.names.count(name) > 1]
    if repeated:
        raise InputError(f"{path} has several columns {repeated[0]}")
    return columns


def _cell(index: int, cells: list[str]) -> str:
    """Return the cell with this index; a row that is too short has an empty one."""
    return cells[index].strip() if index < len(cells) else ""


def _rank(separator: str, head: Sequence[str]) -> tuple[bool, int]:
    """Rank a separator of cells by how well it fits the first lines of a file; a better one ranks higher.

    It fits if all records have equally many cells, and more than one. Among those that fit, more cells are better.
    """
    counts = [len(cells) for cells in _csv_records(head, separator)] or [0]
    fits = len(set(counts)) == 1 and counts[0] > 1
    return fits, counts[0]


def _csv_records(text: Iterable[str], separator: str, *, strict: bool = False) -> Iterator[list[str]]:
    """Yield the cells of each record that is not empty.

    If `strict`, a quoted cell that does not end is an error. The first lines of a file may end within a cell.
    """
    size = 0  # characters of the record that is being read; set to 0 after each record

    def bounded_lines() -> Iterator[str]:
        nonlocal size
        for line in text:
            size += len(line)
            if size > _MAX_RECORD:
                raise ValueError(f"a row has more than {_MAX_RECORD // 10**6} million characters")
            yield line

    for cells in csv.reader(bounded_lines(), delimiter=separator, strict=strict, skipinitialspace=True):
        size = 0
        if len(cells) > 1 or "".join(cells).strip():
            yield cells


def _is_header(first: Sequence[str], second: Sequence[str]) -> bool | None:
    """Tell from the cells of the first two lines whether the first one is a header; None if it may be either."""
    numbers = [parse_cell(cell) for cell in first]
    if None in numbers or "" in first:  # a cell is a name, or the empty name of an index
        return True
    has_missing_word = any(cell.lower() in MISSING for cell in first)  # such as NA, which may be a name
    counts_from_0 = bool(numbers) and numbers == list(range(len(first)))  # pandas names columns without a name so
    may_be_axis = len(first) >= _MIN_AXIS_NUMBERS and _are_axis(numbers, [parse_cell(cell) for cell in second])
    return None if has_missing_word or counts_from_0 or may_be_axis else False


def _are_axis(first: Sequence[float | None], second: Sequence[float | None]) -> bool:
    """Test whether the numbers of the first line may be names: the values of an axis, such as frequencies.

    Such names rise or fall from column to column, and the numbers of the second line do not do the same.
    """
    if _is_rising(first):
        return not _is_rising(second)
    return _is_rising(first[::-1]) and not _is_rising(second[::-1])  # falling


def _is_rising(numbers: Sequence[float | None]) -> bool:
    """Test whether each number is greater than the one before. False if a cell is not a number, or there are none."""
    if not numbers or None in numbers:
        return False
    return all(earlier < later for earlier, later in pairwise(numbers))  # type: ignore[operator]


def rows_of_jsonl(path: str, options: FileOptions) -> Rows:
    """Open a JSON Lines file. Its rows are read like messages of the format json, except that they may hold NaN."""
    with input_errors(path):
        columns, d = _find_json_layout(path, options)
    fields = NumberFields(columns.paths, d, impute=options.impute, value_name="JSON document")

    def pack(value: Any) -> VectorBytes | GuessedNumbers:
        if isinstance(value, VectorError):  # stands for a line that is not JSON
            raise value
        return fields.pack(value, refuse_booleans=True)

    # Further columns are read only if the options name them. "All" cannot be listed: each row may have different ones.
    further = [] if options.others is True else columns.others
    others = {name: partial(_entry, name) for name in further}
    batches = partial(text_batches, path, _json_values, pack, others, d)
    return Rows(path, d, batches, options.impute, columns.names, "; ".join(columns.notes))


def _find_json_layout(path: str, options: FileOptions) -> tuple[Columns, int]:
    """Find the first row that holds a vector. Return where its numbers are, and how many a vector has.

    If no row holds a vector, the options must say both; else raises `InputError`.
    """
    with open_stream(path) as (file, _):
        for row, value in enumerate(_json_values(file), 1):
            if isinstance(value, VectorError):
                raise InputError(f"{path}, row {row}: {value}")
            if value is None:  # null instead of a row
                continue
            columns = choose_columns(value, options, path)
            if columns.is_null:
                continue
            d = options.dimensions or columns.dimensions_in(value, path)
            if d:
                # Columns give the dimensions their names only if there are d of them, so they are chosen again.
                return choose_columns(value, options._replace(dimensions=d), path), d
    if options.dimensions is None:
        raise InputError(f"{path} holds no vectors")
    return Columns(paths_of(options.field)), options.dimensions


def _json_values(file: Any) -> Iterator[Any]:
    """Yield the JSON value on each line that is not blank. For a line that is not JSON, yield a `VectorError`."""
    for line in lines(file):
        if not line.strip():
            continue
        try:
            yield loads(line.encode(), nan=True)
        except VectorError as error:
            yield error


def _entry(name: str, value: Any) -> Any:
    """Return the entry of a JSON object; None if it is missing, or the value is not an object."""
    return value.get(name) if isinstance(value, dict) else None
