"""Arrow IPC: a value is a stream of record batches, one of whose columns holds a vector in each row."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streampca.formats.base import MAX_BATCH_BYTES, Counts, Fields, Reader, Writer
from streampca.formats.packing import NULL_HINT, VectorBytes, VectorError, check_length, check_size, listed
from streampca.pca.arrays import F64, Array

Column: TypeAlias = Any  # pyarrow has no types


class ArrowReader(Reader):
    """One bad row makes the whole value invalid."""

    is_batch = True

    def read(self, value: bytes) -> VectorBytes:
        try:
            # Arrow's own pools keep what they have freed: a few large messages took 120 MiB more.
            with pa.ipc.open_stream(pa.py_buffer(value), memory_pool=pa.system_memory_pool()) as batches:
                columns = self._columns(batches)
        except VectorError:
            raise
        except Exception as error:  # of many kinds: Arrow's own, OSError, UnicodeDecodeError …
            raise VectorError("undecodable", f"not an Arrow IPC stream: {' '.join(str(error).split())[:200]}") from None
        runs = [numbers(column, self._dimensions, impute=self._impute) for column in columns]
        return runs[0].data if len(runs) == 1 else np.concatenate(runs).data if runs else b""

    def _columns(self, batches: Any) -> list[Column]:
        """The column with the vectors of every batch; a few kilobytes of compressed batches may unpack to gibibytes."""
        index, columns, size = self._index(batches.schema.names), [], 0
        for batch in batches:
            size += batch.nbytes + len(batch) * self._dimensions * self.dtype.itemsize
            check_size(size, MAX_BATCH_BYTES)
            batch.validate(full=True)  # offsets that point outside the buffers are refused
            columns.append(batch.column(index))
        return columns

    def _index(self, names: list[str]) -> int:
        if self._field:
            if (count := names.count(self._field)) != 1:
                text = f"{count or 'no'} column{'s' * (count > 1)} {self._field!r} in the record batch"
                raise VectorError("undecodable", f"{text}: there is {listed(names)}")
            return names.index(self._field)
        if len(names) != 1:
            raise VectorError("undecodable", f"{len(names)} columns in the record batch: field must name one")
        return 0


class ArrowWriter(Writer):
    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        ends = range(1, len(next(iter(fields.values()))) + 1) if counts is None else np.cumsum(counts).tolist()
        return [
            stream_of({name: column_of(values[i:j]) for name, values in fields.items()})
            for i, j in pairwise([0, *ends])
        ]


def stream_of(columns: Mapping[str, Column]) -> bytes:
    batch, out = pa.record_batch(dict(columns)), pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    value: bytes = out.getvalue().to_pybytes()
    return value


def column_of(values: Array) -> Column:
    """A column of numbers (n,), where NaN becomes null, or of lists (n, width)."""
    return fixed_size_lists(values) if values.ndim == 2 else pa.array(values, from_pandas=True)


def fixed_size_lists(rows: Array) -> Column:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[-1])


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def vectors_of(batch: Any, columns: Sequence[str], dimensions: int, *, impute: bool) -> F64:
    """The vectors (n, d) in a column of lists of d numbers, or in d columns of numbers. Raises `VectorError`."""
    if len(columns) == 1:
        return numbers(batch.column(columns[0]), dimensions, impute=impute).reshape(-1, dimensions)
    return np.column_stack([floats(batch.column(name), name) for name in columns])


def floats(column: Column, name: str) -> F64:
    """The numbers of a column, NaN for null. Raises `VectorError`."""
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise VectorError("undecodable", f"column {name} holds {column.type}, not numbers")
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


def numbers(column: Column, dimensions: int, *, impute: bool) -> F64:
    """The numbers of a column of lists of d numbers, row after row. Raises `VectorError`.

    With `impute` an entry may be null, which becomes NaN.
    """
    kind = column.type
    if not is_list(kind):
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
    entries = column.flatten()
    if entries.null_count and not impute:
        raise VectorError("undecodable", f"an entry of the record batch is null{NULL_HINT}")
    return np.asarray(entries.to_numpy(zero_copy_only=False), np.float64)
