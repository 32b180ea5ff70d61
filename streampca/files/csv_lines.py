"""Reads the lines of a CSV file: finds their encoding, and the lines that loggers and Excel write before its rows."""

import codecs
import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from streampca.formats.text import parse_cell

_MAX_LINE = 2**24  # characters
_MAX_HEAD = 2**24  # characters
_READ_BYTES = 2**16
_BYTE_ORDER_MARK = "\ufeff"
_MARKS = ((codecs.BOM_UTF8, "UTF-8-sig"), (codecs.BOM_UTF16_LE, "UTF-16"), (codecs.BOM_UTF16_BE, "UTF-16"))


def lines(file: Any, encoding: str | None = None, skip: int = 0) -> Iterator[str]:
    """Yield the lines of a text after the first `skip` lines. Raises `ValueError`.

    If `encoding` is None, the byte-order mark tells the encoding. A text without this mark is UTF-8.
    """
    return islice(_decode_lines(file, encoding), skip, None)


def _decode_lines(file: Any, encoding: str | None) -> Iterator[str]:
    """Yield the lines of a text, each with "\\n" at its end, except for an unfinished last line."""
    first_bytes = file.peek(4)[:4]
    encoding_of_mark = next((name for mark, name in _MARKS if first_bytes.startswith(mark)), "UTF-8")
    encoding = encoding or encoding_of_mark
    decoder = codecs.getincrementaldecoder(encoding)()
    unfinished_line = ""  # its end was not read yet
    while True:
        data = file.read(_READ_BYTES)
        is_end_of_file = not data
        try:
            text = decoder.decode(data, final=is_end_of_file)
        except UnicodeDecodeError:
            raise _encoding_error(data, encoding) from None
        if "\0" in text:
            raise _encoding_error(data, encoding)
        *whole_lines, unfinished_line = (unfinished_line + text).split("\n")
        if len(unfinished_line) > _MAX_LINE:
            raise ValueError(f"a line has more than {_MAX_LINE >> 20} MiB")
        for line in whole_lines:
            # If the user gave the encoding, the first line may begin with a byte-order mark. Other lines have none.
            yield f"{line}\n".removeprefix(_BYTE_ORDER_MARK)
        if is_end_of_file:
            break
    if unfinished_line:
        yield unfinished_line.removeprefix(_BYTE_ORDER_MARK)


def _encoding_error(data: bytes, encoding: str) -> ValueError:
    """Return the error for bytes that are not text in this encoding. It suggests another encoding."""
    what = f"it is not text in {encoding.removesuffix('-sig')}"
    if encoding.upper().startswith("UTF-16"):
        return ValueError(f"{what}: it was damaged or cut, or its --encoding is another one")
    first_zero = data.find(b"\0")
    if first_zero < 0:
        return ValueError(f"{what}: say its --encoding, such as latin-1")
    # In big-endian UTF-16, the first byte of a Latin letter is zero.
    byte_order = "be" if first_zero % 2 == 0 else "le"
    return ValueError(f"{what}, but has bytes that are zero, as text in UTF-16 has: say --encoding utf-16-{byte_order}")


def read_head(text: Iterator[str], count: int) -> list[str]:
    """Return the first lines: at most `count`, and fewer if they have more than 16 million characters."""
    head: list[str] = []
    size = 0
    for line in islice(text, count):
        head.append(line)
        size += len(line)
        if size > _MAX_HEAD:
            break
    return head


def suggest_skip_options(head: Sequence[str], separators: Sequence[str], skipped: int) -> str:
    """Return the options that skip the lines before the header or the rows; "" if there are no such lines.

    `head` are the first lines of a file after `skipped` lines.
    """
    for separator in separators:
        options = _suggest_for_separator(head, separator, skipped)
        if options:
            return options
    return ""


def _suggest_for_separator(head: Sequence[str], separator: str, skipped: int) -> str:
    """Return the options that skip the lines before the header or the rows, if the cells have this separator.

    `head` are lines of a file after `skipped` lines. For example, with `skipped` = 0 and this `head`, the result is
    `--skip-lines 1`, which leaves a header and two rows:

        Device 7
        time,temp
        12:00,21.5
        12:01,21.7

    The last line is taken for a row, and so are the lines just before it with numbers in the same cells. The line above
    the rows is the header, if it has as many cells. The result is "" if there is nothing to skip, or if it is not clear
    which lines are rows.
    """
    records = [next(csv.reader([line], delimiter=separator, skipinitialspace=True), []) for line in head]
    # For each line, one flag a cell: whether the cell is a number.
    number_patterns = [[parse_cell(cell) is not None for cell in cells] for cells in records]
    first_row = _find_first_row(number_patterns)  # from this index on, all lines have the pattern of the last line
    if first_row == 0:  # nothing to skip: the lines begin with rows
        return ""
    row_pattern = number_patterns[-1]
    if not any(row_pattern):  # not clear: the last line holds no numbers, so it is perhaps no row
        return ""
    if row_pattern in number_patterns[:first_row]:  # not clear: rows would be skipped with the first lines
        return ""
    skip_to_rows = f"--skip-lines {skipped + first_row} --no-header"
    header_index = first_row - 1
    header_pattern = number_patterns[header_index]
    has_header = len(header_pattern) == len(row_pattern)
    if not has_header:  # the line above the rows is a text such as "Device 7"
        return skip_to_rows
    if header_index == 0:  # nothing to skip: no line is above the header
        return ""
    if _may_be_row(header_pattern, row_pattern):  # not clear: the header is perhaps a row in which numbers are missing
        return ""
    if _has_two_headers(head, records, header_index):  # such as names above units: skip both
        return skip_to_rows
    return f"--skip-lines {skipped + header_index}"


def _may_be_row(pattern: Sequence[bool], row_pattern: Sequence[bool]) -> bool:
    """Return whether a line has a number where rows have one. The patterns say which cells of a line are numbers."""
    return any(is_number and in_rows for is_number, in_rows in zip(pattern, row_pattern, strict=True))


def _has_two_headers(head: Sequence[str], records: Sequence[Sequence[str]], header_index: int) -> bool:
    """Return whether the line above the header has as many cells, such as names above a header of units."""
    is_excel_line = head[header_index - 1].startswith("sep=")  # Excel reads the separator from such a line
    has_equal_length = len(records[header_index - 1]) == len(records[header_index])
    return has_equal_length and not is_excel_line


def _find_first_row(number_patterns: Sequence[Sequence[bool]]) -> int:
    """Return the index from which on all lines have numbers in the same cells as the last line."""
    first_row = len(number_patterns)
    while first_row and number_patterns[first_row - 1] == number_patterns[-1]:
        first_row -= 1
    return first_row
