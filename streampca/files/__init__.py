"""Opens files of vectors by the suffix of their name."""

from pathlib import Path

from streampca.errors import InputError, explain_missing_extra
from streampca.files.columns import FileOptions
from streampca.files.csv import rows_of_csv
from streampca.files.jsonl import rows_of_jsonl
from streampca.files.rows import Rows, require_kind, rows_of_npy


def open_rows(path: Path | str, options: FileOptions = FileOptions(), bounds: tuple[int, int] | None = None) -> Rows:  # noqa: B008
    """Open a file to read its rows. Raises `InputError`.

    With `bounds` (start, end), only these rows of an .npy file, or these row groups of a Parquet file, are read.
    """
    path = str(path)
    kind, _ = require_kind(path)
    if kind == "npy":
        rows = rows_of_npy(path, options, bounds)
    elif kind == "csv":
        rows = rows_of_csv(path, options)
    elif kind == "jsonl":
        rows = rows_of_jsonl(path, options)
    else:
        with explain_missing_extra("arrow", needed_by=f"{path}: reading {kind.title()}"):
            from streampca.files.arrow import rows_of_arrow
        rows = rows_of_arrow(path, options, bounds)
    if options.dimensions not in (None, rows.dimensions):
        raise InputError(f"{path} holds vectors of {rows.dimensions} numbers, not of {options.dimensions}")
    return rows
