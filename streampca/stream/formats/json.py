"""JSON: an array of numbers, or an object that holds one somewhere.

A parser of JSON makes an object of every number, and costs far more than anything else here. So the texts of arrays are
read by `arrays`, many at once, and orjson is given what is left of an object when its array is taken out. Only what
is certain is taken from there: all else is read again by orjson alone, which pronounces all verdicts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from streampca.stream.formats.base import FaultError, Numbers, Packer, kind_of

_LETTERS = 16  # such letters looked at, one by one, before a text counts as prose
_IN_PLACE = 7310584921  # stands for an array that was taken out; a value that spells it is read by orjson alone
_DIGITS = str(_IN_PLACE).encode()


class JsonReader:
    """See `formats.base.Reader`."""

    dtype = np.dtype(np.float64)
    many = False

    def __init__(self, dimensions: int, field: str) -> None:
        # Here, since the sidecar needs this module and starts sooner without what compiles.
        from streampca.stream.formats.arrays import read_arrays

        self._dimensions, self._field = dimensions, field
        self._path = field.split(".") if field else []
        self._names = [f'"{name}"'.encode(errors="replace") for name in self._path]
        self._packer = Packer(dimensions)
        self._read_arrays = read_arrays
        self._read_arrays([b"[0]"], 1)  # compiles it, now and not when messages wait

    def at_once(self, values: Sequence[bytes | None]) -> Sequence[Numbers | None]:
        return self._read_arrays([b"" if value is None else self._text(value) for value in values], self._dimensions)

    def read(self, value: bytes) -> bytes:
        """See `Reader`; the plain way, which looks at every entry."""
        # `struct` refuses whatever is no number, except booleans; they can only be where "true" or "false" is spelled.
        return self._packer.pack(self._array(value), booleans=may_hold_booleans(value))

    def _text(self, value: bytes) -> bytes:
        """What is the text of the array if it is one of numbers at all; else nothing.

        Of a value that is not the array itself, it is from a bracket to the next: in arrays of numbers there are none
        between. With `[7310584921]` in its place the rest must be JSON that has this at the path, where an integer
        can only come from those very digits; so the bracket opens the array of this field.
        """
        if not self._path:
            return value
        place = 0
        for name in self._names:
            place = value.find(name, place) + len(name)
        start = value.find(b"[", place)
        end = value.find(b"]", start) + 1
        if not 0 <= start < end or value[place:start].strip() != b":":
            return b""
        rest = b"%b[%b]%b" % (value[:start], _DIGITS, value[end:])
        return value[start:end] if rest.count(_DIGITS) == 1 and self._leads_to_place(rest) else b""

    def _leads_to_place(self, rest: bytes) -> bool:
        try:
            found = self._array(rest)
        except FaultError:
            return False
        return found == [_IN_PLACE] and type(found[0]) is int

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
