"""Arrow IPC: a value is a stream of record batches, one of whose columns holds a vector in each row."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streampca.formats.base import MAX_BATCH_BYTES
from streampca.formats.packing import NULL_HINT, VectorBytes, VectorError, check_length, check_size, listed
from streampca.pca.arrays import F64, Array


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


class ArrowReader:
    """See `formats.base.Reader`. One bad row makes the whole value invalid."""

    dtype = np.dtype(np.float64)
    size = None
    is_batch = True

    def __init__(self, dimensions: int, field: str, *, gaps: bool) -> None:
        self._dimensions, self._field, self._gaps = dimensions, field, gaps

    def read(self, value: bytes) -> VectorBytes:
        try:
            # Arrow's own pools keep what they have freed: a few large messages took 120 MiB more.
            with pa.ipc.open_stream(pa.py_buffer(value), memory_pool=pa.system_memory_pool()) as batches:
                columns = self._columns(batches)
        except VectorError:
            raise
        except Exception as error:  # of many kinds: Arrow's own, OSError, UnicodeDecodeError …
            raise VectorError("undecodable", f"not an Arrow IPC stream: {' '.join(str(error).split())[:200]}") from None
        parts = [numbers(column, self._dimensions, gaps=self._gaps) for column in columns]
        return parts[0].data if len(parts) == 1 else np.concatenate(parts).data if parts else b""

    def _columns(self, batches: Any) -> list[Any]:
        """The column with the vectors of every batch; a few kilobytes of compressed batches may unpack to gibibytes."""
        index, columns, size = self._index(batches.schema), [], 0
        for batch in batches:
            size += batch.nbytes + len(batch) * self._dimensions * self.dtype.itemsize
            check_size(size, MAX_BATCH_BYTES)
            batch.validate(full=True)  # offsets that point outside the buffers are refused
            columns.append(batch.column(index))
        return columns

    def _index(self, schema: Any) -> int:
        names = schema.names
        if self._field:
            if (found := names.count(self._field)) != 1:
                text = f"{found or 'no'} column{'s' * (found > 1)} {self._field!r} in the record batch"
                raise VectorError("undecodable", f"{text}: there is {listed(names)}")
            return int(names.index(self._field))
        if len(names) != 1:
            raise VectorError("undecodable", f"{len(names)} columns in the record batch: field must name one")
        return 0
