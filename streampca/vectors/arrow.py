"""Columns of Arrow: lists of numbers as arrays, and arrays as lists."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streampca.pca.arrays import F64, Array
from streampca.vectors.packing import NULL_HINT, VectorError, check_length


def numbers(column: Any, dimensions: int, *, gaps: bool) -> F64:
    """The numbers of a column of lists of d numbers, row after row. Raises `VectorError`.

    With `gaps` an entry may be null, which becomes NaN.
    """
    kind = column.type
    if not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise VectorError("undecodable", f"expected a column of lists of numbers, not {kind}")
    if not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise VectorError("undecodable", f"expected lists of numbers, not {kind}")
    if column.null_count:
        raise VectorError("undecodable", "a row of the record batch is null")
    if pa.types.is_fixed_size_list(kind) and len(column):  # lists of no numbers take no memory, however many
        check_length(kind.list_size, dimensions)
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != dimensions)
    if len(wrong):
        check_length(int(lengths[wrong[0]]), dimensions)
    found = column.flatten()
    if found.null_count and not gaps:
        raise VectorError("undecodable", f"an entry of the record batch is null{NULL_HINT}")
    return np.asarray(found.to_numpy(zero_copy_only=False), np.float64)


def fixed_size_lists(rows: Array) -> Any:
    """Rows (n, d) as a column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[-1])
