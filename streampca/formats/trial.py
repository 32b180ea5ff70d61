"""Tries the writer of a format of another package, before transform writes outputs with it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import SettingsError, on_one_line
from streampca.formats.base import Counts, Fields, Kind, Layout, Writer

_ROWS = 3
_COUNTS = np.array([1, 2])  # two values: one with one row, and one with two


def check_writer(writer: Writer, layout: Layout) -> None:
    """Raise `SettingsError` unless the writer returns a value for each row and, with counts, for each group of rows.

    The error says what the writer lacks. `layout` has the fields of the values to write.
    """
    fields: Fields = {name: _make_sample(kind) for name, kind in layout.fields.items()}
    _check_write(writer, fields, counts=None, expected_values=_ROWS, rows_text=f"{_ROWS} rows")
    _check_write(writer, fields, _COUNTS, expected_values=len(_COUNTS), rows_text="counts of 1 and 2 rows")


def _check_write(writer: Writer, fields: Fields, counts: Counts, expected_values: int, rows_text: str) -> None:
    """Raise `SettingsError` if `write` fails, or does not return as many values as expected.

    Errors describe the rows by `rows_text`.
    """
    write_name = f"output_format {writer.format}: the write of {type(writer).__name__}"
    try:
        values = writer.write(fields, counts)
    except Exception as error:  # a package may raise anything
        raise SettingsError(
            f"{write_name} fails for {rows_text} of {', '.join(fields)}: {type(error).__name__}: {on_one_line(error)}"
        ) from None
    if not isinstance(values, list) or not all(isinstance(value, bytes) for value in values):
        raise SettingsError(f"{write_name} must return a list of bytes")
    if len(values) != expected_values:
        raise SettingsError(f"{write_name} must return {expected_values} values for {rows_text}, not {len(values)}")


def _make_sample(kind: Kind) -> NDArray[Any]:
    """Return a field of this kind with `_ROWS` rows."""
    match kind:
        case "number":
            return np.arange(_ROWS, dtype=np.float64)
        case "numbers":
            return np.arange(2.0 * _ROWS).reshape(_ROWS, 2)
        case "integers":
            return np.arange(2 * _ROWS).reshape(_ROWS, 2)
        case "text":
            return np.array(["a text"] * _ROWS, object)
        case "texts":
            return np.array([["a", "text"]] * _ROWS, object)
        case "bytes":  # the value of a record; None in all rows but the first of a value
            return np.array([b"{}", b"{}", None], object)
