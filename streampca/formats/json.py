"""JSON: an array of numbers, or an object with the numbers in its fields."""

import base64
import codecs
import json
from contextlib import suppress
from typing import Any

import orjson
from numpy.typing import NDArray

from streampca.formats.base import Counts, Fields, Reader, Writer
from streampca.formats.errors import VectorError, hint_at_encoding
from streampca.formats.layout import row_bounds
from streampca.formats.numbers import GuessedNumbers, VectorBytes
from streampca.formats.schemas import begins_as_frame, describe_foreign_frame, frame_size

_MAX_INT = 2.0**64  # orjson reads whole numbers beyond as floats


class JsonReader(Reader):
    """With `impute` an entry may be null or NaN; both give NaN."""

    value_name = "JSON object"

    def read(self, value: bytes) -> VectorBytes | GuessedNumbers:
        return self.numbers.pack(self.read_tree(value))

    def read_tree(self, value: bytes) -> Any:
        try:
            return orjson.loads(value)  # most values are plain JSON
        except ValueError:
            return _load_unusual(value)


def _load_unusual(value: bytes) -> Any:
    """Load a value that is not plain JSON: it has extensions such as NaN, or a frame."""
    # Text in big-endian UTF-16 begins with 0, too, but has no frame.
    is_framed = begins_as_frame(value) and not hint_at_encoding(value)
    text = value[frame_size(value) :] if is_framed else value
    try:
        return loads(text)
    except VectorError as error:
        frame = describe_foreign_frame(value)
        if not frame and is_framed:
            frame = "a schema registry's frame"
        hint = f"; it begins with {frame}" if frame else ""
        raise VectorError("undecodable", f"{error}{hint}") from None


class JsonWriter(Writer):
    """Writes values as objects, inside of further objects with the names `around`. NaN becomes null.

    With `counts`, a value is for several rows, and each of its fields is the list of the field's rows.
    """

    holds_names = True

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row or, with `counts`, for each group of `counts[i]` rows."""
        bounds = None if counts is None else row_bounds(counts, n=0)  # with counts, n is not used
        columns = [_field_in_values(rows, bounds) for rows in fields.values()]
        names = list(fields)
        is_whole_value = names == [""]
        if is_whole_value:
            contents = columns[0]
        else:
            contents = [dict(zip(names, entries, strict=True)) for entries in zip(*columns, strict=True)]
        for name in reversed(self.around):
            contents = [{name: content} for content in contents]
        return [orjson.dumps(content) for content in contents]


def _field_in_values(field: NDArray[Any], bounds: list[tuple[int, int]] | None) -> list[Any]:
    """Return the content of a field in each value. Without `bounds`, each row is a value.

    `bounds` are the start and the end of each value's rows. Bytes are the same in all of them, so written once.
    """
    rows: list[Any] = field.tolist()
    are_bytes = field.dtype.kind == "O" and field.ndim == 1 and not isinstance(rows[0], str)
    if bounds is None:
        contents = rows
    elif are_bytes:
        contents = [rows[start] for start, _ in bounds]
    else:
        contents = [rows[start:end] for start, end in bounds]
    return list(map(_embed, contents)) if are_bytes else contents


def _embed(value: bytes | None) -> Any:
    """Return the value of a record for JSON: JSON as it is, other bytes in base64."""
    if value is None:
        return None
    text = value[frame_size(value) :] if begins_as_frame(value) else value
    text = text.removeprefix(codecs.BOM_UTF8)
    try:
        orjson.loads(text)
    except ValueError:
        return base64.b64encode(value).decode()
    return orjson.Fragment(text)


def loads(text: bytes) -> Any:
    """Return the value of a JSON text. Raises `VectorError`.

    Accepts what many producers write although JSON forbids it, such as NaN and control characters.
    """
    text = text.removeprefix(codecs.BOM_UTF8)
    with suppress(ValueError):
        return orjson.loads(text)  # fast, but strict
    try:
        return json.loads(text.decode(errors="replace"), strict=False, parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        raise VectorError("undecodable", f"not JSON: {error}{hint_at_encoding(text)}") from None


def _parse_int(digits: str) -> int | float:
    """Return a whole number as orjson does: as a float if it has more than 64 bits."""
    number = float(digits)
    return int(digits) if abs(number) < _MAX_INT else number
