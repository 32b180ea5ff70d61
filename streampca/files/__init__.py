"""Files of vectors, by the suffix of their name."""

from pathlib import Path

from streampca.errors import InputError, naming_the_extra
from streampca.files.columns import Wanted
from streampca.files.csv import rows_of_csv
from streampca.files.jsonl import rows_of_jsonl
from streampca.files.kinds import readable
from streampca.files.rows import Rows, rows_of_npy


def open_rows(path: Path | str, wanted: Wanted = Wanted(), part: tuple[int, int] | None = None) -> Rows:  # noqa: B008
    """The rows of a file, or a part of them. Raises `InputError` that names the bad row, here or later.

    A part of an .npy file is from a row to another; of a Parquet file, from a row group to another.
    """
    rows = _rows(str(path), wanted, part)
    if wanted.dimensions not in (None, rows.dimensions):
        raise InputError(f"{path} holds vectors of {rows.dimensions} numbers, not of {wanted.dimensions}")
    return rows


def _rows(path: str, wanted: Wanted, part: tuple[int, int] | None) -> Rows:
    match readable(path).name:
        case "npy":
            return rows_of_npy(path, wanted, part)
        case "csv":
            return rows_of_csv(path, wanted)
        case "jsonl":
            return rows_of_jsonl(path, wanted)
        case kind:
            with naming_the_extra(f"{path}: reading {kind.title()}", "arrow"):
                from streampca.files.arrow import rows_of_arrow
            return rows_of_arrow(path, wanted, part)
