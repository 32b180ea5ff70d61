"""JSON: an array of numbers, or an object with the numbers in its fields."""

import base64
import codecs
import json
from contextlib import suppress
from typing import Any

import orjson
from numpy.typing import NDArray

from streampca.formats.base import Counts, Fields, Reader, Writer
from streampca.formats.errors import VectorError, hint_at_encoding, looks_like_utf16
from streampca.formats.layout import holds_bytes, row_bounds
from streampca.formats.numbers import VectorBytes
from streampca.formats.schemas import describe_foreign_prefix, may_have_schema_prefix, schema_prefix_size

_MAX_INT = 2.0**64  # orjson reads whole numbers beyond as floats


class JsonReader(Reader):
    """With `impute` an entry may be null or NaN; both give NaN."""

    value_name = "JSON object"

    def read(self, value: bytes) -> VectorBytes:
        return self.numbers.pack(self.read_tree(value))

    def read_tree(self, value: bytes) -> Any:
        try:
            return orjson.loads(value)  # most values are plain JSON
        except ValueError:
            return _load_unusual(value)


def _load_unusual(value: bytes) -> Any:
    """Load a value that is not plain JSON: it has extensions such as NaN, or a schema registry's prefix before it."""
    # A schema registry's prefix begins with 0 or 1. Text in big-endian UTF-16 also begins with 0, but has no prefix.
    has_schema_prefix = may_have_schema_prefix(value) and not looks_like_utf16(value)
    text = value[schema_prefix_size(value) :] if has_schema_prefix else value
    try:
        return loads(text)
    except VectorError as error:
        # The value is not JSON after a prefix. Say in the error which prefix the value begins with, if any; users know
        # it as a frame, such as "a frame of AWS Glue's schema registry".
        frame_name = describe_foreign_prefix(value)  # "" if the value has no prefix of another encoding
        if not frame_name and has_schema_prefix:
            frame_name = "a schema registry's frame"
        hint = f"; it begins with {frame_name}" if frame_name else ""
        raise VectorError("undecodable", f"{error}{hint}") from None


class JsonWriter(Writer):
    """Writes values as objects, inside of further objects with the names `enclosing_names`. NaN becomes null.

    With `counts`, a value is for several rows, and each of its fields is the list of the field's rows.
    """

    holds_names = True

    def write(self, fields: Fields, counts: Counts = None) -> list[bytes]:
        """Return a value for each row or, with `counts`, for each group of `counts[i]` rows."""
        row_count = len(next(iter(fields.values())))
        bounds = None if counts is None else row_bounds(counts, row_count)
        # A document is the Python object that is written as the JSON of a value. For each field, there is a list: what
        # the field holds in document 0, in document 1, and so on.
        contents_by_field = [_contents_in_documents(field, bounds) for field in fields.values()]
        names = list(fields)
        is_whole_document = names == [""]  # the only field has no name: its content is the document
        if is_whole_document:
            documents = contents_by_field[0]
        else:
            documents = [dict(zip(names, contents, strict=True)) for contents in zip(*contents_by_field, strict=True)]
        for name in reversed(self.enclosing_names):
            documents = [{name: document} for document in documents]
        return [orjson.dumps(document) for document in documents]


def _contents_in_documents(field: NDArray[Any], bounds: list[tuple[int, int]] | None) -> list[Any]:
    """Return what a field of n rows holds in each JSON document: one row or, with `bounds`, a list of rows.

    With `bounds`, document i has the rows from `bounds[i][0]` to `bounds[i][1]`: a row for each vector of a record. But
    bytes, such as the value of the record, belong to the whole record: only the first row of a document counts, since
    the other rows hold the same bytes or None.
    """
    rows: list[Any] = field.tolist()
    field_holds_bytes = holds_bytes(field)
    if bounds is None:
        contents = rows
    elif field_holds_bytes:
        contents = [rows[start] for start, _ in bounds]
    else:
        contents = [rows[start:end] for start, end in bounds]
    return list(map(_embed_json_or_base64, contents)) if field_holds_bytes else contents


def _embed_json_or_base64(value: bytes | None) -> Any:
    """Return bytes as a part of a JSON document: JSON as it is, without a schema registry's prefix; else in base64."""
    if value is None:
        return None
    text = value[schema_prefix_size(value) :] if may_have_schema_prefix(value) else value
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
    """Return a whole number as orjson does: as a float if it has more than 64 bits.

    The json module itself would call `int`, which raises an error for more than 4,300 digits.
    """
    number = float(digits)
    return int(digits) if abs(number) < _MAX_INT else number
