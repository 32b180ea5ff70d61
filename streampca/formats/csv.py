"""CSV: a value is one line of numbers with commas, semicolons, tabs or blanks between, as many devices send them."""

import math
import struct
from collections.abc import Callable, Sequence

import orjson

from streampca.formats.base import Counts, Fields, Reader, Writer
from streampca.formats.errors import VectorError, check_length
from streampca.formats.layout import row_bounds, stack_fields
from streampca.formats.numbers import VectorBytes

MISSING = ("", "na", "nan", "null")  # cells without a number, in lower case
_WORDS = dict.fromkeys(MISSING, math.nan) | {"true": 1.0, "false": 0.0}
_SEPARATORS = ";\t,"  # the first of these in a line separates its cells: in `1,5;2` the comma is a decimal one
_MAX_CELL_LENGTH = 40  # in messages


class CsvReader(Reader):
    def read(self, value: bytes) -> VectorBytes:
        try:
            text = value.decode("utf-8-sig").strip("\r\n ")
        except UnicodeDecodeError:
            raise VectorError("undecodable", "not text in UTF-8") from None
        separator = next((letter for letter in _SEPARATORS if letter in text), None)
        cells = text.split(separator)  # None: at blanks
        check_length(len(cells), self.dimensions)
        return pack_cells(cells, describe=_describe_cell)


def _describe_cell(_index: int, cell: str) -> str:
    return f"{cell!r} is no number"


class CsvWriter(Writer):
    """Writes the numbers of all fields in a line, with commas between. NaN is an empty cell.

    With `counts`, a value has a line for each of its rows.
    """

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        rows = stack_fields(fields).tolist()
        lines = [",".join("" if math.isnan(number) else repr(number) for number in row) for row in rows]
        return ["\n".join(lines[start:end]).encode() for start, end in row_bounds(counts, len(lines))]


def pack_cells(cells: Sequence[str], describe: Callable[[int, str], str]) -> bytes:
    """Return the numbers in cells as float64, with NaN for missing ones.

    If a cell does not hold a number, raises `VectorError` with what `describe` says of its index and text.
    """
    layout = f"{len(cells)}d"
    try:
        # JSON's parser is much faster than the code below, and reads plain numbers.
        return struct.pack(layout, *orjson.loads(f"[{','.join(cells)}]"))
    except (ValueError, struct.error):
        numbers = [parse_cell(cell) for cell in cells]
    if None in numbers:
        index = numbers.index(None)
        raise VectorError("undecodable", describe(index, cells[index][:_MAX_CELL_LENGTH]))
    return struct.pack(layout, *numbers)


def parse_cell(cell: str) -> float | None:
    """Return the number in a cell, NaN if it is missing, or None if the cell holds something else."""
    word = cell.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if "_" in word:  # such as 1_000, which `float` would read as a number
        return None
    try:
        return float(word)
    except ValueError:
        return None
