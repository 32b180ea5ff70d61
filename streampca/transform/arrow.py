"""Arrow outputs: a message is an Arrow IPC stream of one record batch, with a row for each vector of many records.

The key, timestamp and headers of a record are columns, and so are its partition, its offset and the version of the
model. The fields follow, in the order of `emit`.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streampca.formats.arrow import Column, column_of, stream_of
from streampca.formats.base import Fields
from streampca.formats.layout import as_bytes
from streampca.sources.base import Outgoing
from streampca.transform.record_packer import ORIGIN, ProjectedRecords, make_origin_template

MESSAGE_BYTES = 512 * 1024  # a topic takes 1 MiB by default, and a producer adds to it
_ROW_BYTES = 4 + 8 + 4 + 4 + 8 + 8 + 2  # of a row: the six columns before the fields, and the bits that mark nulls
_HEADER_BYTES = 4 + 4 + 1  # of a header: the lengths of its name and value, and the bits that mark nulls
_NUMBER_BYTES = 8  # of a number in a field, which is a float64 or an int64
_SHARE_FOR_ROWS = 0.75  # of the bytes that a message may have; the rest is left for the schema and the header


class ArrowPacker:
    """Packs rows into messages of about `message_bytes`; a message has at least one row."""

    def __init__(self, message_bytes: int = MESSAGE_BYTES) -> None:
        self._target_message_bytes = message_bytes

    def pack(self, topic: str, projected: ProjectedRecords, max_record_bytes: float) -> Iterator[Outgoing]:
        """Pack the rows, one for each vector, into output records that are small enough.

        The header `ORIGIN` of an output record names the input record of the first row. The timestamp of an output
        record is the latest timestamp among the rows.
        """
        keys = pa.array(projected.keys, pa.binary())  # of the input records, as are the headers
        headers = _make_headers_column(projected.headers)
        input_of_row = np.repeat(np.arange(len(keys)), projected.counts)  # (n,), the index of each row's input record
        bytes_of_input = _measure_binaries(keys) + _measure_headers(headers)
        bytes_of_row = bytes_of_input[input_of_row] + _measure_fields(projected.fields) + _ROW_BYTES
        # `template % offset` is the header's value, such as {"model_version":1,"partition":0,"offset":7,…}.
        template = make_origin_template(projected)
        # The rows may take only a share of `max_record_bytes`: the schema and the header need the rest.
        max_bytes_of_rows = int(min(self._target_message_bytes, max_record_bytes * _SHARE_FOR_ROWS))
        for row_slice in _split_rows(bytes_of_row, max_bytes_of_rows):
            input_indices = input_of_row[row_slice]
            columns = _make_record_columns(projected, keys, headers, input_indices)
            columns |= {name: column_of(values[row_slice]) for name, values in projected.fields.items()}
            first_offset = int(projected.offsets[input_indices[0]])
            yield Outgoing(
                topic,
                projected.partition,
                value=stream_of(columns),
                key=None,
                headers=[(ORIGIN, template % first_offset)],
                timestamp=int(projected.timestamps[input_indices].max()),
            )


def _make_record_columns(
    projected: ProjectedRecords, keys: Column, headers: Column, record_indices: NDArray[np.int64]
) -> dict[str, Column]:
    """Return the columns of metadata: the input record of each row, and the version of the model.

    The input record of row i has the index `record_indices[i]`. `projected.fields` become further columns elsewhere.
    """
    timestamps = projected.timestamps[record_indices]  # -1 if unknown
    return {
        "key": keys.take(pa.array(record_indices)),
        "timestamp": pa.array(timestamps, pa.int64(), mask=timestamps < 0).view(pa.timestamp("ms", "UTC")),
        "headers": headers.take(pa.array(record_indices)),
        "partition": pa.array(np.full(len(record_indices), projected.partition, np.int32)),
        "offset": pa.array(projected.offsets[record_indices]),
        "model_version": pa.array(np.full(len(record_indices), projected.version, np.int64)),
    }


def read_last_offset(message: bytes) -> int | None:
    """Return the offset in the last row of a message; None if the bytes are not a message of an `ArrowPacker`."""
    try:
        offsets = pa.ipc.open_stream(message).read_all()["offset"]
        return int(offsets[-1].as_py())
    except (pa.ArrowException, OSError, LookupError):
        return None


def _split_rows(sizes: NDArray[np.int64], max_bytes: int) -> Iterator[slice]:
    """Yield slices of consecutive rows, whose sizes (n,) add up to at most `max_bytes`.

    A row that is larger than `max_bytes` has a slice of its own.
    """
    bytes_through_row = np.cumsum(sizes)  # of all rows up to this one, which is included
    start = 0
    while start < len(sizes):
        bytes_before_start = bytes_through_row[start] - sizes[start]
        first_row_too_many = int(np.searchsorted(bytes_through_row, bytes_before_start + max_bytes, side="right"))
        stop = max(first_row_too_many, start + 1)  # at least one row
        yield slice(start, stop)
        start = stop


def _make_headers_column(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Column:
    """Return a column with a list of headers for each record.

    It is not a column of maps: some readers of a map drop one of two headers with the same name.
    """
    all_headers = list(chain.from_iterable(headers))
    names = pa.array([name for name, _ in all_headers], pa.string())
    values = pa.array([value for _, value in all_headers], pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], ["key", "value"])
    counts = [len(headers_of_record) for headers_of_record in headers]
    first_pairs = np.cumsum([0, *counts])  # the last item is the number of pairs
    return pa.ListArray.from_arrays(pa.array(first_pairs, pa.int32()), pairs)


def _measure_fields(fields: Fields) -> NDArray[np.int64]:
    """Return how many bytes the fields of each row take in a message (n,)."""
    n = len(next(iter(fields.values())))
    sizes = np.zeros(n, np.int64)
    for values in fields.values():
        if values.dtype.kind == "O":
            sizes += _measure_objects(values)
        else:
            numbers_in_row = values[:1].size
            sizes += _NUMBER_BYTES * numbers_in_row
    return sizes


def _measure_objects(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many bytes the texts or bytes of each row take, each with four bytes for its length."""
    sizes = []
    for row in values.reshape(len(values), -1).tolist():  # one row is one item or several
        sizes.append(sum([4 + len(as_bytes(item)) for item in row if item is not None]))
    return np.array(sizes, np.int64)


def _measure_binaries(column: Column) -> NDArray[np.int64]:
    """Return how many bytes each item has."""
    return np.asarray(pc.binary_length(column).fill_null(0).to_numpy(), np.int64)


def _measure_headers(headers: Column) -> NDArray[np.int64]:
    """Return how many bytes the headers of each record have."""
    pairs = headers.values
    names = pairs.field(0)
    values = pairs.field(1)
    pair_sizes = _HEADER_BYTES + _measure_binaries(names) + _measure_binaries(values)
    bytes_before_pair = np.concatenate([[0], np.cumsum(pair_sizes)])
    # Record i has the pairs first_pairs[i] : first_pairs[i + 1].
    first_pairs = headers.offsets.to_numpy()
    return np.asarray(np.diff(bytes_before_pair[first_pairs]), np.int64)
