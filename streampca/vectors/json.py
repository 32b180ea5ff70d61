"""Arrays of numbers in JSON: the vector of a record, or the rows of a request."""

import json
from typing import Any

import numpy as np
import orjson

from streampca.vectors.packing import VectorError

_MAX_CANDIDATES = 16  # letters to check one by one before searching the text for the whole word
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
