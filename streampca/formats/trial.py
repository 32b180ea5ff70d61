"""Tries the writer of a format of another package, before transform writes outputs with it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import SettingsError, on_one_line
from streampca.formats.base import Counts, Fields, Kind, Layout, Writer

_ROW_COUNT = 3
_SAMPLE_COUNTS = np.array([1, 2])  # the rows in each of two values: one row, then two rows


def check_writer(writer: Writer, layout: Layout) -> None:
    """Raise `SettingsError` if a writer fails to write sample rows with the fields of `layout`.

    The rows are written twice: first as one value for each row, then as one value for each group of rows.
    """
    fields: Fields = {name: _make_sample(kind) for name, kind in layout.fields.items()}
    _check_write(writer, fields, counts=None, rows_text=f"{_ROW_COUNT} rows")
    _check_write(writer, fields, counts=_SAMPLE_COUNTS, rows_text="counts of 1 and 2 rows")


def _check_write(writer: Writer, fields: Fields, counts: Counts, rows_text: str) -> None:
    """Raise `SettingsError` if `write` fails, or does not return a value for each group of rows.

    `counts` are the rows of each group. If `counts` is None, each row is a value.
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
    expected_values = _ROW_COUNT if counts is None else len(counts)
    if len(values) != expected_values:
        raise SettingsError(f"{write_name} must return {expected_values} values for {rows_text}, not {len(values)}")


def _make_sample(kind: Kind) -> NDArray[Any]:
    """Return a field of this kind with `_ROW_COUNT` rows."""
    match kind:
        case "number":
            return np.arange(_ROW_COUNT, dtype=np.float64)
        case "numbers":
            return np.arange(2.0 * _ROW_COUNT).reshape(_ROW_COUNT, 2)
        case "integers":
            return np.arange(2 * _ROW_COUNT).reshape(_ROW_COUNT, 2)
        case "text":
            return np.array(["a text"] * _ROW_COUNT, object)
        case "texts":
            return np.array([["a", "text"]] * _ROW_COUNT, object)
        case "bytes":
            # A field of bytes holds the value of a record, in the first of the record's rows. Here, the first record
            # has one row, and the second record has two rows.
            return np.array([b"{}", b"{}", None], object)
