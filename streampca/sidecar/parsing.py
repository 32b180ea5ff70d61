"""Parses the body of a request into a validated request of `schemas`, whose rows are an array.

A mistake is raised as `RequestError`. A binary body holds only rows of numbers, so the other fields are query
parameters. A JSON body may leave fields to query parameters, too. Numbers without a header are cut into rows later, by
`check_rows`, which knows how long a row is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError, ValidationInfo

from streampca.formats import npy
from streampca.formats.errors import VectorError, quote_names, type_name
from streampca.formats.json import loads, may_hold_booleans
from streampca.formats.judge import first_not_finite
from streampca.formats.numbers import NumberPacker, decode_text
from streampca.pca.arrays import Array
from streampca.sidecar.errors import Problem, RequestError, describe_mistakes, invalid, too_large
from streampca.sidecar.request import BINARY, BYTES, RAW, SMALL_BYTES, RawRequest

Schema = TypeVar("Schema", bound=BaseModel)

_ROW_FIELDS = ("vectors", "coordinates")


class Limits(NamedTuple):
    """How large a request and an answer may be."""

    rows: int
    numbers: int


def parse(raw: RawRequest, limits: Limits, schema: type[Schema], query: type[BaseModel]) -> Schema:
    """Return the request that body and query describe. Raises `RequestError`."""
    if raw.media_type == BYTES:
        example = next(iter(RAW))
        raise RequestError(
            Problem.UNSUPPORTED_TYPE, f"{BYTES} does not say which numbers: send Content-Type: {example}"
        )
    check_names("parameter", raw.query, query.model_fields)
    parameters = validate(query, raw.query).model_dump(exclude_unset=True) if raw.query else {}
    row_field = parameters.pop("of", None)
    if raw.media_type in BINARY:
        row_fields = [name for name in schema.model_fields if name in _ROW_FIELDS]
        if len(row_fields) == 1:
            row_field = row_fields[0]
        if row_field is None:
            choices = " or ".join(f"?of={name}" for name in row_fields)
            raise invalid(f"say in the query what the body holds: {choices}")
        return validate(schema, parameters | {row_field: _parse_binary(raw, row_field)})
    content = parse_json_object(raw.body, limits)
    check_names("field", content, schema.model_fields)
    return validate(schema, parameters | content, strict=True, context=raw.body)


def parse_json_object(body: bytes, limits: Limits) -> dict[str, Any]:
    """Return the fields of a JSON body, with rows as lists. If a field is there twice, the last one counts.

    Raises `RequestError`, also for a body whose Python objects would need too much memory.
    """
    if len(body) > SMALL_BYTES and _estimate_values(body) > limits.numbers + 3 * (limits.rows + 100):
        raise too_large(
            f"the body holds too many values: send at most {limits.numbers} numbers in {limits.rows} rows",
            "numbers",
        )
    try:
        content = loads(body)
    except VectorError as error:
        raise RequestError(Problem.MALFORMED_BODY, f"the body is {error}") from None
    if not isinstance(content, dict):
        raise invalid(f"the body must be a JSON object, not {type_name(content)}")
    return content


def _estimate_values(body: bytes) -> int:
    """Return about how many numbers need as much memory as the values of this JSON, which is not parsed yet.

    A number needs some 40 bytes as a Python object, and an array, an object or a field up to three times as much.
    Numbers are counted by their commas, arrays and objects by opening brackets and braces, and fields by their colons.
    """
    letters = np.frombuffer(body, np.uint8)
    numbers = np.count_nonzero(letters == ord(","))
    larger_values = sum(np.count_nonzero(letters == ord(letter)) for letter in "[{:")
    return int(numbers + 3 * larger_values)


def check_names(kind: str, content: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise `RequestError` for the first unknown name.

    Pydantic would find it, too, but would make an error object for each of a million unknown names.
    """
    for name in content:
        if name not in allowed:
            raise invalid(f"unknown {kind} {name[:80]!r}; known: {', '.join(allowed)}")


def validate(
    schema: type[Schema], content: Mapping[str, Any], *, strict: bool = False, context: bytes | None = None
) -> Schema:
    """Return the content as an object of the schema. `context` is the JSON text that it was parsed from.

    Raises `RequestError`.
    """
    try:
        return schema.model_validate(content, strict=strict or None, context=context)
    except ValidationError as error:
        raise invalid(describe_mistakes(error.errors(include_url=False, include_input=False))) from None


def validate_rows(value: Any, info: ValidationInfo) -> Array:
    """Validate rows for pydantic: pack lists of numbers, whose JSON text is the context. An array stays as it is."""
    if isinstance(value, np.ndarray):
        return value
    return pack_rows(value, info.field_name or "rows", info.context)


def pack_rows(value: Any, name: str, text: bytes | None = None) -> Array:
    """Return lists of numbers, which were parsed from this JSON text, as an array (n, width). Raises `RequestError`.

    All lists need the same length. null becomes NaN, since it depends on the model whether an entry may be missing. A
    row may also be a text, as in records: a JSON array, or numbers in base64. `check_rows` finds the type of these
    numbers by their size.
    """
    if not isinstance(value, list):
        raise invalid(f"{name} must be an array of arrays of numbers, not {type_name(value)}")
    rows = [_decode_row(row, f"{name}[{i}]") if isinstance(row, str) else row for i, row in enumerate(value)]
    first = rows[0] if rows else None
    if isinstance(first, bytes):
        if any(not isinstance(row, bytes) or len(row) != len(first) for row in rows):
            raise invalid(f"{name}: all texts need the same number of bytes, in base64")
        return np.frombuffer(b"".join(rows), f"V{len(first)}")
    width = len(first) if isinstance(first, list) else 0
    packer = NumberPacker(width, impute=True)
    refuse_booleans = text is None or may_hold_booleans(text)
    packed = [_pack_row(packer, row, refuse_booleans, f"{name}[{i}]") for i, row in enumerate(rows)]
    return np.frombuffer(b"".join(packed)).reshape(len(rows), width)


