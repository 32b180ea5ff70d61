"""CSV: which character separates its cells, whether its first line is a header, and its rows."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any

from streampca.errors import InputError
from streampca.files.columns import FileOptions, resolved
from streampca.files.kinds import naming, opened
from streampca.files.rows import Rows
from streampca.files.text import lines, text_batches
from streampca.formats.csv import MISSING, number_of, packed
from streampca.formats.packing import VectorError, listed

_SEPARATORS = (",", ";", "\t")
_LOOKED_AT = 8  # lines
_MAX_RECORD = 2**24  # characters: a quoted cell may have lines


def rows_of_csv(path: str, options: FileOptions) -> Rows:
    """Numbers in columns, of which NA, NaN and empty cells are missing."""
    with naming(path, csv.Error), opened(path) as (file, _):
        head = list(islice(lines(file), _LOOKED_AT))
        separator = max(options.separator or _SEPARATORS, key=lambda each: _agreement(head, each))
        first, second = [*([cell.strip() for cell in cells] for cells in _records(head, separator)), [], []][:2]
    has_header = _is_header(first, second) if options.header is None else options.header
    if has_header is None:
        raise InputError(
            f"{path}: the first line may be a header or a row: say --header or --no-header. It is {listed(first)}"
        )
    names, row = (first, second) if has_header else ([str(i) for i in range(len(first))], first)
    separated = f"(cells are separated by {separator!r})"
    texts = {name: cell for name, cell in zip(names, row, strict=False) if number_of(cell) is None}
    columns = resolved(dict.fromkeys(names, 0.0) | texts, options, f"{path} {separated}", named=has_header)
    if twice := [name for name in columns.top if names.count(name) > 1]:
        raise InputError(f"{path} has several columns {twice[0]}")
    chosen = [names.index(name) for name in columns.top]
    d = len(chosen)

    def pack(cells: list[str]) -> bytes:
        if len(cells) != len(names):
            raise VectorError("wrong_length", f"{len(cells)} cells, not {len(names)} {separated}")
        return packed([cells[i] for i in chosen], no_number)

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
    numbers = [number_of(cell) for cell in first]
    if None in numbers or "" in first:
        return True
    if any(cell.lower() in MISSING for cell in first) or numbers == list(range(len(first))) != []:
        return None
    following = [number_of(cell) for cell in second]
    is_axis = len(first) > 3 and any(_rises(numbers, sign) and not _rises(following, sign) for sign in (1, -1))
    return None if is_axis else False


def _rises(numbers: Sequence[float | None], sign: int) -> bool:
    """Whether numbers rise strictly; with the sign -1, whether they fall."""
    return bool(numbers) and None not in numbers and all(sign * a < sign * b for a, b in pairwise(numbers))  # type: ignore[operator]
