"""NumPy's .npy: an array with one axis."""

import numpy as np

from streampca.vectors.npy import parse_vector
from streampca.vectors.packing import VectorBytes


class NpyReader:
    """See `formats.base.Reader`."""

    dtype = np.dtype(np.float64)
    size = None
    is_batch = False

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    def read(self, value: bytes) -> VectorBytes:
        return parse_vector(value, self._dimensions)
