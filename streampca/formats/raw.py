"""Raw little-endian floats: a value is the vector as it lies in memory."""

import numpy as np

from streampca.formats.packing import VectorError


class RawReader:
    """See `formats.base.Reader`."""

    is_batch = False

    def __init__(self, format: str, dimensions: int) -> None:  # noqa: A002 - the setting's name
        self._format, self._dimensions = format, dimensions
        self.dtype = np.dtype(format).newbyteorder("<")
        self.size = self.dtype.itemsize * dimensions

    def read(self, value: bytes) -> bytes:
        if len(value) != self.size:
            raise VectorError(
                "wrong_length",
                f"{len(value)} bytes are not {self._dimensions} numbers of {self.dtype.itemsize} bytes "
                f"({self._format})",
            )
        return value
