"""NumPy's .npy: an array with one axis."""

import numpy as np

from streampca.vectors.npy import check_data, header_of
from streampca.vectors.packing import VectorBytes, VectorError, check_length


class NpyReader:
    """See `formats.base.Reader`."""

    dtype = np.dtype(np.float64)
    size = None
    is_batch = False

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    def read(self, value: bytes) -> VectorBytes:
        header = header_of(value)
        if len(header.shape) != 1:
            raise VectorError("wrong_length", f"an .npy array with {len(header.shape)} axes, not one")
        check_length(header.shape[0], self._dimensions)
        check_data(value, header)
        if header.dtype == self.dtype:
            return value[header.size :]
        return np.frombuffer(value, header.dtype, offset=header.size).astype(self.dtype).data
