"""Raw little-endian floats: a value is the vector as it lies in memory."""

import numpy as np

from streampca.formats.base import Counts, Fields, Reader, ReaderOptions, Writer
from streampca.formats.packing import VectorError, bytes_of_rows, side_by_side


class RawReader(Reader):
    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self.dtype = np.dtype(options.format).newbyteorder("<")
        self.size = self.dtype.itemsize * options.dimensions

    def read(self, value: bytes) -> bytes:
        if len(value) != self.size:
            raise VectorError(
                "wrong_length",
                f"{len(value)} bytes are not {self._dimensions} numbers of {self.dtype.itemsize} bytes "
                f"({self.dtype.name})",
            )
        return value


class RawWriter(Writer):
    """Writes a row as the numbers of all its fields, one after the other."""

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        return bytes_of_rows(side_by_side(fields).astype(np.dtype(self._options.format).newbyteorder("<")), counts)
