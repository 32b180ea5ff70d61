"""Arrays → bytes: the numbers of several fields in rows, and the rows of each value."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array


def side_by_side(fields: Mapping[str, Array]) -> Array:
    """The numbers of all fields, (n, width)."""
    columns = list(fields.values())
    return columns[0] if len(columns) == 1 and columns[0].ndim == 2 else np.column_stack(columns)


def bytes_of_rows(rows: NDArray[Any], counts: NDArray[np.int64] | None = None) -> list[bytes]:
    """Each row's bytes; with `counts`, the bytes of each group of rows."""
    rows = np.ascontiguousarray(rows)
    if counts is None:
        values: list[bytes] = rows.view(f"V{rows.strides[0]}")[:, 0].tolist()
        return values
    data, size = rows.tobytes(), rows.strides[0]
    return [data[i * size : j * size] for i, j in bounds(counts, len(rows))]


def bounds(counts: NDArray[np.int64] | None, n: int) -> list[tuple[int, int]]:
    """Where the rows of each value begin and end, of n rows: one a value, or as many as `counts` says."""
    ends = range(1, n + 1) if counts is None else np.cumsum(counts).tolist()
    return list(itertools.pairwise([0, *ends]))


def interleaved(parts: Sequence[bytes | Array]) -> list[bytes]:
    """The bytes of n rows that consist of bytes, the same in all, and of float64 numbers (n,) or (n, width)."""
    n = next(len(part) for part in parts if not isinstance(part, bytes))
    columns = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (n, len(part)))
        if isinstance(part, bytes)
        else np.ascontiguousarray(part.reshape(n, -1), "<f8").view(np.uint8)
        for part in parts
    ]
    return bytes_of_rows(np.hstack(columns))


def joined(parts: Sequence[bytes | NDArray[Any] | list[bytes]]) -> list[bytes]:
    """The bytes of rows that consist of bytes, the same in all, of float64 numbers, and of other bytes in each."""
    runs = list[Iterable[bytes]]()
    for differs, group in itertools.groupby(parts, lambda part: isinstance(part, list)):
        run: list[Any] = list(group)
        same = all(isinstance(part, bytes) for part in run)
        runs += run if differs else [itertools.repeat(b"".join(run)) if same else interleaved(run)]
    return [b"".join(row) for row in zip(*runs, strict=False)] if len(runs) > 1 else list(runs[0])


def as_bytes(item: str | bytes) -> bytes:
    return item.encode() if isinstance(item, str) else item


def varint(number: int) -> bytes:
    """A non-negative number in Avro and Protobuf: seven bits a byte, the lowest first; the last has no eighth bit."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
