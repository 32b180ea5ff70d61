"""JSON: an array of numbers, or an object that holds one somewhere.

orjson reads it and says what is wrong, and the numbers it finds are packed by `struct`, which refuses whatever is none,
except booleans; and those can only be there where the text has a "true" or "false". Where simdjson is installed it
is asked before, since it makes no object of every number; it is believed only where orjson must find the same.
"""

from typing import Any

import numpy as np
import orjson

from streampca.stream.formats.base import FaultError, Numbers, Packer, kind_of

_LETTERS = 16  # such letters looked at, one by one, before a text counts as prose
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonReader:
    """See `formats.base.Reader`."""

    dtype = np.dtype(np.float64)
    size = None
    many = False

    def __init__(self, dimensions: int, field: str) -> None:
        self._field = field
        self._path = field.split(".") if field else []
        self._packer = Packer(dimensions)
        self._simdjson = _Simdjson.installed(dimensions, self._path)

    def read(self, value: bytes) -> Numbers:
        numbers = None if self._simdjson is None else self._simdjson.numbers_of(value)
        if numbers is not None:
            return numbers
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


class _Simdjson:
    """What simdjson reads as orjson does, to the bit."""

    def __init__(self, parser: Any, dimensions: int, path: list[str]) -> None:
        self._parser, self._path = parser, path
        self._names = [f'"{name}"'.encode(errors="replace") for name in path]
        self._size = 8 * dimensions

    @classmethod
    def installed(cls, dimensions: int, path: list[str]) -> "_Simdjson | None":
        """None without the extra `fast`."""
        try:
            from simdjson import Parser  # here, since it need not be installed
        except (ImportError, RuntimeError):  # the second is what it raises when only a part of it is there
            return None
        return cls(Parser(), dimensions, path)

    def numbers_of(self, value: bytes) -> memoryview | None:
        """The d numbers; None of whatever is not certain."""
        if not self._is_plain(value):
            return None
        try:
            found: Any = self._parser.parse(value)
            for name in self._path:
                found = found[name]
            numbers = memoryview(found.as_buffer(of_type="d"))
        except Exception:  # of whatever kind: orjson will say what is wrong, if anything is
            return None
        return numbers if numbers.nbytes == self._size else None

    def _is_plain(self, value: bytes) -> bool:
        """Whether numbers that simdjson finds at the path are those that orjson finds there.

        It makes one array of nested ones: here is but one bracket that opens any. It takes the first of equal names,
        orjson the last: here each name of the path is there once, and none is spelled with escapes; the array, where
        that would take longest, is not searched, since no names are among numbers. It passes over a byte order mark.
        """
        start = value.find(b"[")
        if value.find(b"[", start + 1) >= 0 or value.startswith(_BYTE_ORDER_MARK):
            return False
        if not self._names:
            return True
        others = value[:start] + value[value.find(b"]", start) :]
        return b"\\" not in others and all(others.count(name) == 1 for name in self._names)


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
