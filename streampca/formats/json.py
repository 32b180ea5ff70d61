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
from streampca.formats.schemas import describe_foreign_frame, frame_size

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
    """Load a value that is not plain JSON. Raises `VectorError`.

    It may be JSON with extensions, such as NaN, or it may begin with the frame that Confluent's JSON Schema serializer
    writes.
    """
    # A text in big-endian UTF-16 begins with 0, too, but has no frame.
    is_framed = value != b"" and _may_be_framed(value) and not hint_at_encoding(value)
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

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row or, with `counts`, for each group of `counts[i]` rows."""
        # With `counts`: the first row of each value, and the row after its last. `n` is then not used.
        bounds = None if counts is None else row_bounds(counts, n=0)
        columns = [_field_in_values(rows, bounds) for rows in fields.values()]  # for each field, its content by value
        names = list(fields)
        is_whole_value = names == [""]  # this name means that there is no object around the only field
        if is_whole_value:
            contents = columns[0]
        else:
            contents = [dict(zip(names, entries, strict=True)) for entries in zip(*columns, strict=True)]
        for name in reversed(self.around):  # from the innermost object to the outermost
            contents = [{name: content} for content in contents]
        return [orjson.dumps(content) for content in contents]


def _field_in_values(field: NDArray[Any], bounds: list[tuple[int, int]] | None) -> list[Any]:
    """Return the content of a field in each value: the entry of a row or, with `bounds`, the list of its rows' entries.

    `bounds` say where the rows of each value start and end. A field of bytes holds the value of the record that the
    rows come from, or None. This is the same in all rows of a value, so it is written once instead of as a list.
    """
    rows: list[Any] = field.tolist()
    are_objects = field.dtype.kind == "O" and field.ndim == 1  # all texts, or all bytes or None
    are_bytes = are_objects and not isinstance(rows[0], str)
    if are_bytes:
        data_of_values = rows if bounds is None else [rows[start] for start, _ in bounds]
        # `_embed` leaves JSON as it is, so that it does not become a text in a text; other bytes become base64.
        return [None if data is None else _embed(data) for data in data_of_values]
    if bounds is None:
        return rows
    return [rows[start:end] for start, end in bounds]


def _embed(value: bytes) -> Any:
    """Return the value of a record so that it can be written into JSON: as it is if it is JSON, or else in base64.

    A byte order mark, or the frame of a schema registry, is left out before JSON.
    """
    text = value[frame_size(value) :] if _may_be_framed(value) else value
    text = text.removeprefix(codecs.BOM_UTF8)
    try:
        orjson.loads(text)
    except ValueError:
        return base64.b64encode(value).decode()
    return orjson.Fragment(text)


def _may_be_framed(value: bytes) -> bool:
    """Return whether a value begins with 0 or 1, as a schema registry's frame does, or is empty. No text begins so."""
    return value[:1] <= b"\1"


def loads(text: bytes) -> Any:
    """Return the value of a JSON text as Python objects; a byte order mark is skipped. Raises `VectorError`.

    Many producers write what JSON forbids, and it may lie beside the vector. So these are not errors: NaN, Infinity,
    numbers beyond float64, halves of surrogate pairs, control characters, and texts in another encoding than UTF-8.
    """
    text = text.removeprefix(codecs.BOM_UTF8)
    with suppress(ValueError):
        return orjson.loads(text)  # fast, but it reads only what JSON allows
    try:
        return json.loads(text.decode(errors="replace"), strict=False, parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        raise VectorError("undecodable", f"not JSON: {error}{hint_at_encoding(text)}") from None


def _parse_int(digits: str) -> int | float:
    """Return a whole number as orjson does: as a float if it has more than 64 bits."""
    number = float(digits)
    return int(digits) if abs(number) < _MAX_INT else number
