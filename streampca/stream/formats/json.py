"""JSON: an array of numbers, or an object that holds one somewhere.

What costs is not the parser but looking at every number again. So the numbers are packed by `struct`, which refuses
whatever is none, except booleans; and those can only be there where the text has a "true" or "false".
"""

from typing import Any

import numpy as np
import orjson

from streampca.stream.formats.base import FaultError, Packer, kind_of

_LETTERS = 16  # such letters looked at, one by one, before a text counts as prose


class JsonReader:
    """See `formats.base.Reader`."""

    dtype = np.dtype(np.float64)
    size = None
    many = False

    def __init__(self, dimensions: int, field: str) -> None:
        self._field = field
        self._path = field.split(".") if field else []
        self._packer = Packer(dimensions)

    def read(self, value: bytes) -> bytes:
        return self._packer.pack(self._array(value), booleans=may_hold_booleans(value))

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
            raise FaultError("undecodable", f"expected a JSON array of numbers, not {kind_of(row)}")
        return row


def may_hold_booleans(text: bytes) -> bool:
    """Whether a JSON text spells true or false anywhere; where it does not, no entry of any array is a boolean."""
    return _spells(text, b"true") or _spells(text, b"false")


def _spells(text: bytes, word: bytes) -> bool:
    """Whether the word occurs. Numbers have neither t nor f, and one letter is found far faster than a word."""
    place = text.find(word[:1])
    for _ in range(_LETTERS):
        if place < 0 or text.startswith(word, place):
            return place >= 0
        place = text.find(word[:1], place + 1)
    return word in text
