"""JSON: an array of numbers, or an object with the numbers in its fields."""

import base64
import codecs
import json
from typing import Any

import orjson
from numpy.typing import NDArray

from streampca.formats.base import Counts, Fields, Reader, Writer
from streampca.formats.errors import NULL_HINT, VectorError
from streampca.formats.layout import row_bounds
from streampca.formats.numbers import GuessedNumbers, VectorBytes
from streampca.formats.schemas import describe_foreign_frame, frame_size

_MAX_CANDIDATES = 16  # letters to compare one by one before the text is searched for the whole word


class JsonReader(Reader):
    """With `impute` an entry may be null or NaN; both give NaN."""

    value_name = "JSON object"

    def read(self, value: bytes) -> VectorBytes | GuessedNumbers:
        try:
            content = orjson.loads(value)  # most values are plain JSON
        except ValueError:
            content = self._load_unusual(value)
        # Booleans are searched for only if there may be any: that is faster.
        return self.numbers.pack(content, refuse_booleans=may_hold_booleans(value))

    def _load_unusual(self, value: bytes) -> Any:
        """Load JSON with NaN or a byte order mark, or behind the frame of Confluent's JSON Schema serializer."""
        is_framed = _may_be_framed(value)
        try:
            return loads(value[frame_size(value) :] if is_framed else value, nan=self.impute)
        except VectorError as error:
            frame = describe_foreign_frame(value)
            if not frame and is_framed and value:
                frame = "a schema registry's frame"
            hint = f"; it begins with {frame}" if frame else ""
            raise VectorError("undecodable", f"{error}{hint}") from None


class JsonWriter(Writer):
    """Writes values as objects, inside of further objects with the names `around`. NaN becomes null.

    With `counts`, each field is a list of what it is in the rows.
    """

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        groups = None if counts is None else row_bounds(counts, 0)
        columns = [_entries(values, groups) for values in fields.values()]
        names = list(fields)
        is_whole_value = names == [""]
        if is_whole_value:
            contents = columns[0]
        else:
            contents = [dict(zip(names, entries, strict=True)) for entries in zip(*columns, strict=True)]
        for name in reversed(self.around):
            contents = [{name: content} for content in contents]
        return [orjson.dumps(content) for content in contents]


def _entries(field: NDArray[Any], groups: list[tuple[int, int]] | None) -> list[Any]:
    """Return what each value holds of a field: an entry or, with `groups`, the list of the entries of its rows.

    `groups` are where the rows of each value start and end. Bytes are the same in all rows of a value: they are written
    once.
    """
    rows: list[Any] = field.tolist()
    are_bytes = field.dtype.kind == "O" and field.ndim == 1
    if are_bytes:
        firsts = rows if groups is None else [rows[start] for start, _ in groups]
        return [None if data is None else _embed(data) for data in firsts]
    if groups is None:
        return rows
    return [rows[start:end] for start, end in groups]


def _embed(value: bytes) -> Any:
    """Return a record's value as a part of JSON: its own JSON, without a byte order mark or a frame, else base64."""
    text = value[frame_size(value) :] if _may_be_framed(value) else value
    text = text.removeprefix(codecs.BOM_UTF8)
    try:
        orjson.loads(text)
    except ValueError:
        return base64.b64encode(value).decode()
    return orjson.Fragment(text)


def _may_be_framed(value: bytes) -> bool:
    """Return whether a value begins as a schema registry's frame does, with 0 or 1. No text begins so."""
    return value[:1] <= b"\1"


def loads(text: bytes, *, nan: bool = False) -> Any:
    """Return the value of a text as Python objects; a byte order mark is skipped. Raises `VectorError`.

    With `nan`, NaN is a number: JSON does not have it, but many producers write it.
    """
    text = text.removeprefix(codecs.BOM_UTF8)
    try:
        return json.loads(text) if nan and b"NaN" in text else orjson.loads(text)
    except (ValueError, RecursionError) as error:
        hint = f" (NaN is no number in JSON){NULL_HINT}" if b"NaN" in text and not nan else ""
        raise VectorError("undecodable", f"not JSON: {error}{hint}") from None


def may_hold_booleans(text: bytes) -> bool:
    """Return whether a text contains true or false; if not, no entry of any array is a boolean."""
    return _contains(text, b"true") or _contains(text, b"false")


def _contains(text: bytes, word: bytes) -> bool:
    """Return `word in text`, faster: searching for one letter is fast, and numbers have neither t nor f."""
    letter = word[:1]
    start = text.find(letter)
    for _ in range(_MAX_CANDIDATES):
        if start < 0:
            return False
        if text.startswith(word, start):
            return True
        start = text.find(letter, start + 1)
    return word in text  # there are many such letters, in names and texts
