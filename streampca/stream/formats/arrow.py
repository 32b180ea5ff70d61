"""Arrow IPC: a value is a stream of record batches, one of whose columns holds a vector in each row."""

from typing import Any

import numpy as np
import pyarrow as pa

from streampca.stream.formats.base import MAX_BATCH_BYTES
from streampca.vectors.arrow import numbers
from streampca.vectors.packing import VectorBytes, VectorError, check_size, listed


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
