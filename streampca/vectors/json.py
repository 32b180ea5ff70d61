"""Vectors in JSON: an array of numbers, or an object with such an array in one of its fields.

orjson parses the text and reports what is wrong with it. `struct` packs the numbers and refuses anything else, except
booleans, so these are looked for only if the text contains "true" or "false". Where simdjson is installed it is tried
first, because it does not create a Python object for each number; its result is used only where orjson's is certain to
be the same.
"""

import json
from typing import Any

import orjson

from streampca.vectors.packing import NumberPacker, VectorBytes, VectorError, missing_field, type_name

_MAX_CANDIDATES = 16  # letters to check one by one before searching the text for the whole word
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonVectorParser:
    """Parses texts that hold one vector of d numbers each, at a dotted path. For one thread.

    With `gaps` an entry may be null or NaN, which JSON does not have but many producers write; both give NaN.
    """

    def __init__(self, dimensions: int, field: str = "", *, gaps: bool = False) -> None:
        self._field, self._path = field, field.split(".") if field else []
        self._packer, self._gaps = NumberPacker(dimensions, gaps=gaps), gaps
        self._simdjson = SimdjsonParser.installed(dimensions, self._path)

    def parse(self, text: bytes) -> VectorBytes:
        """The d numbers as float64. Raises `VectorError`."""
        numbers = None if self._simdjson is None else self._simdjson.parse(text)
        if numbers is not None:
            return numbers
        return self._packer.pack(self._array(text), booleans=may_hold_booleans(text))

    def _array(self, text: bytes) -> list[Any]:
        try:
            found = json.loads(text) if self._gaps and b"NaN" in text else orjson.loads(text)
        except ValueError as error:
            raise VectorError("undecodable", f"not JSON: {error}") from None
        for name in self._path:
            if not isinstance(found, dict) or name not in found:
                raise missing_field(self._field, name, found, "JSON object")
            found = found[name]
        if not isinstance(found, list):
            raise VectorError("undecodable", f"expected a JSON array of numbers, not {type_name(found)}")
        return found


class SimdjsonParser:
    """Parses the texts of which simdjson and orjson give the same numbers, to the bit."""

    def __init__(self, parser: Any, dimensions: int, path: list[str]) -> None:
        self._parser, self._path = parser, path
        self._names = [f'"{name}"'.encode(errors="replace") for name in path]
        self._size = 8 * dimensions

    @classmethod
    def installed(cls, dimensions: int, path: list[str]) -> "SimdjsonParser | None":
        """None without the extra `fast`."""
        simdjson = import_simdjson()
        return None if simdjson is None else cls(simdjson.Parser(), dimensions, path)

    def parse(self, text: bytes) -> memoryview | None:
        """The d numbers as float64; None if orjson might find others, or an error."""
        if not self._is_plain(text):
            return None
        try:
            found: Any = self._parser.parse(text)
            for name in self._path:
                found = found[name]
            numbers = memoryview(found.as_buffer(of_type="d"))
        except Exception:  # of any kind: orjson reports what is wrong, if anything is
            return None
        return numbers if numbers.nbytes == self._size else None

    def _is_plain(self, text: bytes) -> bool:
        """Whether simdjson and orjson find the same numbers at the path.

        They differ in three cases, which are excluded here. simdjson flattens nested arrays: require a single opening
        bracket. It takes the first of duplicate names and orjson the last: require that each name of the path occurs
        once, without escapes; the array itself holds no names and is not searched. It ignores a byte order mark.
        """
        start = text.find(b"[")
        if text.find(b"[", start + 1) >= 0 or text.startswith(BYTE_ORDER_MARK):
            return False
        if not self._names:
            return True
        others = text[:start] + text[text.find(b"]", start) :]
        return b"\\" not in others and all(others.count(name) == 1 for name in self._names)


def import_simdjson() -> Any:
    """The module, or None without the extra `fast`."""
    try:
        import simdjson  # an optional extra
    except (ImportError, RuntimeError):  # RuntimeError: it is installed in part only
        return None
    return simdjson


def may_hold_booleans(text: bytes) -> bool:
    """Whether a JSON text contains true or false anywhere; if not, no entry of any array is a boolean."""
    return _contains(text, b"true") or _contains(text, b"false")


def _contains(text: bytes, word: bytes) -> bool:
    """As `word in text`, but faster: numbers have neither t nor f, and searching for a single letter is fast."""
    place = text.find(word[:1])
    for _ in range(_MAX_CANDIDATES):
        if place < 0 or text.startswith(word, place):
            return place >= 0
        place = text.find(word[:1], place + 1)
    return word in text
