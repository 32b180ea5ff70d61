"""Arrow outputs: a message is an Arrow IPC stream of one record batch, with a row for each vector of many records.

Nothing of a record is lost: its key, timestamp and headers are columns, and so are partition, offset and the
version of the model. The fields follow, in the order of `emit`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampca.formats.arrow import Column, column_of, stream_of
from streampca.formats.layout import as_bytes
from streampca.sources.base import Outgoing
from streampca.transform.outputs import ORIGIN, Selection, origin_at

MESSAGE_BYTES = 512 * 1024  # a topic takes 1 MiB by default, and a producer adds to it
_ROW_BYTES = 4 + 8 + 4 + 4 + 8 + 8 + 2  # of all columns but the fields; bits that mark nulls
_HEADER_BYTES = 4 + 4 + 1
_ROWS_SHARE = 0.75  # of the bytes that a topic takes: the rest is for the schema


class ArrowPacker:
    """Writes as many rows in a message as make about `most_bytes`, and at least one."""

    def __init__(self, most_bytes: int = MESSAGE_BYTES) -> None:
        self._most_bytes = most_bytes

    def messages(self, topic: str, selection: Selection, most_bytes: float = math.inf) -> Iterator[Outgoing]:
        """A message has no key; its header is its first row's, its timestamp its rows' latest."""
        keys, headers = pa.array(selection.keys, pa.binary()), _headers(selection.headers)
        records = np.repeat(np.arange(len(keys)), selection.counts)  # of each row
        sizes = (_sizes(keys) + _sizes_of_headers(headers))[records] + _ROW_BYTES
        for values in selection.fields.values():
            sizes += _sizes_of_objects(values) if values.dtype.kind == "O" else 8 * values[:1].size
        origin = origin_at(selection.version, selection.partition)
        most = min(self._most_bytes, int(min(most_bytes, 2**40) * _ROWS_SHARE))
        for rows in _messages(sizes, most):
            of_rows = records[rows]
            offsets, timestamps = selection.offsets[of_rows], selection.timestamps[of_rows]
            columns = {
                "key": keys.take(pa.array(of_rows)),
                "timestamp": pa.array(timestamps, pa.int64(), mask=timestamps < 0).view(pa.timestamp("ms", "UTC")),
                "headers": headers.take(pa.array(of_rows)),
                "partition": pa.array(np.full(len(of_rows), selection.partition, np.int32)),
                "offset": pa.array(offsets),
                "model_version": pa.array(np.full(len(of_rows), selection.version, np.int64)),
            } | {name: column_of(values[rows]) for name, values in selection.fields.items()}
            header = ORIGIN, origin % int(offsets[0])
            yield Outgoing(topic, selection.partition, stream_of(columns), None, [header], int(timestamps.max()))


def _messages(sizes: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Slices of rows whose sizes add up to `most` or less; a larger row is alone."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = ends[start] - sizes[start]
        stop = max(int(np.searchsorted(ends, before + most, "right")), start + 1)
        yield slice(start, stop)
        start = stop


def _headers(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Column:
    """Lists of structures: a map could not hold a name twice in every reader."""
    names = [name for own in headers for name, _ in own]
    values = [value for own in headers for _, value in own]
    pairs = pa.StructArray.from_arrays([pa.array(names, pa.string()), pa.array(values, pa.binary())], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(np.cumsum([0, *map(len, headers)]), pa.int32()), pairs)


def _sizes(column: Column) -> NDArray[np.int64]:
    return np.asarray(pc.binary_length(column).fill_null(0).to_numpy(), np.int64)


def _sizes_of_objects(values: NDArray[Any]) -> NDArray[np.int64]:
    """Of texts or bytes in each row."""
    rows = values.reshape(len(values), -1).tolist()
    return np.array([sum([4 + len(as_bytes(item)) for item in row if item is not None]) for row in rows], np.int64)


def _sizes_of_headers(headers: Column) -> NDArray[np.int64]:
    pairs, ends = headers.values, headers.offsets.to_numpy()
    sizes = _HEADER_BYTES + _sizes(pairs.field(0)) + _sizes(pairs.field(1))
    return np.asarray(np.diff(np.concatenate([[0], np.cumsum(sizes)])[ends]), np.int64)
