"""CSV: a value is one line of numbers with commas, semicolons, tabs or blanks between, as many devices send them."""

import math
import struct
from collections.abc import Callable, Sequence

import orjson

from streampca.formats.base import Counts, Fields, Reader, Writer
from streampca.formats.errors import VectorError, check_length
from streampca.formats.layout import bounds, side_by_side
from streampca.formats.numbers import VectorBytes

MISSING = ("", "na", "nan", "null")
_BOOLEANS = {"true": 1.0, "false": 0.0}
_SEPARATORS = ";\t,"
_SHOWN = 40


class CsvReader(Reader):
    def read(self, value: bytes) -> VectorBytes:
        try:
            text = value.decode("utf-8-sig").strip("\r\n ")
        except UnicodeDecodeError:
            raise VectorError("undecodable", "not text in UTF-8") from None
        separator = next((letter for letter in _SEPARATORS if letter in text), None)
        cells = text.split(separator)
        check_length(len(cells), self.dimensions)
        return packed(cells, "{1!r} is no number".format)


class CsvWriter(Writer):
    """The numbers of all fields with commas between; NaN becomes nothing; with `counts`, a line for each row."""

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        rows = side_by_side(fields).tolist()
        lines = [",".join("" if number != number else repr(number) for number in row) for row in rows]
        return ["\n".join(lines[i:j]).encode() for i, j in bounds(counts, len(lines))]


def packed(cells: Sequence[str], describe: Callable[[int, str], str]) -> bytes:
    """The numbers in cells as float64, NaN for missing ones. Raises `VectorError` that describes a cell without one."""
    kind = f"{len(cells)}d"
    try:
        return struct.pack(kind, *orjson.loads(f"[{','.join(cells)}]"))  # most are plain numbers
    except (ValueError, struct.error):
        numbers = [number_of(cell) for cell in cells]
    if None in numbers:
        i = numbers.index(None)
        raise VectorError("undecodable", describe(i, cells[i][:_SHOWN]))
    return struct.pack(kind, *numbers)


def number_of(cell: str) -> float | None:
    """The number in a cell, NaN if it is missing; None if it is none."""
    word = cell.strip().lower()
    if word in MISSING:
        return math.nan
    try:
        return _BOOLEANS[word] if word in _BOOLEANS else float(word.replace("_", "?"))
    except ValueError:
        return None
