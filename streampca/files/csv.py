"""CSV: which character separates its cells, whether its first line is a header, and its rows."""

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

from streampca.errors import InputError
from streampca.files.columns import NUMBER, FileOptions, Wanted, resolved
from streampca.files.kinds import naming, opened
from streampca.files.rows import FileBatch, Rows, Text, lines, text_batches
from streampca.formats.csv import MISSING
from streampca.formats.packing import VectorError, listed

_SEPARATORS = (",", ";", "\t")
_MISSING, _BOOLEANS = {name.lower() for name in MISSING}, {"true": 1.0, "false": 0.0}
_LOOKED_AT = 8  # lines
_MAX_RECORD = 2**24  # characters: a quoted cell may have lines


class Layout(NamedTuple):
    separator: str
    names: list[str]  # of the columns; without a header their numbers
    has_header: bool
    first: list[str]  # the first row


def rows_of_csv(path: str, wanted: Wanted) -> Rows:
    """Numbers in columns, of which NA, NaN and empty cells are missing."""
    with naming(path, csv.Error):
        with opened(path) as head:
            layout = _layout(list(islice(lines(head.file), _LOOKED_AT)), wanted.options, path)
        names = layout.names
        texts = {name for name, cell in zip(names, layout.first, strict=False) if number_of(cell) is None}
        tree = {name: "text" if name in texts else NUMBER for name in names}
        separated = f"(cells are separated by {layout.separator!r})"
        columns = resolved(tree, wanted, f"{path} {separated}", named=layout.has_header)
    if twice := [name for name in columns.top if names.count(name) > 1]:
        raise InputError(f"{path} has several columns {twice[0]}")
    if not layout.first and wanted.dimensions is None:
        raise InputError(f"{path} holds no vectors")
    chosen = [names.index(name) for name in columns.top]
    others = [name for name in names if name not in columns.top] if wanted.others is True else wanted.others or []

    def numbers(cells: list[str]) -> bytes:
        if len(cells) != len(names):
            raise VectorError("wrong_length", f"{len(cells)} cells, not {len(names)} {separated}")
        texts = [cells[i] for i in chosen]
        try:
            if "_" not in "".join(texts):  # Python's numbers may have them
                return array("d", map(float, texts)).tobytes()
        except ValueError:
            pass
        return array("d", [_number(text, i, names[i]) for text, i in zip(texts, chosen, strict=True)]).tobytes()

    def _number(text: str, i: int, name: str) -> float:
        if (number := number_of(text)) is None:
            raise VectorError("undecodable", f"column {i + 1} ({name}) is no number: {text[:40]!r} {separated}")
        return number

    def records(file: Any) -> Iterator[list[str]]:
        return islice(_records(lines(file), layout.separator), int(layout.has_header), None)

    text = Text(records, list, numbers, {name: partial(_cell, names.index(name)) for name in others})

    def batches() -> Iterator[FileBatch]:
        with naming(path, csv.Error), opened(path) as file:
            yield from text_batches(file, text, len(chosen))

    first = f"the first line {'is the header' if layout.has_header else 'is a row'}"
    said = "; ".join(filter(None, [first, columns.said]))
    return Rows(path, len(chosen), batches, columns.names, wanted.impute, dict.fromkeys(others), said)


def _cell(i: int, cells: list[str]) -> str:
    return cells[i] if i < len(cells) else ""


def _layout(head: Sequence[str], options: FileOptions, path: str) -> Layout:
    """The layout of a text that begins with these lines. Raises `InputError` if it may be this or that."""
    separators = _SEPARATORS if options.separator is None else (options.separator,)
    separator = max(separators, key=lambda each: _agreement(head, each))
    first, second = [*(_first_records(head, separator) or _records(iter(head), separator)), [], []][:2]
    has_header = _is_header(first, second) if options.header is None else options.header
    if has_header is None:
        texts = f"the first line may be a header or a row: say --header or --no-header. It is {listed(first)}"
        raise InputError(f"{path}: {texts}")
    if not has_header:
        return Layout(separator, [str(i) for i in range(len(first))], has_header, first)
    return Layout(separator, first, has_header, second)


def _agreement(head: Sequence[str], separator: str) -> tuple[bool, int]:
    """Whether all records have as many cells, more than one; and how many the first has."""
    counts = [len(cells) for cells in _first_records(head, separator)] or [0]
    return len(set(counts)) == 1 and counts[0] > 1, counts[0]


def _first_records(head: Sequence[str], separator: str) -> list[list[str]]:
    found = list[list[str]]()
    with suppress(csv.Error):  # the last one may go on in the next line
        found.extend(_records(iter(head), separator))
    return found


def _records(text: Iterator[str], separator: str) -> Iterator[list[str]]:
    """The cells of each record that is not empty."""
    size = 0

    def bounded() -> Iterator[str]:
        nonlocal size
        for line in text:
            if (size := size + len(line)) > _MAX_RECORD:
                raise ValueError(f"a row has more than {_MAX_RECORD >> 20} million characters")
            yield line

    for cells in csv.reader(bounded(), delimiter=separator, strict=True, skipinitialspace=True):
        size = 0
        if "".join(cells).strip() or len(cells) > 1:
            yield [text.strip() for text in cells]


def _is_header(first: Sequence[str], second: Sequence[str]) -> bool | None:
    """Whether the first line is a header; None if it may be a row as well."""
    numbers = [number_of(cell) for cell in first]
    if None in numbers or "" in first:
        return True
    if any(cell.lower() in _MISSING for cell in first) or numbers == list(range(len(first))) != []:
        return None
    following = [number_of(cell) for cell in second]
    is_axis = len(first) > 3 and any(_rises(numbers, sign) and not _rises(following, sign) for sign in (1, -1))
    return None if is_axis else False


def _rises(numbers: Sequence[float | None], sign: int) -> bool:
    """Whether numbers rise strictly; with the sign -1, whether they fall."""
    return bool(numbers) and None not in numbers and all(sign * a < sign * b for a, b in pairwise(numbers))  # type: ignore[operator]


def number_of(text: str) -> float | None:
    """The number in a cell, NaN if it is missing; None if it is none."""
    word = text.lower()
    if word in _MISSING:
        return math.nan
    try:
        return _BOOLEANS[word] if word in _BOOLEANS else float(word.replace("_", "?"))
    except ValueError:
        return None
