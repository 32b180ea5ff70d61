"""Encodes what was computed of each record as the value of its output."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from streampca.transform.projection import Fields

Encode = Callable[[Fields, NDArray[np.int64] | None], list[bytes]]
"""The values of records, given the fields of n vectors and how many vectors each record has; None: one each."""


def encoder(format_: str) -> Encode:
    """The encoder of a format."""
    return {"json": json_values, "float32": float32_values}[format_]


def json_values(fields: Fields, counts: NDArray[np.int64] | None) -> list[bytes]:
    """Objects with a member for each field; its values are lists if a record may have several vectors."""
    columns = [column.tolist() for column in fields.values()]
    if counts is not None:
        ends = np.cumsum(counts).tolist()
        starts = [0, *ends[:-1]]
        columns = [[column[i:j] for i, j in zip(starts, ends, strict=True)] for column in columns]
    names = list(fields)
    return [orjson.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def float32_values(fields: Fields, counts: NDArray[np.int64] | None) -> list[bytes]:
    """The numbers of all fields one after the other, little-endian, for each vector."""
    rows = joined(fields).astype("<f4")
    data, width = rows.tobytes(), rows.itemsize * rows.shape[1]
    ends = (np.arange(1, len(rows) + 1) if counts is None else np.cumsum(counts)) * width
    return _cut(data, ends.tolist())


def joined(fields: Fields) -> NDArray[Any]:
    """All fields side by side, (n, width)."""
    return np.column_stack(list(fields.values()))


def _cut(data: bytes, ends: Sequence[int]) -> list[bytes]:
    return [data[i:j] for i, j in zip([0, *ends[:-1]], ends, strict=True)]
