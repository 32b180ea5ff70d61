"""What every format has in common: a reader of single values, and the fault that it finds."""

import struct
from typing import Any, Protocol

import numpy as np

Numbers = bytes | memoryview
"""A vector's numbers in memory, or those of several, one vector after the other."""


class FaultError(Exception):
    """Why one value is no vector: the short name of the fault, and what was wrong."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Reader(Protocol):
    """One format, for vectors of d numbers."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers that `read` returns."""

    @property
    def size(self) -> int | None:
        """Bytes of a value, where every value of that length is d numbers as it stands; None where it must be read."""

    @property
    def many(self) -> bool:
        """Whether a value may hold any number of vectors; else it holds one."""

    def read(self, value: bytes) -> Numbers:
        """The d numbers of a value, or n·d of one that holds several vectors.

        Raises `FaultError` for what is no vector, and whatever the schema registry raises, which is not the value's
        fault. Whether the numbers are finite and small enough is not looked at.
        """


class Packer:
    """Numbers that are Python's already, made bytes; and what is no number, told."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._pack = struct.Struct(f"{dimensions}d").pack

    def pack(self, row: list[Any], *, booleans: bool) -> bytes:
        """The d entries of a row in memory. `booleans`: whether there may be any, which `struct` takes for numbers."""
        check_length(len(row), self._dimensions)
        if booleans:
            _refuse_what_is_no_number(row)
        try:
            return self._pack(*row)
        except (struct.error, OverflowError):
            _refuse_what_is_no_number(row)
            raise


def check_length(length: int, dimensions: int) -> None:
    """Raise the fault of a vector that has not d numbers."""
    if length != dimensions:
        raise FaultError("wrong_length", f"{length} numbers, not {dimensions}")


def doubles_of(data: bytes, dimensions: int) -> Numbers:
    """The vector in a field of bytes: little-endian floats, of the precision that the length tells."""
    if len(data) == 8 * dimensions:
        return data
    if len(data) == 4 * dimensions:
        return np.frombuffer(data, "<f4").astype(np.float64).data
    raise FaultError("wrong_length", f"{len(data)} bytes are not {dimensions} numbers of 4 or 8 bytes")


def kind_of(value: Any) -> str:
    """A value's type, in words."""
    names = {
        dict: "an object", list: "an array", str: "a string", bytes: "bytes", bool: "a boolean", type(None): "null",
    }  # fmt: skip
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def _refuse_what_is_no_number(row: list[Any]) -> None:
    if not set(map(type, row)) <= {int, float}:
        place = next(i for i, entry in enumerate(row) if type(entry) not in (int, float))
        raise FaultError("undecodable", f"entry {place} of the array is {kind_of(row[place])}, not a number")
