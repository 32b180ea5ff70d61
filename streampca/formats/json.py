"""JSON: an array of numbers, or an object with the numbers in its fields."""

import base64
import codecs
import json
from typing import Any

import orjson
from numpy.typing import NDArray

from streampca.formats.base import Counts, Fields, Reader, Writer
from streampca.formats.errors import NULL_HINT, VectorError
from streampca.formats.layout import bounds
from streampca.formats.numbers import Guessed, VectorBytes
from streampca.formats.schemas import foreign_frame, frame_size

_MAX_CANDIDATES = 16  # letters to check one by one before searching the text for the whole word


class JsonReader(Reader):
    """With `impute` an entry may be null or NaN; both give NaN."""

    kind = "JSON object"

    def read(self, value: bytes) -> VectorBytes | Guessed:
        try:
            content = orjson.loads(value)  # most are plain JSON
        except ValueError:
            content = self._behind_a_frame(value)
        return self.numbers.pack(content, booleans=may_hold_booleans(value))

    def _behind_a_frame(self, value: bytes) -> Any:
        """The content behind the frame that Confluent's JSON Schema serializer writes; no text begins with 0 or 1."""
        is_framed = value[:1] <= b"\1"
        try:
            return loads(value[frame_size(value) :] if is_framed else value, nan=self.impute)
        except VectorError as error:
            frame = foreign_frame(value) or ("a schema registry's frame" if is_framed and value else "")
            raise VectorError("undecodable", f"{error}; it begins with {frame}" if frame else str(error)) from None


class JsonWriter(Writer):
    """Values are objects, inside of others with the names `around`; NaN becomes null.

    With `counts` the fields hold lists.
    """

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        groups = None if counts is None else bounds(counts, 0)
        names, columns = list(fields), [_column(values, groups) for values in fields.values()]
        rows = (
            columns[0] if names == [""] else [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        )
        for name in reversed(self.around):
            rows = [{name: row} for row in rows]
        return [orjson.dumps(row) for row in rows]


def _column(values: NDArray[Any], groups: list[tuple[int, int]] | None) -> list[Any]:
    """The values of a field. With groups, each is the list of a record's rows; bytes are spliced, once for a record."""
    column: list[Any] = values.tolist()
    if values.dtype.kind == "O" and values.ndim == 1:
        firsts = column if groups is None else [column[i] for i, _ in groups]
        return [None if value is None else spliced(value) for value in firsts]
    return column if groups is None else [column[i:j] for i, j in groups]


def spliced(value: bytes) -> Any:
    """A record's value as a part of JSON: JSON itself, without a byte order mark or a frame; else text in base64."""
    text = value[frame_size(value) :] if value[:1] <= b"\1" else value  # no text begins so
    text = text.removeprefix(codecs.BOM_UTF8)
    try:
        orjson.loads(text)
    except ValueError:
        return base64.b64encode(value).decode()
    return orjson.Fragment(text)


def loads(text: bytes, *, nan: bool = False) -> Any:
    """The value of a text as Python objects; a byte order mark is skipped. Raises `VectorError`.

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
    """As `word in text`, but faster: numbers have neither t nor f, and searching for a single letter is fast."""
    start = text.find(word[:1])
    for _ in range(_MAX_CANDIDATES):
        if start < 0 or text.startswith(word, start):
            return start >= 0
        start = text.find(word[:1], start + 1)
    return word in text
