"""Numbers as they lie in memory: raw, little-endian unless `>`, or with the header of NumPy's .npy.

A message holds one axis; an .npy request to the sidecar an array of any shape.
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
from streampca.formats.layout import bytes_of_rows, side_by_side
from streampca.formats.numbers import VectorBytes
from streampca.pca.arrays import Array

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # differs in the encoding of field names, and vectors have no fields
}

_WARNINGS = threading.Lock()  # warning filters are global: two threads must not change them at the same time


def raw_type(format: str) -> np.dtype[Any]:  # noqa: A002 - the setting's name
    """The NumPy type of this name, little-endian unless the name begins with `>`."""
    return np.dtype(format).newbyteorder(">" if format[0] == ">" else "<")


class RawReader(Reader):
    def __post_init__(self) -> None:
        self.dtype = raw_type(self.format)
        if self.format[0] not in "<>" and self.dtype.str in ("<f4", "<f8"):
            self.guessed = self.dtype.str
        self.size = self.dtype.itemsize * self.dimensions

    def read(self, value: bytes) -> bytes:
        if len(value) != self.size:
            raise VectorError(
                "wrong_length",
                f"{len(value)} bytes are not {self.dimensions} numbers of {self.dtype.itemsize} bytes "
                f"({self.dtype.name})",
            )
        return value


class RawWriter(Writer):
    """Writes a row as the numbers of all its fields, one after the other.

    Raises `InputError` if a type of integers does not hold them.
    """

    @np.errstate(invalid="ignore")
    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        rows, kind = side_by_side(fields), raw_type(self.format)
        numbers = rows.astype(kind)
        if kind.kind != "f" and (others := rows[numbers != rows]).size:
            raise InputError(f"{others[0]:g} is no {kind.name}")
        return bytes_of_rows(numbers, counts)


class NpyReader(Reader):
    def read(self, value: bytes) -> VectorBytes:
        header = _parse_header(value)
        if len(header.shape) != 1:
            raise VectorError("wrong_length", f"an .npy array with {len(header.shape)} axes, not one")
        check_length(header.shape[0], self.dimensions)
        numbers = _numbers(value, header)
        return value[header.size :] if header.dtype == self.dtype else numbers.astype(self.dtype).data


class NpyWriter(Writer):
    """The numbers of all fields one after the other, in their type; with `counts`, rows."""

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        rows = side_by_side(fields)
        values = bytes_of_rows(rows, counts)
        if counts is None:
            header = encode_header(rows.dtype, rows.shape[1:])
            return [header + value for value in values]
        lengths = zip(values, counts.tolist(), strict=True)
        return [encode_header(rows.dtype, (length, *rows.shape[1:])) + value for value, length in lengths]


class Header(NamedTuple):
    size: int  # bytes before the data
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool


def parse_array(data: bytes) -> Array:
    """An array of any shape, in its own type and without copying. Raises `VectorError`."""
    header = _parse_header(data)
    try:
        return _numbers(data, header).reshape(header.shape, order="F" if header.fortran_order else "C")
    except ValueError:
        raise VectorError("undecodable", f"not an .npy array: no array has the shape {header.shape}") from None


def _numbers(data: bytes, header: Header) -> Array:
    """The numbers behind the header. Raises `VectorError` unless they are as many as it says."""
    if len(data) - header.size != math.prod(header.shape) * header.dtype.itemsize:
        raise VectorError("undecodable", "not an .npy array: its data are not as long as its header says")
    return np.frombuffer(data, header.dtype, offset=header.size)


def _parse_header(data: bytes) -> Header:
    """The header of an array of real numbers. Raises `VectorError`."""
    width = 2 if data[6:7] == b"\x01" else 4  # bytes of the length, which depends on the version before it
    return _parsed_header(data[: 8 + width + int.from_bytes(data[8 : 8 + width], "little")])


@lru_cache(maxsize=64)  # all messages of one producer have the same header, and parsing it is slow
def _parsed_header(header: bytes) -> Header:
    """The data are not read, so a header that claims terabytes costs nothing."""
    stream = io.BytesIO(header)
    try:
        with _WARNINGS, warnings.catch_warnings(action="ignore"):  # NumPy warns about headers written by Python 2
            version = np.lib.format.read_magic(stream)
            shape, fortran_order, dtype = _HEADER_READERS[version](stream)
            lengths = tuple(int(np.intp(length)) for length in shape)  # no array is longer
    except Exception:  # NumPy raises a dozen kinds: TokenError, RecursionError, TypeError …
        raise VectorError("undecodable", "not an .npy array: its header cannot be read") from None
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise VectorError("undecodable", f"an .npy array of {dtype.str}, not of real numbers of at most 8 bytes")
    return Header(len(header), dtype, lengths, fortran_order)


def encode_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The bytes before the numbers of an array in C order."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return out.getvalue()
