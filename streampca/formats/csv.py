"""CSV: a value is one line of numbers with commas, semicolons, tabs or blanks between, as many devices send them."""

import csv
import math
import re
import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import orjson

from streampca.formats.base import Counts, Fields, Reader, Writer
from streampca.formats.errors import VectorError, check_length, condition_unmet_error, hint_at_encoding
from streampca.formats.fields import NumberFields
from streampca.formats.layout import row_bounds, stack_fields
from streampca.formats.numbers import VectorBytes
from streampca.formats.text import MISSING_HINT, begins_as_array, parse_cell, parse_value
from streampca.formats.walk import are_met
from streampca.settings.field_paths import Condition, get_steps

_SEPARATORS = ";\t,"  # the first of these in a line separates its cells: in `1,5;2` the comma is a decimal one
_QUOTED = re.compile(r'"[^"]*"')
_MAX_CELL_LENGTH = 40  # in messages


class CsvReader(Reader):
    """Reads all cells of a line, or those at the positions that `field` names, from 0."""

    value_name = "line"

    def __post_init__(self) -> None:
        """Find the columns that `field` names, and separate conditions on cells from conditions on JSON in a cell."""
        self._column_numbers = [int(str(get_steps(path)[0])) for path in self.paths]  # that `field` names
        self._paths_lead_into_cells = any(len(path) > 1 for path in self.paths)
        self._conditions_on_cells = [condition for condition in self.where if len(condition.steps) == 1]
        # Conditions with more steps lead into JSON in a cell, such as `2.unit=C`.
        self._conditions_on_json = [condition for condition in self.where if len(condition.steps) > 1]

    @cached_property
    def numbers(self) -> NumberFields:
        """Finds the numbers in a line whose cells hold vectors or JSON. The line is a dict from column to cell."""
        return self.find_numbers_at(self.paths, self._conditions_on_json)

    def read(self, value: bytes) -> VectorBytes:
        """Return the numbers of a line. Raises `VectorError`.

        If the numbers are bytes in base64, which do not say the type of the numbers, returns `GuessedNumbers`.
        """
        text = value.decode("utf-8-sig", "replace").strip("\r\n ")
        unquoted = _QUOTED.sub("", text)  # a line end in quotes is a part of a cell
        try:
            # With `field`, only cells of the first line would be read, and the other lines would be lost unnoticed.
            # Without `field`, nothing is lost: the cells of all lines must be the d numbers of the vector.
            if self.paths and "\n" in unquoted:
                raise VectorError("undecodable", "a message holds several lines: write each as a message of its own")
            return self._read_cells(_split(text, unquoted))
        except (VectorError, csv.Error) as error:
            reason = error.reason if isinstance(error, VectorError) else "undecodable"
            raise VectorError(reason, f"{error}{hint_at_encoding(value)}") from None

    def read_tree(self, value: bytes) -> Any:
        """Return the cells of a line by the numbers of their columns, from "0"."""
        text = value.decode("utf-8-sig", "replace").strip("\r\n ")
        return _cell_by_column(_split(text, _QUOTED.sub("", text)))

    def _read_cells(self, cells: list[str]) -> VectorBytes:
        """Return the numbers in the cells of a line. If a condition of `where` is not met, raises `VectorError`.

        Cells that `field` names may hold JSON or arrays of numbers. Without `field`, each cell holds one number. A
        condition compares a whole cell, as `2=C` does, or an entry of the JSON in a cell, as `2.unit=C` does.
        """
        _refuse_unmet(self._conditions_on_cells, cells)
        chosen = self._choose_cells(cells)
        if self.paths and self._hold_json_or_arrays(chosen):
            # `pack` takes the chosen cells out of the whole line. It also tests the conditions on JSON in any cell.
            return self.numbers.pack({str(column): parse_value(cell) for column, cell in enumerate(cells)})
        # The numbers are in plain cells, but another cell may hold JSON that a condition is about.
        _refuse_unmet(self._conditions_on_json, cells)
        check_length(len(chosen), self.dimensions)
        return pack_cells(chosen, describe=_describe_cell)

    def _choose_cells(self, cells: list[str]) -> list[str]:
        """Return the cells in the columns that `field` names; all cells if `field` is not set."""
        if not self.paths:
            has_one_more = len(cells) == self.dimensions + 1
            # If a separator ends the line, there is no cell after it.
            return cells[:-1] if has_one_more and not cells[-1].strip() else cells
        last_column = max(self._column_numbers)
        if last_column >= len(cells):
            raise VectorError("wrong_length", f"{len(cells)} cells, none at the position {last_column}")
        return [cells[column] for column in self._column_numbers]

    def _hold_json_or_arrays(self, cells: Sequence[str]) -> bool:
        """Return whether the chosen cells hold JSON or arrays (as text or in base64), instead of one number each."""
        if self._paths_lead_into_cells:
            return True
        if len(cells) == 1:
            # The only cell holds the whole vector: if d is 1, it may be a number; if not, it is an array.
            is_number = self.dimensions == 1 and parse_cell(cells[0]) is not None
            return not is_number
        return any(map(begins_as_array, cells))


def _refuse_unmet(conditions: Sequence[Condition], cells: Sequence[str]) -> None:
    """Raise `VectorError` if the cells of a line do not meet conditions."""
    if conditions and not are_met(conditions, _cell_by_column(cells)):
        raise condition_unmet_error()


def _cell_by_column(cells: Sequence[str]) -> dict[str, str]:
    """Return the cells of a line by the numbers of their columns, from "0"."""
    return {str(column): cell.strip() for column, cell in enumerate(cells)}


def _split(line: str, unquoted: str) -> list[str]:
    """Return the cells of a line. `unquoted` is the line without its quoted cells, and shows the separator."""
    separator = next((letter for letter in _SEPARATORS if letter in unquoted), None)  # None stands for blanks
    has_quoted_cells = unquoted != line
    if not has_quoted_cells:
        return line.split(separator)
    # The default limit of 128 KiB is too small for a quoted vector.
    csv.field_size_limit(max(len(line), csv.field_size_limit()))
    return next(csv.reader([line], delimiter=separator or " ", skipinitialspace=True))


def _describe_cell(_index: int, cell: str) -> str:
    return f"{cell!r} is not a number ({MISSING_HINT})"


class CsvWriter(Writer):
    """Writes the numbers of all fields in a line, with commas between. NaN is an empty cell.

    With `counts`, a value has a line for each of its rows.
    """

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row or, with `counts`, for each group of `counts[i]` rows."""
        rows = stack_fields(fields).tolist()
        lines = [",".join("" if math.isnan(number) else repr(number) for number in row) for row in rows]
        return ["\n".join(lines[start:end]).encode() for start, end in row_bounds(counts, len(lines))]


def pack_cells(cells: Sequence[str], describe: Callable[[int, str], str]) -> bytes:
    """Return the numbers in cells as float64, with NaN for a cell that is empty or has a word such as NA.

    If a cell has another text, raises `VectorError`. `describe` makes the message from the cell's index and text.
    """
    struct_format = f"{len(cells)}d"
    try:
        # This is much faster than `parse_cell`.
        return struct.pack(struct_format, *orjson.loads(f"[{','.join(cells)}]"))
    except (ValueError, struct.error):
        numbers = [parse_cell(cell) for cell in cells]  # NaN for an empty cell or NA, None for any other text
    if None in numbers:
        index = numbers.index(None)
        raise VectorError("undecodable", describe(index, cells[index][:_MAX_CELL_LENGTH]))
    return struct.pack(struct_format, *numbers)
