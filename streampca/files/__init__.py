"""Files of vectors, by the suffix of their name."""

from pathlib import Path

from streampca.errors import InputError, naming_the_extra
from streampca.files.rows import Rows, rows_of_csv, rows_of_jsonl, rows_of_npy


def open_rows(path: Path, *, impute: bool = False, column: str | None = None, others: bool = False) -> Rows:
    """The rows of a .npy, .csv, .jsonl or .parquet file. Raises `InputError` that names the bad row, here or later.

    With `impute` entries may be missing, and become NaN: NaN, an empty field of CSV, null in JSON and Parquet. `column`
    names the column of lists in a table that has others, or is a pattern of several columns of numbers. With `others`
    the other columns of a table are read as well.
    """
    try:
        match path.suffix.lower():
            case ".npy" | ".jsonl" | ".ndjson" if column is not None:
                raise InputError(f"{path} has no columns with a vector in each row: leave --column away")
            case ".npy":
                return rows_of_npy(path, impute)
            case ".jsonl" | ".ndjson":
                return rows_of_jsonl(path, impute)
            case ".csv":
                return rows_of_csv(path, impute, column, others)
            case ".parquet":
                with naming_the_extra(f"{path}: reading Parquet", "arrow"):
                    from streampca.files.chunks import rows_of_parquet
                return rows_of_parquet(path, impute, column, others)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    raise InputError(f"{path}: only .npy, .csv, .jsonl and .parquet files can be read")
