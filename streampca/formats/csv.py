"""CSV: a value is one line of numbers with commas, semicolons, tabs or blanks between, as many devices send them."""

from itertools import pairwise

import numpy as np

from streampca.formats.base import Counts, Fields, Reader, Writer
from streampca.formats.packing import NumberPacker, VectorBytes, VectorError, side_by_side

MISSING = ("", "NA", "NaN", "nan", "null")
_SEPARATORS = ";\t,"
_SHOWN = 40


class CsvReader(Reader):
    def __post_init__(self) -> None:
        self._packer = NumberPacker(self.dimensions, impute=self.impute)

    def read(self, value: bytes) -> VectorBytes:
        try:
            text = value.decode("utf-8-sig").strip("\r\n ")
        except UnicodeDecodeError:
            raise VectorError("undecodable", "not text in UTF-8") from None
        separator = next((letter for letter in _SEPARATORS if letter in text), None)
        return self._packer.pack([number_of(cell) for cell in text.split(separator)], booleans=False)


class CsvWriter(Writer):
    """The numbers of all fields with commas between; NaN becomes nothing; with `counts`, a line for each row."""

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        rows = side_by_side(fields).tolist()
        lines = [",".join("" if number != number else repr(number) for number in row) for row in rows]
        ends = range(1, len(lines) + 1) if counts is None else np.cumsum(counts).tolist()
        return ["\n".join(lines[i:j]).encode() for i, j in pairwise([0, *ends])]


def number_of(cell: str) -> float | None:
    """The number in a cell; None where it is missing. Raises `VectorError` for any other text."""
    cell = cell.strip()
    if cell in MISSING:
        return None
    try:
        if "_" not in cell:
            return float(cell)
    except ValueError:
        pass
    raise VectorError("undecodable", f"{cell[:_SHOWN]!r} is no number")
