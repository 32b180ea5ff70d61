"""Arrays of numbers in JSON: the vector of a record, or the rows of a request.

orjson parses a text and reports what is wrong with it. Where simdjson is installed it is tried first, because it
creates no Python object for a number; its result is used only where orjson's is certain to be the same. They differ in
four cases, which are excluded here. simdjson flattens nested arrays: all opening brackets of the text must be accounted
for. Of duplicate names it takes the first, and orjson the last. It ignores a byte order mark. It accepts half of a
surrogate pair, if that is escaped in a string that is not read.
"""

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

import numpy as np
import orjson

from streampca.pca.arrays import F64
from streampca.vectors.packing import VectorError

_MAX_CANDIDATES = 16  # letters to check one by one before searching the text for the whole word
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COUNTED_BYTES = 256 * 1024  # at once: the processor's cache holds them


def loads(text: bytes, *, nan: bool = False) -> Any:
    """The value of a text as Python objects. Raises `VectorError`.

    With `nan`, NaN is a number: JSON does not have it, but many producers write it.
    """
    try:
        return json.loads(text) if nan and b"NaN" in text else orjson.loads(text)
    except ValueError as error:
        hint = " (NaN and Infinity are not JSON)" if b"NaN" in text or b"Infinity" in text else ""
        raise VectorError("undecodable", f"not JSON: {error}{hint}") from None


def new_parser() -> Any:
    """A parser of simdjson's, for one thread; None without the extra `fast`."""
    simdjson = import_simdjson()
    return None if simdjson is None else simdjson.Parser()


def fast_vector(parser: Any, text: bytes, path: Sequence[str]) -> memoryview | None:
    """The numbers of the array at a path, as float64; None if orjson might find others, or an error."""
    has_arrays = text.find(b"[", text.find(b"[") + 1) >= 0
    if parser is None or has_arrays or b"\\" in text or text.startswith(_BYTE_ORDER_MARK):
        return None
    try:
        found = parser.parse(text)
        for name in path:
            if list(found.keys()).count(name) != 1:
                return None
            found = found[name]
        return memoryview(found.as_buffer(of_type="d"))
    except Exception:  # of any kind: orjson reports what is wrong, if anything is
        return None


def fast_fields(text: bytes, names: Collection[str]) -> dict[str, Any] | None:
    """The object's fields, an array of rows as float64 (n, width); None if orjson might find others, or an error.

    Also None if a field is not in `names`, if two are arrays, and if rows differ in length or are empty.
    """
    simdjson = import_simdjson()
    if simdjson is None or text.startswith(_BYTE_ORDER_MARK):
        return None
    try:
        found = simdjson.Parser().parse(text)
        if type(found) is not simdjson.Object or len(found) > len(names):
            return None
        fields: dict[str, Any] = {}
        for name in found:
            if name not in names or name in fields or type(found[name]) is simdjson.Object:
                return None
            value = found[name]
            fields[name] = _rows(value, count(text, b"[")) if type(value) is simdjson.Array else value
    except Exception:  # of any kind, as above
        return None
    return fields


def _rows(array: Any, brackets: int) -> F64:
    """The rows as one array. Raises an error unless they are arrays of equal length that hold nothing but numbers."""
    (width,) = {len(row) if type(row) is type(array) else -1 for row in array}
    if width < 1 or brackets != len(array) + 1:
        raise ValueError("not a table")
    return np.frombuffer(array.as_buffer(of_type="d")).reshape(len(array), width)


@cache
def import_simdjson() -> Any:
    """The module, or None without the extra `fast`."""
    try:
        import simdjson  # an optional extra
    except (ImportError, RuntimeError):  # RuntimeError: it is installed in part only
        return None
    return simdjson


def may_hold_booleans(text: bytes) -> bool:
    """Whether a text contains true or false anywhere; if not, no entry of any array is a boolean."""
    return _contains(text, b"true") or _contains(text, b"false")


def _contains(text: bytes, word: bytes) -> bool:
    """As `word in text`, but faster: numbers have neither t nor f, and searching for a single letter is fast."""
    start = text.find(word[:1])
    for _ in range(_MAX_CANDIDATES):
        if start < 0 or text.startswith(word, start):
            return start >= 0
        start = text.find(word[:1], start + 1)
    return word in text


def count(text: bytes, letter: bytes) -> int:
    """As `text.count(letter)` of a single byte, but several times as fast in a long text."""
    every, step = np.frombuffer(text, np.uint8), _COUNTED_BYTES
    return sum(int(np.count_nonzero(every[i : i + step] == letter[0])) for i in range(0, len(every), step))
