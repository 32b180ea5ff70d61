"""Numbers as they lie in memory: raw, little-endian unless `>`, or with the header of NumPy's .npy.

A message holds one axis; an .npy request to the sidecar holds an array of any shape.
"""

import io
import math
import threading
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from streampca.errors import InputError
from streampca.formats.base import Counts, Fields, Reader, Writer
from streampca.formats.errors import VectorError, check_length
from streampca.formats.layout import encode_rows, stack_fields
from streampca.formats.numbers import VectorBytes
from streampca.pca.arrays import Array

# Readers of the header, by the version of the .npy format.
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs in the encoding of field names, and vectors have no fields
}

_WARNINGS_LOCK = threading.Lock()  # warning filters are global: two threads must not change them at the same time


def raw_type(format: str) -> np.dtype[Any]:  # noqa: A002 - the setting's name
    """Return the NumPy type of this name, little-endian unless the name begins with `>`."""
    return np.dtype(format).newbyteorder(">" if format[0] == ">" else "<")


class RawReader(Reader):
    def __post_init__(self) -> None:
        """Find the type of the numbers and the size of a value."""
        self.dtype = raw_type(self.format)
        # A user who writes the byte order, as in <f4, is sure of the type: the first records are not compared with it.
        names_byte_order = self.format[0] in "<>"
        # Integers cannot be compared with their type, because any bytes are plausible integers.
        is_comparable = self.dtype.str in ("<f4", "<f8")
        if is_comparable and not names_byte_order:
            self.dtype_to_check = self.dtype.str
        self.raw_size = self.dtype.itemsize * self.dimensions

    def read(self, value: bytes) -> bytes:
        """Return the value as it is. If it has another number of bytes than d numbers, raises `VectorError`."""
        if len(value) != self.raw_size:
            raise VectorError(
                "wrong_length",
                f"{len(value)} bytes are not {self.dimensions} numbers of {self.dtype.itemsize} bytes "
                f"({self.dtype.name})",
            )
        return value


class RawWriter(Writer):
    """Writes a row as the numbers of all its fields, one after the other.

    If a type of integers does not hold a number exactly, raises `InputError`.
    """

    @np.errstate(invalid="ignore")  # NumPy would warn about numbers that an integer does not hold
    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row or, with `counts`, for each group of `counts[i]` rows."""
        rows = stack_fields(fields)  # (n, total width)
        dtype = raw_type(self.format)
        numbers = rows.astype(dtype)
        if dtype.kind != "f":
            not_held_exactly = rows[numbers != rows]
            if not_held_exactly.size > 0:
                raise InputError(f"{not_held_exactly[0]:g} is no {dtype.name}")
        return encode_rows(numbers, counts)


class NpyReader(Reader):
    def read(self, value: bytes) -> VectorBytes:
        """Return the numbers of an .npy file with one axis. Raises `VectorError`."""
        header = _parse_header(value)
        if len(header.shape) != 1:
            raise VectorError("wrong_length", f"an .npy array with {len(header.shape)} axes, not one")
        check_length(header.shape[0], self.dimensions)
        numbers = _parse_numbers(value, header)  # checks the length, too
        if header.dtype == self.dtype:
            return value[header.size :]  # bytes are joined faster than memoryviews
        return numbers.astype(self.dtype).data


class NpyWriter(Writer):
    """Writes an .npy file for each row: an array (width,) of the numbers of all its fields, in their type.

    With `counts`, writes a file for each group of `counts[i]` rows: an array (counts[i], width).
    """

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a file for each row or, with `counts`, for each group of `counts[i]` rows."""
        rows = stack_fields(fields)  # (n, total width)
        row_shape = rows.shape[1:]  # (total width,)
        values = encode_rows(rows, counts)
        if counts is None:
            header = encode_header(rows.dtype, row_shape)
            return [header + value for value in values]
        headers = [encode_header(rows.dtype, (length, *row_shape)) for length in counts.tolist()]
        return [header + value for header, value in zip(headers, values, strict=True)]


class Header(NamedTuple):
    size: int  # bytes before the data
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool


def parse_array(data: bytes) -> Array:
    """Return the array in an .npy file, in its own type and without copying. Raises `VectorError`."""
    header = _parse_header(data)
    try:
        return _parse_numbers(data, header).reshape(header.shape, order="F" if header.fortran_order else "C")
    except ValueError:
        raise VectorError("undecodable", f"not an .npy array: no array has the shape {header.shape}") from None


def _parse_numbers(data: bytes, header: Header) -> Array:
    """Return the numbers after the header. If there are not as many as the header says, raises `VectorError`."""
    expected_size = math.prod(header.shape) * header.dtype.itemsize
    if len(data) - header.size != expected_size:
        raise VectorError("undecodable", "not an .npy array: its data are not as long as its header says")
    return np.frombuffer(data, header.dtype, offset=header.size)


def _parse_header(data: bytes) -> Header:
    """Parse the header of an .npy file. Raises `VectorError`."""
    # Magic string (6 bytes), version (2), length of the text (2 or 4), text.
    is_version_1 = data[6:7] == b"\x01"
    text_start = 8 + (2 if is_version_1 else 4)
    text_length = int.from_bytes(data[8:text_start], "little")
    # `_parse_header_bytes` is cached by its argument, which must not contain the numbers: they differ in each file.
    return _parse_header_bytes(data[: text_start + text_length])


@lru_cache(maxsize=64)  # all messages of one producer have the same header, and parsing it is slow
def _parse_header_bytes(header: bytes) -> Header:
    """Parse the bytes of an .npy file that come before its numbers."""
    stream = io.BytesIO(header)
    try:
        with _WARNINGS_LOCK, warnings.catch_warnings(action="ignore"):  # NumPy warns about headers written by Python 2
            version = np.lib.format.read_magic(stream)
            claimed_shape, fortran_order, dtype = _HEADER_READERS[version](stream)
            # `intp` refuses a length that no array can have.
            shape = tuple(int(np.intp(length)) for length in claimed_shape)
    except Exception:
        raise VectorError("undecodable", "not an .npy array: its header cannot be read") from None
    is_real = dtype.kind in "fiu"
    if not is_real or dtype.itemsize > 8:
        raise VectorError("undecodable", f"an .npy array of {dtype.str}, not of real numbers of at most 8 bytes")
    return Header(size=len(header), dtype=dtype, shape=shape, fortran_order=fortran_order)


def encode_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an .npy file, which comes before the numbers of an array in C order."""
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, description)
    return out.getvalue()
