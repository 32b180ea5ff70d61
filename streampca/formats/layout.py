"""Arrays → bytes: the numbers of several fields in rows, and the rows of each value."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array


def stack_fields(fields: Mapping[str, Array]) -> Array:
    """Return the numbers of all fields side by side, (n, total width)."""
    columns = list(fields.values())
    if len(columns) == 1 and columns[0].ndim == 2:
        return columns[0]  # not copied
    return np.column_stack(columns)


def encode_rows(rows: NDArray[Any], counts: NDArray[np.int64] | None = None) -> list[bytes]:
    """Return the bytes of each row or, with `counts`, of each group of `counts[i]` rows."""
    rows = np.ascontiguousarray(rows)
    row_size = rows.strides[0]
    if counts is None:
        whole_rows = rows.view(f"V{row_size}")[:, 0]  # one item for each row; the type V is any bytes
        values: list[bytes] = whole_rows.tolist()
        return values
    data = rows.tobytes()
    return [data[start * row_size : end * row_size] for start, end in row_bounds(counts, len(rows))]


def row_bounds(counts: NDArray[np.int64] | None, n: int) -> list[tuple[int, int]]:
    """Return where the rows of each value start and end, if value i has `counts[i]` of the n rows.

    Without `counts`, each row is a value.
    """
    ends = range(1, n + 1) if counts is None else np.cumsum(counts).tolist()
    return list(itertools.pairwise([0, *ends]))


def join_columns(columns: Sequence[bytes | NDArray[Any] | list[bytes]]) -> list[bytes]:
    """Return n values: the bytes of all columns in row i, one after the other, are value i.

    A column is bytes that are the same in all rows, float64 numbers (n,) or (n, width), or a list of n bytes objects.
    """
    encoded_columns = list[Iterable[bytes]]()
    for column in columns:
        if isinstance(column, bytes):
            encoded_columns.append(itertools.repeat(column))
        elif isinstance(column, list):
            encoded_columns.append(column)
        else:
            rows = column.reshape(len(column), -1)
            encoded_columns.append(encode_rows(rows.astype("<f8", copy=False)))
    return [b"".join(row) for row in zip(*encoded_columns, strict=False)]  # not strict: `repeat` does not end


def encode_items(values: NDArray[Any], encode: Callable[[bytes], bytes]) -> list[bytes]:
    """Return the bytes of each row of texts (n, width), or of bytes (n,). `encode` puts its length before an item."""
    rows = values.reshape(len(values), -1).tolist()
    return [b"".join([encode(as_bytes(item)) for item in row]) for row in rows]


def holds_bytes(field: NDArray[Any]) -> bool:
    """Return whether a field holds bytes, or None in their place. A field of objects holds texts otherwise."""
    is_object_in_each_row = field.dtype.kind == "O" and field.ndim == 1  # on two axes, objects are always texts
    holds_texts = len(field) > 0 and isinstance(field[0], str)
    return is_object_in_each_row and not holds_texts


def as_bytes(item: str | bytes) -> bytes:
    return item.encode() if isinstance(item, str) else item


def varint(number: int) -> bytes:
    """Encode a non-negative number in seven bits a byte, the lowest first, as Avro and Protobuf do."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
