"""Arrow outputs: a message is an Arrow IPC stream of one record batch, with a row for each vector of many records.

The key, timestamp and headers of a record are columns, and so are its partition, its offset and the version of the
model. The fields follow, in the order of `emit`.
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
from streampca.transform.outputs import ORIGIN, Selection, origin_template

MESSAGE_BYTES = 512 * 1024  # a topic takes 1 MiB by default, and a producer adds to it
_ROW_BYTES = 4 + 8 + 4 + 4 + 8 + 8 + 2  # of a row: the six columns before the fields, and the bits that mark nulls
_HEADER_BYTES = 4 + 4 + 1  # of a header, besides its name and value
_ROWS_SHARE = 0.75  # of the bytes that a topic takes; the rest is for the schema


class ArrowPacker:
    """Packs rows into messages of about `most_bytes`; a message has at least one row."""

    def __init__(self, most_bytes: int = MESSAGE_BYTES) -> None:
        self._most_bytes = most_bytes

    def messages(self, topic: str, selection: Selection, most_bytes: float = math.inf) -> Iterator[Outgoing]:
        """Yield messages without a key, with the origin of their first row and the latest timestamp of their rows."""
        keys = pa.array(selection.keys, pa.binary())
        headers = _headers_column(selection.headers)
        record_of_row = np.repeat(np.arange(len(keys)), selection.counts)
        sizes = (_sizes(keys) + _sizes_of_headers(headers))[record_of_row] + _ROW_BYTES
        for values in selection.fields.values():
            sizes += _sizes_of_objects(values) if values.dtype.kind == "O" else 8 * values[:1].size
        origin = origin_template(selection.version, selection.partition)
        topic_takes = int(min(most_bytes, 2**40) * _ROWS_SHARE)  # 2**40: an integer instead of infinity
        for rows in _split_rows(sizes, min(self._most_bytes, topic_takes)):
            records = record_of_row[rows]
            offsets = selection.offsets[records]
            timestamps = selection.timestamps[records]
            columns = {
                "key": keys.take(pa.array(records)),
                "timestamp": pa.array(timestamps, pa.int64(), mask=timestamps < 0).view(pa.timestamp("ms", "UTC")),
                "headers": headers.take(pa.array(records)),
                "partition": pa.array(np.full(len(records), selection.partition, np.int32)),
                "offset": pa.array(offsets),
                "model_version": pa.array(np.full(len(records), selection.version, np.int64)),
            }
            columns |= {name: column_of(values[rows]) for name, values in selection.fields.items()}
            yield Outgoing(
                topic,
                selection.partition,
                value=stream_of(columns),
                key=None,
                headers=[(ORIGIN, origin % int(offsets[0]))],
                timestamp=int(timestamps.max()),
            )


def _split_rows(sizes: NDArray[np.int64], most_bytes: int) -> Iterator[slice]:
    """Yield slices of rows whose sizes add up to `most_bytes` or less; a larger row is alone."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        bytes_before = ends[start] - sizes[start]
        stop = int(np.searchsorted(ends, bytes_before + most_bytes, "right"))
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start = stop


def _headers_column(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Column:
    """Return lists of structures: not every reader of a map keeps two headers of one name."""
    names = [name for headers_of_record in headers for name, _ in headers_of_record]
    values = [value for headers_of_record in headers for _, value in headers_of_record]
    pairs = pa.StructArray.from_arrays([pa.array(names, pa.string()), pa.array(values, pa.binary())], ["key", "value"])
    ends = np.cumsum([0, *map(len, headers)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)


def _sizes(column: Column) -> NDArray[np.int64]:
    return np.asarray(pc.binary_length(column).fill_null(0).to_numpy(), np.int64)


def _sizes_of_objects(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the bytes of the texts or bytes in each row, with four bytes for the length of each."""
    rows = values.reshape(len(values), -1).tolist()
    return np.array([sum([4 + len(as_bytes(item)) for item in row if item is not None]) for row in rows], np.int64)


def _sizes_of_headers(headers: Column) -> NDArray[np.int64]:
    """Return the bytes of the headers of each record."""
    pairs = headers.values
    ends = headers.offsets.to_numpy()  # of each record in `pairs`, after a 0
    sizes = _HEADER_BYTES + _sizes(pairs.field(0)) + _sizes(pairs.field(1))
    bytes_before = np.concatenate([[0], np.cumsum(sizes)])
    return np.asarray(np.diff(bytes_before[ends]), np.int64)
