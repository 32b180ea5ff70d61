"""Python numbers → float64 in memory, with a precise message for anything that is not a number."""

import itertools
import math
import struct
from collections.abc import Collection
from typing import Any

import numpy as np

VectorBytes = bytes | memoryview
"""The numbers of a vector in memory, or those of several vectors, one after the other."""

NULL_HINT = " (missing=impute learns vectors with gaps)"
_MAX_NAMES, _NAME_LENGTH, _MAX_LENGTH = 8, 32, 400


class VectorError(Exception):
    """A value is not a vector: a short name for the reason, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NumberPacker:
    """Packs lists of d Python numbers; with `gaps` an entry may also be None, which becomes NaN."""

    def __init__(self, dimensions: int, *, gaps: bool = False) -> None:
        self._dimensions, self._gaps = dimensions, gaps
        self._pack = struct.Struct(f"{dimensions}d").pack

    def pack(self, row: list[Any], *, booleans: bool, entry: str = "entry {}") -> bytes:
        """The d entries as float64. Raises `VectorError`; `entry` is what it calls one.

        `booleans`: whether there may be any; `struct` would accept them as numbers.
        """
        check_length(len(row), self._dimensions)
        if booleans:
            self._check_numbers(row, entry)
        try:
            return self._pack(*row)
        except (struct.error, OverflowError):
            self._check_numbers(row, entry)
            if self._gaps and None in row:
                return self._pack(*(math.nan if number is None else number for number in row))
            raise

    def _check_numbers(self, row: list[Any], entry: str) -> None:
        allowed = {int, float, type(None)} if self._gaps else {int, float}
        if not set(map(type, row)) <= allowed:
            i, found = next((i, found) for i, found in enumerate(row) if type(found) not in allowed)
            hint = NULL_HINT if found is None else ""
            raise VectorError("undecodable", f"{entry.format(i)} must be a number, not {type_name(found)}{hint}")


def missing_field(field: str, name: str, found: Any, kind: str) -> VectorError:
    """The error for a value `found` without the field `name`, the part of the path `field` that is missing.

    It lists the fields that there are, bounded in length, since it goes to the log and to the dead-letter topic.
    """
    text = f"no field {field!r} in the {kind}"
    if not isinstance(found, dict):
        return VectorError("undecodable", f"{text}: {type_name(found)} has no field {name!r}")
    return VectorError("undecodable", f"{text}: there is {listed(found)}, but not {name!r}")


def listed(names: Collection[object]) -> str:
    """The first of these names, quoted and shortened."""
    first = ", ".join(repr(str(name)[:_NAME_LENGTH]) for name in itertools.islice(names, _MAX_NAMES)) or "none"
    return first[:_MAX_LENGTH] + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")


def check_length(length: int, dimensions: int) -> None:
    """Raise `VectorError` unless the vector has d numbers."""
    if length != dimensions:
        raise VectorError("wrong_length", f"{length} numbers, not {dimensions}")


def check_size(size: int, limit: int) -> None:
    """Raise `VectorError` if a value has more bytes than the limit."""
    if size > limit:
        raise VectorError("too_many_bytes", f"{size} bytes, more than the limit of {limit}")


def float64_of(data: bytes, dimensions: int) -> VectorBytes:
    """The vector in a field of bytes: d little-endian floats of 4 or 8 bytes each."""
    if len(data) == 8 * dimensions:
        return data
    if len(data) == 4 * dimensions:
        return np.frombuffer(data, "<f4").astype(np.float64).data
    raise VectorError("wrong_length", f"{len(data)} bytes are not {dimensions} numbers of 4 or 8 bytes")


def type_name(value: Any) -> str:
    """A value's type, in JSON's words."""
    names = {
        dict: "an object", list: "an array", str: "a string", bytes: "bytes", bool: "a boolean", type(None): "null",
    }  # fmt: skip
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")
