"""NumPy's .npy: an array with one axis."""

import io
import math
import threading
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from streampca.formats.packing import VectorBytes, VectorError, check_length
from streampca.pca.arrays import Array

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs in the encoding of field names, and vectors have no fields
}

_WARNINGS = threading.Lock()  # warning filters are global: two threads must not change them at the same time


class Header(NamedTuple):
    """The header of a file."""

    size: int  # bytes before the data
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool


def parse_array(data: bytes) -> Array:
    """An array of any shape, in its own type and without copying. Raises `VectorError`."""
    header = header_of(data)
    check_data(data, header)
    numbers = np.frombuffer(data, header.dtype, offset=header.size)
    try:
        return numbers.reshape(header.shape, order="F" if header.fortran_order else "C")
    except ValueError:
        raise VectorError("undecodable", f"not an .npy array: no array has the shape {header.shape}") from None


def header_of(data: bytes) -> Header:
    """The header of an array of real numbers. Raises `VectorError`."""
    header = _parsed_header(data[: _header_size(data)])
    if header.dtype.kind not in "fiu" or header.dtype.itemsize > 8:
        raise VectorError("undecodable", f"an .npy array of {header.dtype.str}, not of real numbers of at most 8 bytes")
    return header


def check_data(data: bytes, header: Header) -> None:
    """Raise `VectorError` unless the data behind the header are as long as it says."""
    if len(data) - header.size != math.prod(header.shape) * header.dtype.itemsize:
        raise VectorError("undecodable", "not an .npy array: its data are not as long as its header says")


def _header_size(data: bytes) -> int:
    """Bytes before the data, from the version after the magic string and the length after that."""
    width = 2 if data[6:7] == b"\x01" else 4
    return 8 + width + int.from_bytes(data[8 : 8 + width], "little")


@lru_cache(maxsize=64)  # all messages of one producer have the same header, and parsing it is slow
def _parsed_header(header: bytes) -> Header:
    """The data are not read, so a header that claims terabytes costs nothing."""
    stream = io.BytesIO(header)
    try:
        with _WARNINGS, warnings.catch_warnings(action="ignore"):  # NumPy warns about headers written by Python 2
            version = np.lib.format.read_magic(stream)
            shape, fortran_order, dtype = _HEADER_READERS[version](stream)
            lengths = tuple(int(np.intp(length)) for length in shape)  # no array is longer
            return Header(len(header), dtype, lengths, fortran_order)
    except Exception:  # NumPy raises a dozen kinds: TokenError, RecursionError, TypeError …
        raise VectorError("undecodable", "not an .npy array: its header cannot be read") from None


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
