"""Files of vectors, by the suffix of their name."""

from pathlib import Path

from streampca.errors import InputError, naming_the_extra
from streampca.files.columns import FileOptions
from streampca.files.rows import Rows, require_kind, rows_of_npy
from streampca.files.text import rows_of_csv, rows_of_jsonl


def open_rows(path: Path | str, options: FileOptions = FileOptions(), part: tuple[int, int] | None = None) -> Rows:  # noqa: B008
    """Open a file to read its rows, or a part of them. Raises `InputError` that names the bad row, here or later.

    A part of an .npy file is its start and end in rows; of a Parquet file, in row groups.
    """
    path = str(path)
    kind, _ = require_kind(path)
    if kind == "npy":
        rows = rows_of_npy(path, options, part)
    elif kind == "csv":
        rows = rows_of_csv(path, options)
    elif kind == "jsonl":
        rows = rows_of_jsonl(path, options)
    else:
        with naming_the_extra(f"{path}: reading {kind.title()}", "arrow"):
            from streampca.files.arrow import rows_of_arrow
        rows = rows_of_arrow(path, options, part)
    if options.dimensions not in (None, rows.dimensions):
        raise InputError(f"{path} holds vectors of {rows.dimensions} numbers, not of {options.dimensions}")
    return rows
