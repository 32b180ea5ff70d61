"""The rows of a long JSON body, read one by one: one row's numbers stay in the processor's cache, all together do not.

`{"vectors": [[1, 2], [3, 4]], "version": 7}` is a frame, `{"vectors": [], "version": 7}`, and rows with commas between
them, from the first "[" to the last "]". Where the frame is JSON with that empty list under a name that rows go by, and
each row is one that the worker's reader of JSON takes (with simdjson, if it is installed), the body is JSON and means
just that. Of whatever is not certain nothing is told: who reads all of the body at once says what it is.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from streampca.pca.arrays import Array
from streampca.vectors.json import JsonVectorParser
from streampca.vectors.packing import VectorError

_LONG_BODY, _LONG_ROW = 64 * 1024, 128  # bytes, numbers: below either, reading all at once takes no longer
_LONGEST_ROW = 1024 * 1024  # bytes: more are in no cache, and simdjson takes up to 15 times as many for a while
_SPACE = b" \t\n\r"


def fields_by_row(text: bytes, names: Sequence[str]) -> dict[str, Any] | None:
    """The fields of a JSON object with the rows, which go by one of `names`, as an array (n, width) of float64.

    None for what is short, for rows that are not all of one length, and for all else that is not certain.
    """
    first, last = text.find(b"["), text.rfind(b"]")
    if len(text) < _LONG_BODY or (width := _width(text, first + 1)) < _LONG_ROW:
        return None
    try:
        frame = orjson.loads(text[: first + 1] + text[last:])
        name = next(name for name in names if _is_empty_list(frame, name))
        fields: dict[str, Any] = frame | {name: _read(text, first + 1, last, width)}
    except (orjson.JSONDecodeError, VectorError, StopIteration):
        return None
    return fields


def _width(text: bytes, start: int) -> int:
    """How many numbers the first row has, if it is one."""
    opening = text.find(b"[", start)
    return 0 if opening < 0 else text.count(b",", opening, text.find(b"]", opening)) + 1


def _is_empty_list(frame: object, name: str) -> bool:
    """Whether the rows go by this name. The frame has no other list: none opens before this one, none closes after."""
    return isinstance(frame, dict) and frame.get(name) == []


def _read(text: bytes, place: int, end: int, width: int) -> Array:
    """Rows of `width` numbers with commas between them, and nothing else. Raises `VectorError`."""
    reader, packed, separator = JsonVectorParser(width), bytearray(), b""  # a reader may serve one thread only
    while (opening := text.find(b"[", place, end)) >= 0:
        _expect(separator, text[place:opening])
        place = text.find(b"]", opening, end) + 1
        if place - opening > _LONGEST_ROW:
            raise VectorError("too_large", "a row that is too long")
        packed += reader.parse(text[opening:place])
        separator = b","
    _expect(b"", text[place:end])
    return np.frombuffer(packed).reshape(-1, width)


def _expect(separator: bytes, between: bytes) -> None:
    if between.strip(_SPACE) != separator:
        raise VectorError("undecodable", "not a list of rows")
