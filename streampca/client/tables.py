"""Tables of pandas, Polars and Arrow, structured arrays, and records, matched with the names of a model."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.errors import list_names
from streampca.pca.arrays import fill_masked, is_null

_NUMBER_KINDS = "fiub"  # of NumPy's types: floats, integers, unsigned integers and booleans


class ModelNames(NamedTuple):
    """The names of the dimensions of a version of the model, with which tables and records are matched."""

    version: int
    dimensions: int
    names: Sequence[str] | None  # of the dimensions
    impute: bool  # whether entries of vectors may be missing

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> "ModelNames":
        """Create the names from the answer of `/v1/model`."""
        return cls(
            version=about["version"],
            dimensions=about["dimensions"],
            names=about.get("names"),
            impute=about["settings"].get("missing") == "impute",
        )

    def choose_fields(self, records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the records with only the fields that are dimensions of the model."""
        names = self.names
        if names is None:
            return records  # the sidecar will refuse them, since the model has no names
        return [{name: record[name] for name in names if name in record} for record in records]

    def read_table(self, table: Any, columns: Sequence[Any]) -> NDArray[Any]:
        """Return the vectors (n, d) in a table with these columns. Raises `ValueError` if they do not fit the model."""
        wanted_columns = self._choose_columns(columns)
        present_columns = set(columns)
        missing_entries = np.full(len(table), np.nan)
        numbers = []
        for column in wanted_columns:
            numbers.append(to_numbers(table[column], column) if column in present_columns else missing_entries)
        return np.stack(numbers, axis=1)

    def _choose_columns(self, columns: Sequence[Any]) -> Sequence[Any]:
        """Return the labels of the columns to read, in the order of the dimensions.

        The column of a dimension has the dimension's name. If the columns or the dimensions have no names, returns all
        columns in their order. Raises `ValueError` if the columns do not fit the model.
        """
        # pandas numbers the columns that have no names.
        columns_are_named = any(isinstance(column, str) for column in columns)
        wanted_columns: Sequence[Any] = self.names if self.names and columns_are_named else columns
        self._refuse_unfit_columns(columns, wanted_columns)
        return wanted_columns

    def _refuse_unfit_columns(self, columns: Sequence[Any], wanted_columns: Sequence[Any]) -> None:
        """Raise `ValueError` if a table lacks a wanted column, or has several of one name.

        If the model imputes missing entries, one of the wanted columns is enough.
        """
        counts = Counter(columns)
        present_columns = [column for column in wanted_columns if counts[column]]
        needed_count = 1 if self.impute else len(wanted_columns)
        # The count can be wrong only for a model without names: then all columns of the table are wanted.
        is_count_wrong = len(wanted_columns) != self.dimensions
        if is_count_wrong or len(present_columns) < needed_count:
            about_model = f": {list_names(self.names)}" if self.names else " without names"
            raise ValueError(
                f"the table has the columns {list_names(list(map(str, columns)))}, "
                f"but the model has {self.dimensions} dimensions{about_model}"
            )
        repeated_columns = [str(column) for column in present_columns if counts[column] > 1]
        if repeated_columns:
            raise ValueError(f"the table has several columns {repeated_columns[0]}")


def columns_of(rows: Any) -> list[Any] | None:
    """Return the columns of a table; None if the rows are not a table."""
    for names in (
        getattr(rows, "column_names", None),  # Arrow, whose `columns` are arrays
        getattr(rows, "columns", None),  # pandas and Polars
        getattr(getattr(rows, "dtype", None), "names", None),  # a structured array
    ):
        if names is not None:
            return list(names)
    return None


def to_numbers(values: Any, column: Any = None) -> NDArray[Any]:
    """Return values as an array of numbers; null and masked entries become NaN.

    Raises `ValueError` if a value is not a number. The error names the column.
    """
    array = np.asarray(fill_masked(values))
    if array.dtype.kind in _NUMBER_KINDS:
        return array
    if array.dtype == object:  # decimals, or numbers with nulls
        entries = [math.nan if is_null(entry) else entry for entry in array.ravel().tolist()]
        wrong_entries = [entry for entry in entries if not isinstance(entry, Real | Decimal | np.bool_)]
        if not wrong_entries:
            return np.array(entries, np.float64).reshape(array.shape)
        wrong_type = type(wrong_entries[0]).__name__
    else:
        wrong_type = str(array.dtype)
    what_holds = "the rows hold" if column is None else f"column {column} holds"
    raise ValueError(f"{what_holds} {wrong_type}, not numbers")