def _decode_row(row: str, label: str) -> Any:
    """Return the numbers in a text, as a list or as bytes. Raises `RequestError`."""
    try:
        return decode_text(row) or []
    except VectorError as error:
        raise invalid(f"{label}: {error}") from None


def pack_records(records: Sequence[dict[str, Any]], names: Sequence[str]) -> Array:
    """Return the numbers with these names in each record, (n, d). Raises `RequestError`."""
    packer = NumberPacker(len(names), impute=True)
    labels = [repr(name) for name in names]
    packed = []
    for i, record in enumerate(records):
        try:
            row = [record[name] for name in names]
            packed.append(packer.pack(row, refuse_booleans=True, labels=labels))
        except KeyError as missing:
            raise invalid(f"records[{i}] has no {missing}: there is {quote_names(record)}") from None
        except VectorError as error:
            raise invalid(f"records[{i}]: {error}") from None
    return np.frombuffer(b"".join(packed)).reshape(len(records), len(names))


def _pack_row(packer: NumberPacker, row: Any, refuse_booleans: bool, label: str) -> bytes:
    if not isinstance(row, list):
        is_number = type(row) in (int, float)
        hint = "; write a single vector as [[…]]" if is_number else ""
        raise invalid(f"{label} must be an array of numbers, not {type_name(row)}{hint}")
    try:
        return packer.pack(row, refuse_booleans=refuse_booleans, entry=f"{label}[{{}}]")
    except VectorError as error:
        if error.reason == "wrong_length":
            raise invalid(f"{label} has {error} as the rows before it: all need the model's dimensions") from None
        raise invalid(str(error)) from None


def _parse_binary(raw: RawRequest, name: str) -> Array:
    """Return the rows of a binary body (n, width). Raises `RequestError`.

    For a media type of `RAW` return all numbers (n · width,); `check_rows` cuts them into rows.
    """
    if raw.media_type in RAW:
        dtype = np.dtype(RAW[raw.media_type])
        if len(raw.body) % dtype.itemsize:
            raise invalid(f"{name}: {len(raw.body)} bytes are not a whole number of {dtype.name} numbers")
        return np.frombuffer(raw.body, dtype)
    try:
        array = npy.parse_array(raw.body)
    except VectorError as error:
        raise RequestError(Problem.MALFORMED_BODY, f"the body is not a valid .npy file: {error}") from None
    if array.ndim not in (1, 2):
        raise invalid(f"{name} must be an array of 1 or 2 axes, not of {array.ndim}")
    return array if array.ndim == 2 else array.reshape(1, -1)


def check_rows(
    rows: Array, name: str, width: int, limits: Limits, *, impute: bool = False, names: Sequence[str] | None = None
) -> Array:
    """Return the rows (n, width) as float32 or float64. Raises `RequestError` if a limit is exceeded or a row is wrong.

    All numbers must be finite. With `impute`, entries may be missing (NaN), but not all entries of a row. Errors name
    the columns by `names`.
    """
    if rows.dtype.kind == "V":  # bytes from base64
        if rows.itemsize not in (4 * width, 8 * width):
            raise invalid(f"{name}[0] has {rows.itemsize} bytes, not {width} numbers of 4 or 8 bytes")
        bytes_per_number = rows.itemsize // width
        rows = rows.view(f"<f{bytes_per_number}")
    if rows.ndim == 1:
        if rows.size % width:
            raise invalid(f"{name}: {rows.size} numbers are not a whole number of rows of {width}")
        rows = rows.reshape(-1, width)
    if len(rows) > limits.rows:
        raise too_large(f"{name} has {len(rows)} rows, at most {limits.rows} are allowed: send fewer", "rows")
    if rows.size > limits.numbers:
        raise too_large(
            f"{name} has {rows.size} numbers, at most {limits.numbers} are allowed: send fewer rows", "numbers"
        )
    if len(rows) == 0:
        return np.empty((0, width))
    if rows.shape[1] != width:
        raise invalid(f"{name}[0] has {rows.shape[1]} numbers where this model has {width}")
    if not np.isfinite(rows).all():
        _refuse_bad(rows, name, names, impute=impute)
    is_single = rows.dtype.newbyteorder("=") == np.float32
    return rows.astype(np.float32 if is_single else np.float64, copy=False)


def _refuse_bad(rows: Array, name: str, names: Sequence[str] | None, *, impute: bool) -> None:
    """Raise `RequestError` for the first entry that is not finite and may not be missing, or for an empty row."""
    missing = np.isnan(rows)
    bad = first_not_finite(rows, impute=impute)
    if bad is not None:
        i, j = bad
        value = "null or NaN (this model was learned with missing=refuse)" if missing[i, j] else rows[i, j]
        column = j if names is None else repr(names[j])
        raise invalid(f"{name}[{i}][{column}] must be a finite number, not {value}")
    is_empty = missing.all(axis=1)
    if is_empty.any():
        first_empty = int(is_empty.argmax())
        raise invalid(f"{name}[{first_empty}] has no number")
