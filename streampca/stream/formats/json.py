"""JSON: an array of numbers, or an object that holds one somewhere.

What costs is not the parser but looking at every number again. So the numbers are packed by `struct`, which refuses
whatever is none, except booleans; and those can only be there where the text has a "true" or "false".
"""

import struct
from typing import Any

import numpy as np
import orjson

from streampca.stream.formats.base import FaultError, check_length


class JsonReader:
    """See `formats.base.Reader`."""

    dtype = np.dtype(np.float64)
    size = None

    def __init__(self, dimensions: int, field: str) -> None:
        self._dimensions, self._field = dimensions, field
        self._path = field.split(".") if field else []
        self._pack = struct.Struct(f"{dimensions}d").pack

    def read(self, value: bytes) -> bytes:
        row = self._array(value)
        check_length(len(row), self._dimensions)
        if _spells(value, b"true") or _spells(value, b"false"):
            _refuse_what_is_no_number(row)
        try:
            return self._pack(*row)
        except struct.error:
            _refuse_what_is_no_number(row)
            raise

    def _array(self, value: bytes) -> list[Any]:
        try:
            row = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise FaultError("undecodable", f"not JSON: {error}") from None
        for name in self._path:
            if not isinstance(row, dict) or name not in row:
                raise FaultError("undecodable", f"no field {self._field!r} in the JSON object")
            row = row[name]
        if not isinstance(row, list):
            raise FaultError("undecodable", f"expected a JSON array of numbers, not {_kind(row)}")
        return row


def _spells(value: bytes, word: bytes) -> bool:
    """Whether the word occurs. Numbers have neither t nor f, and one letter is found ten times as fast as a word."""
    return any(part.startswith(word[1:]) for part in value.split(word[:1])[1:])


def _refuse_what_is_no_number(row: list[Any]) -> None:
    if not set(map(type, row)) <= {int, float}:
        place = next(i for i, entry in enumerate(row) if type(entry) not in (int, float))
        raise FaultError("undecodable", f"entry {place} of the array is {_kind(row[place])}, not a number")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
