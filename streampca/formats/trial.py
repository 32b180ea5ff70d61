"""Tries the writer of a format of another package, before transform writes outputs with it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import SettingsError
from streampca.formats.base import Fields, Kind, Layout, Writer

_ROWS = 3
_COUNTS = np.array([1, 2])  # two values: one with one row, and one with two


def check_writer(writer: Writer, layout: Layout) -> None:
    """Raise `SettingsError` unless the writer returns a value for each row and, with counts, for each group of rows.

    The error says what the writer lacks. `layout` has the fields of the values to write.
    """
    fields: Fields = {name: _make_sample(kind) for name, kind in layout.fields.items()}
    where = f"output_format {writer.format}: the write of {type(writer).__name__}"
    for counts, what, expected in ((None, f"{_ROWS} rows", _ROWS), (_COUNTS, "counts of 1 and 2 rows", len(_COUNTS))):
        try:
            values = writer.write(fields, counts)
        except Exception as error:  # a package may raise anything
            cause = " ".join(str(error).split())
            raise SettingsError(
                f"{where} fails for {what} of {', '.join(fields)}: {type(error).__name__}: {cause}"
            ) from None
        if not isinstance(values, list) or not all(isinstance(value, bytes) for value in values):
            raise SettingsError(f"{where} must return a list of bytes")
        if len(values) != expected:
            raise SettingsError(f"{where} must return {expected} values for {what}, not {len(values)}")


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
