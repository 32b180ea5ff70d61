"""Files of text: CSV, with a record on each line or a few, and JSON Lines, with a document on each line."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, resolved
from streampca.files.rows import FileBatch, Rows, naming, opened, rows_of_batch
from streampca.formats.csv import MISSING, pack_cells, parse_cell
from streampca.formats.errors import VectorError, quote_names
from streampca.formats.fields import NumberFields
from streampca.formats.json import loads
from streampca.formats.numbers import GuessedNumbers, VectorBytes, pack_rows
from streampca.settings.field_paths import paths_of

_MAX_LINE = 2**24  # bytes of a row of text
_TEXT_ROWS = 256  # of a batch: the objects of more rows do not stay in the processor's cache
_SEPARATORS = (",", ";", "\t")
_LOOKED_AT = 8  # lines
_MAX_RECORD = 2**24  # characters: a quoted cell may have lines


def text_batches(
    path: str, records: Callable[[Any], Iterator[Any]], pack: Callable[[Any], VectorBytes | GuessedNumbers],
    others: Mapping[str, Callable[[Any], Any]], d: int,
) -> Iterator[FileBatch]:  # fmt: skip
    """The `records` of a file, the vectors that `pack` finds in each, and the `others`, columns of them."""
    with naming(path, csv.Error), opened(path) as (file, share):
        rest = records(file)
        while some := list(islice(rest, min(rows_of_batch(d), _TEXT_ROWS))):
            columns = {name: np.fromiter(map(of, some), object, len(some)) for name, of in others.items()}
            yield FileBatch(pack_rows(some, pack, d), share(), columns)


def lines(file: Any) -> Iterator[str]:
    """The lines of a text in UTF-8. Raises `ValueError` for a longer line, and for bytes that are no text."""
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise ValueError(f"a line has more than {_MAX_LINE >> 20} MiB")
        yield line.decode("utf-8-sig")


def rows_of_csv(path: str, options: FileOptions) -> Rows:
    """Numbers in columns, of which NA, NaN and empty cells are missing."""
    with naming(path, csv.Error), opened(path) as (file, _):
        head = list(islice(lines(file), _LOOKED_AT))
        separator = max(options.separator or _SEPARATORS, key=lambda each: _agreement(head, each))
        first, second = [*([cell.strip() for cell in cells] for cells in _records(head, separator)), [], []][:2]
    has_header = _is_header(first, second) if options.header is None else options.header
    if has_header is None:
        raise InputError(
            f"{path}: the first line may be a header or a row: say --header or --no-header. It is {quote_names(first)}"
        )
    names, row = (first, second) if has_header else ([str(i) for i in range(len(first))], first)
    separated = f"(cells are separated by {separator!r})"
    texts = {name: cell for name, cell in zip(names, row, strict=False) if parse_cell(cell) is None}
    columns = resolved(dict.fromkeys(names, 0.0) | texts, options, f"{path} {separated}", named=has_header)
    if twice := [name for name in columns.top if names.count(name) > 1]:
        raise InputError(f"{path} has several columns {twice[0]}")
    chosen = [names.index(name) for name in columns.top]
    d = len(chosen)

    def pack(cells: list[str]) -> bytes:
        if len(cells) != len(names):
            raise VectorError("wrong_length", f"{len(cells)} cells, not {len(names)} {separated}")
        return pack_cells([cells[i] for i in chosen], no_number)

    def no_number(i: int, text: str) -> str:
        return f"column {chosen[i] + 1} ({names[chosen[i]]}) is no number: {text!r} {separated}"

    def records(file: Any) -> Iterator[list[str]]:
        return islice(_records(lines(file), separator, strict=True), int(has_header), None)

    others = {name: partial(_cell, names.index(name)) for name in columns.others}
    said = "; ".join(["the first line is the header" if has_header else "the first line is a row", *columns.said])
    batches = partial(text_batches, path, records, pack, others, d)
    return Rows(path, d, batches, options.impute, columns.names, said, dict.fromkeys(others))


def _cell(i: int, cells: list[str]) -> str:
    return cells[i].strip() if i < len(cells) else ""


def _agreement(head: Sequence[str], separator: str) -> tuple[bool, int]:
    """Whether all records have as many cells, more than one; and how many the first has."""
    counts = [len(cells) for cells in _records(head, separator)] or [0]
    return len(set(counts)) == 1 and counts[0] > 1, counts[0]


def _records(text: Iterable[str], separator: str, *, strict: bool = False) -> Iterator[list[str]]:
    """The cells of each record that is not empty. Unless it is `strict`, the last one may be cut off."""
    size = 0

    def bounded() -> Iterator[str]:
        nonlocal size
        for line in text:
            if (size := size + len(line)) > _MAX_RECORD:
                raise ValueError(f"a row has more than {_MAX_RECORD >> 20} million characters")
            yield line

    for cells in csv.reader(bounded(), delimiter=separator, strict=strict, skipinitialspace=True):
        size = 0
        if len(cells) > 1 or "".join(cells).strip():
            yield cells


def _is_header(first: Sequence[str], second: Sequence[str]) -> bool | None:
    """Whether the first line is a header; None if it may be a row as well."""
    numbers = [parse_cell(cell) for cell in first]
    if None in numbers or "" in first:
        return True
    if any(cell.lower() in MISSING for cell in first) or numbers == list(range(len(first))) != []:
        return None
    following = [parse_cell(cell) for cell in second]
    is_axis = len(first) > 3 and any(_rises(numbers, sign) and not _rises(following, sign) for sign in (1, -1))
    return None if is_axis else False


def _rises(numbers: Sequence[float | None], sign: int) -> bool:
    """Whether numbers rise strictly; with the sign -1, whether they fall."""
    return bool(numbers) and None not in numbers and all(sign * a < sign * b for a, b in pairwise(numbers))  # type: ignore[operator]


def rows_of_jsonl(path: str, options: FileOptions) -> Rows:
    """The rows are read as messages of the format json are, but may hold NaN."""
    with naming(path):
        columns, d = _columns(path, options)
    fields = NumberFields(columns.paths, d, impute=options.impute, value_name="JSON document")

    def pack(value: Any) -> VectorBytes | GuessedNumbers:
        if isinstance(value, VectorError):
            raise value
        return fields.pack(value, refuse_booleans=True)

    others = {} if options.others is True else {name: partial(_entry, name) for name in columns.others}
    batches = partial(text_batches, path, _documents, pack, others, d)
    return Rows(path, d, batches, options.impute, columns.names, "; ".join(columns.said))


def _columns(path: str, options: FileOptions) -> tuple[Columns, int]:
    """Where the numbers of the first row with a vector are, and how many a vector has."""
    with opened(path) as (file, _):
        for row, value in enumerate(_documents(file), 1):
            if isinstance(value, VectorError):
                raise InputError(f"{path}, row {row}: {value}")
            if value is None or (columns := resolved(value, options, path)).is_null:
                continue
            if d := options.dimensions or columns.dimensions_in(value, path):
                return resolved(value, options._replace(dimensions=d), path), d
    if options.dimensions is None:
        raise InputError(f"{path} holds no vectors")
    return Columns(paths_of(options.field)), options.dimensions


def _documents(file: Any) -> Iterator[Any]:
    """The value on each line that is not empty, or the error of one that is no JSON."""
    for line in filter(str.strip, lines(file)):
        try:
            yield loads(line.encode(), nan=True)
        except VectorError as error:
            yield error


def _entry(name: str, value: Any) -> Any:
    return value.get(name) if isinstance(value, dict) else None
