"""NumPy's .npy: an array of one axis, of real numbers of any type and byte order. No pickle."""

import io
import warnings
from functools import lru_cache
from typing import Any

import numpy as np

from streampca.stream.formats.base import FaultError, Numbers, check_length

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs in the letters of field names, and vectors have no fields
}


class NpyReader:
    """See `formats.base.Reader`."""

    dtype = np.dtype(np.float64)
    size = None
    many = False

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    def read(self, value: bytes) -> Numbers:
        header = value[: _header_size(value)]
        dtype, shape = _header(header)
        if dtype.kind not in "fiu" or dtype.itemsize > 8:
            raise FaultError("undecodable", f"an .npy array of {dtype.str}, not of real numbers of at most 8 bytes")
        if len(shape) != 1:
            raise FaultError("wrong_length", f"an .npy array with {len(shape)} axes, not one")
        check_length(shape[0], self._dimensions)
        if len(value) - len(header) != shape[0] * dtype.itemsize:
            raise FaultError("undecodable", "not an .npy array: its data are not as long as its header says")
        if dtype == self.dtype:
            return value[len(header) :]
        return np.frombuffer(value, dtype, offset=len(header)).astype(self.dtype).data


def _header_size(value: bytes) -> int:
    """Bytes up to the data, as the magic string's version and the length after it say."""
    width = 2 if value[6:7] == b"\x01" else 4
    return 8 + width + int.from_bytes(value[8 : 8 + width], "little")


@lru_cache(maxsize=64)  # all messages of one producer have the same header, and reading it is slow
def _header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape of an .npy array. The data are not touched, so a header that promises terabytes costs nothing."""
    stream = io.BytesIO(header)
    try:
        with warnings.catch_warnings(action="ignore"):  # numpy's, about headers that Python 2 wrote
            version = np.lib.format.read_magic(stream)
            shape, _, dtype = _HEADER_READERS[version](stream)
            return dtype, tuple(int(np.intp(length)) for length in shape)  # no array is longer
    except Exception:  # numpy lets a dozen kinds through: TokenError, RecursionError, TypeError …
        raise FaultError("undecodable", "not an .npy array: its header cannot be read") from None
