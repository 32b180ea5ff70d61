"""Finds out how a CSV file is written: the separator of its cells, and whether its first line is a header."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

from streampca.errors import InputError
from streampca.files.columns import FileOptions
from streampca.files.csv_lines import lines, read_head, suggest_skip_options
from streampca.files.rows import input_errors, open_stream
from streampca.formats.errors import quote_names
from streampca.formats.text import is_missing, parse_cell

_MAX_RECORD_LENGTH = 2**24  # characters of a record, which has several lines if a quoted cell has several lines
_SEPARATORS = (",", ";", "\t")
_HEAD_LINES = 8  # number of first lines that show the separator and the header
_MAX_PREAMBLE = 64  # number of first lines among which the first row is searched, for advice in errors
_MIN_FREQUENCIES = 4  # numbers in a header that rise or fall; fewer numbers often do so by chance


class CsvLayout(NamedTuple):
    """How a CSV file is written."""

    separator: str
    has_header: bool
    names: list[str]  # of the columns; 0, 1, 2, … in a file without a header
    first_row: list[str]  # the cells of the first row, which follows the header; empty if there is no row
    advice: str = ""  # what errors add, if the file seems to begin with lines that are neither header nor rows

    def describe_separator(self) -> str:
        return f"(cells are separated by {self.separator!r})"

    def read_records(self, file: Any, options: FileOptions) -> Iterator[list[str]]:
        """Yield the cells of each record of an opened file, without the header."""
        text = lines(file, options.encoding, options.skip_lines)
        records = _split_into_records(text, self.separator, strict=True)
        return islice(records, 1, None) if self.has_header else records


def find_csv_layout(path: str, options: FileOptions) -> CsvLayout:
    """Find out the separator, the header and the columns of a CSV file from its first lines and the options.

    Raises `InputError` if the first line may be either a header or a row.
    """
    separators = [options.separator] if options.separator else _SEPARATORS
    with input_errors(path, csv.Error), open_stream(path) as (file, _):
        # The layout needs only a few lines. `suggest_skip_options` looks at more lines: a file may begin with many
        # lines of text, which the user must skip.
        long_head = read_head(lines(file, options.encoding, options.skip_lines), _MAX_PREAMBLE)
        head = long_head[:_HEAD_LINES]
        separator = max(separators, key=lambda candidate: _rank_separator(candidate, head))
        records = [[cell.strip() for cell in cells] for cells in _split_into_records(head, separator)]
        skip_options = suggest_skip_options(long_head, separators, options.skip_lines)
    first_record = records[0] if records else []
    second_record = records[1] if len(records) > 1 else []
    has_header = options.header
    if has_header is None:
        has_header = _detect_header(path, first_record, second_record)
    positions = [str(i) for i in range(len(first_record))]
    return CsvLayout(
        separator=separator,
        has_header=has_header,
        names=first_record if has_header else positions,
        first_row=second_record if has_header else first_record,
        advice=f"; if the first lines are not the header and rows, say {skip_options}" if skip_options else "",
    )


def _rank_separator(separator: str, head: Sequence[str]) -> tuple[bool, int]:
    """Rank a separator by how well it fits the first lines; the best has the largest rank.

    The best one divides all records into the same number of cells, as many as possible.
    """
    cell_counts = [len(cells) for cells in _split_into_records(head, separator)]
    if not cell_counts:
        return False, 0
    are_equal = len(set(cell_counts)) == 1
    return are_equal and cell_counts[0] > 1, cell_counts[0]


def _split_into_records(text: Iterable[str], separator: str, *, strict: bool = False) -> Iterator[list[str]]:
    """Yield the cells of each record (the header or a row) that is not empty.

    If not `strict`, the last cell may lack its closing quote.
    """
    record_length = 0  # characters of the current record so far, which may have several lines

    def read_bounded_lines() -> Iterator[str]:
        """Yield the lines. Raises `ValueError` if the lines of one record have too many characters.

        The loop below, which reads the records from these lines, sets `record_length` to 0 after each record.
        """
        nonlocal record_length
        for line in text:
            record_length += len(line)
            if record_length > _MAX_RECORD_LENGTH:  # a quote without an end would join all further lines
                raise ValueError(f"a row has more than {_MAX_RECORD_LENGTH // 10**6} million characters")
            yield line

    for cells in csv.reader(read_bounded_lines(), delimiter=separator, strict=strict, skipinitialspace=True):
        record_length = 0  # the next line begins another record
        is_blank_line = len(cells) <= 1 and not "".join(cells).strip()
        if not is_blank_line:
            yield cells


def _detect_header(path: str, first_record: Sequence[str], second_record: Sequence[str]) -> bool:
    """Return whether the first line of a file is a header. Raises `InputError` if it may also be a row."""
    has_header = _is_header(first_record, second_record)
    if has_header is None:
        raise InputError(
            f"{path}: the first line may be a header or a row: say --header or --no-header. "
            f"It is {quote_names(first_record)}"
        )
    return has_header


def _is_header(first: Sequence[str], second: Sequence[str]) -> bool | None:
    """Return whether the first line is a header, by the first two lines; None if it may be either."""
    numbers = [parse_cell(cell) for cell in first]  # None for a cell with text
    has_text = None in numbers
    has_empty_name = "" in first  # pandas writes no name for the index
    if has_text or has_empty_name:
        return True
    has_missing_word = any(map(is_missing, first))  # such as NA
    are_positions = bool(numbers) and numbers == list(range(len(first)))  # pandas writes 0, 1, 2, … without names
    second_numbers = [parse_cell(cell) for cell in second]
    # In a table of spectra, the header has frequencies, sorted from left to right. Rows hardly ever are.
    may_be_frequencies = len(first) >= _MIN_FREQUENCIES and _is_only_first_sorted(numbers, second_numbers)
    may_be_header = has_missing_word or are_positions or may_be_frequencies
    if may_be_header:
        return None
    return False


def _is_only_first_sorted(first: Sequence[float | None], second: Sequence[float | None]) -> bool:
    """Return whether the first line is sorted, rising or falling, and the second is not sorted in the same direction.

    The header of a table of spectra is sorted, since its names are frequencies: 400, 410, 420, … If both lines rise, or
    both fall, both lines are rows.
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
