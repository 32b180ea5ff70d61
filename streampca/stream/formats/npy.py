"""NumPy's .npy: an array of one axis, of real numbers of any type and byte order. No pickle."""

import io
import math
import threading
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from streampca.stream.formats.base import FaultError, Numbers, check_length

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs in the letters of field names, and vectors have no fields
}

_SILENCE = threading.Lock()  # what is done about warnings is one thing for all threads


class NpyReader:
    """See `formats.base.Reader`."""

    dtype = np.dtype(np.float64)
    size = None
    many = False

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    def read(self, value: bytes) -> Numbers:
        header = header_of(value)
        if len(header.shape) != 1:
            raise FaultError("wrong_length", f"an .npy array with {len(header.shape)} axes, not one")
        check_length(header.shape[0], self._dimensions)
        header.check_data(value)
        if header.dtype == self.dtype:
            return value[header.size :]
        return np.frombuffer(value, header.dtype, offset=header.size).astype(self.dtype).data


class Header(NamedTuple):
    """What an `.npy` file says of itself."""

    size: int  # bytes before the data
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool  # whether the first axis is the one whose numbers lie side by side

    def check_data(self, value: bytes) -> None:
        """Raise the fault of a file whose data are not as long as this says."""
        if len(value) - self.size != math.prod(self.shape) * self.dtype.itemsize:
            raise FaultError("undecodable", "not an .npy array: its data are not as long as its header says")


def header_of(value: bytes) -> Header:
    """The header of an `.npy` file of real numbers. Raises `FaultError` for any other."""
    header = _header(value[: _header_size(value)])
    if header.dtype.kind not in "fiu" or header.dtype.itemsize > 8:
        raise FaultError("undecodable", f"an .npy array of {header.dtype.str}, not of real numbers of at most 8 bytes")
    return header


def _header_size(value: bytes) -> int:
    """Bytes up to the data, as the magic string's version and the length after it say."""
    width = 2 if value[6:7] == b"\x01" else 4
    return 8 + width + int.from_bytes(value[8 : 8 + width], "little")


@lru_cache(maxsize=64)  # all messages of one producer have the same header, and reading it is slow
def _header(header: bytes) -> Header:
    """The data are not touched, so a header that promises terabytes costs nothing."""
    stream = io.BytesIO(header)
    try:
        with _SILENCE, warnings.catch_warnings(action="ignore"):  # numpy's, about headers that Python 2 wrote
            version = np.lib.format.read_magic(stream)
            shape, fortran, dtype = _HEADER_READERS[version](stream)
            lengths = tuple(int(np.intp(length)) for length in shape)  # no array is longer
            return Header(len(header), dtype, lengths, fortran)
    except Exception:  # numpy lets a dozen kinds through: TokenError, RecursionError, TypeError …
        raise FaultError("undecodable", "not an .npy array: its header cannot be read") from None
