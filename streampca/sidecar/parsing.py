"""A request's body → a validated request of `schemas`, with its rows as an array, or `RequestError` with the mistake.

A binary body holds only rows of numbers; the other fields are then query parameters. With a JSON body they may be, too:
for fields that it does not hold. Numbers without a header are one row until `fit`, which knows a row's length.
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
from streampca.sidecar.errors import Problem, RequestError, describe, invalid, too_large
from streampca.sidecar.request import BINARY, BYTES, RAW, SMALL_BYTES, RawRequest

Schema = TypeVar("Schema", bound=BaseModel)

_ROW_FIELDS = ("vectors", "coordinates")


class Limits(NamedTuple):
    """The largest request and answer."""

    rows: int
    numbers: int


def parse(raw: RawRequest, limits: Limits, schema: type[Schema], query: type[BaseModel]) -> Schema:
    """The request that body and query describe."""
    if raw.media_type == BYTES:
        raise RequestError(
            Problem.UNSUPPORTED_TYPE, f"{BYTES} does not say which numbers: send Content-Type: {next(iter(RAW))}"
        )
    check_names("parameter", raw.query, query.model_fields)
    parameters = validate(query, raw.query).model_dump(exclude_unset=True) if raw.query else {}
    row_field = parameters.pop("of", None)
    if raw.media_type in BINARY:
        names = [name for name in schema.model_fields if name in _ROW_FIELDS]
        row_field = names[0] if len(names) == 1 else row_field
        if row_field is None:
            choices = " or ".join(f"?of={name}" for name in names)
            raise invalid(f"say in the query what the body holds: {choices}")
        return validate(schema, parameters | {row_field: _from_bytes(raw, row_field)})
    content = json_object(raw.body, limits)
    check_names("field", content, schema.model_fields)
    return validate(schema, parameters | content, strict=True, context=raw.body)


def json_object(body: bytes, limits: Limits) -> dict[str, Any]:
    """The fields of any JSON body, rows as lists. Of a duplicate field the last one counts.

    A body whose Python objects would need too much memory is refused before it is parsed: a number needs some 40 bytes,
    and an array, an object or a field at most three times as much.
    """
    if len(body) > SMALL_BYTES:
        letters = np.frombuffer(body, np.uint8)
        commas, *others = (np.count_nonzero(letters == letter) for letter in b",[{:")
        if commas + 3 * sum(others) > limits.numbers + 3 * (limits.rows + 100):
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


def check_names(kind: str, content: Iterable[str], allowed: Iterable[str]) -> None:
    """Before pydantic's own check, which would make an error object for each of a million unknown names."""
    for name in content:
        if name not in allowed:
            raise invalid(f"unknown {kind} {name[:80]!r}; known: {', '.join(allowed)}")


def validate(
    schema: type[Schema], content: Mapping[str, Any], *, strict: bool = False, context: bytes | None = None
) -> Schema:
    """The content as an object of the schema; `context` is the JSON text that its rows come from."""
    try:
        return schema.model_validate(content, strict=strict or None, context=context)
    except ValidationError as error:
        raise invalid(describe(error.errors(include_url=False, include_input=False))) from None


def rows_field(value: Any, info: ValidationInfo) -> Array:
    """For pydantic: lists of numbers, from the JSON text that is the context, as an array; arrays pass."""
    return value if isinstance(value, np.ndarray) else rows_of(value, info.field_name or "rows", info.context)


def rows_of(value: Any, name: str, text: bytes | None = None) -> Array:
    """Lists of numbers, from this JSON text, as an array (n, width), all of one length. Raises `RequestError`.

    null becomes NaN: whether an entry may be missing depends on the model. A row may be text, as in records: an array,
    or base64 of numbers, of which `fit` knows the type.
    """
    if not isinstance(value, list):
        raise invalid(f"{name} must be an array of arrays of numbers, not {type_name(value)}")
    value = [_row_of_text(row, f"{name}[{i}]") if isinstance(row, str) else row for i, row in enumerate(value)]
    if value and isinstance(value[0], bytes):
        if {len(row) if isinstance(row, bytes) else 0 for row in value} != {len(value[0])}:
            raise invalid(f"{name}: all texts need the same number of bytes, in base64")
        return np.frombuffer(b"".join(value), f"V{len(value[0])}")
    width = len(value[0]) if value and isinstance(value[0], list) else 0
    packer = NumberPacker(width, impute=True)
    booleans = text is None or may_hold_booleans(text)
    packed = [_pack(packer, row, booleans, f"{name}[{i}]") for i, row in enumerate(value)]
    return np.frombuffer(b"".join(packed)).reshape(len(value), width)


def _row_of_text(row: str, label: str) -> Any:
    """The numbers in a text: a list, or bytes. Raises `RequestError`."""
    try:
        return decode_text(row) or []
    except VectorError as error:
        raise invalid(f"{label}: {error}") from None


def rows_of_records(records: Sequence[dict[str, Any]], names: Sequence[str]) -> Array:
    """The numbers of these names in each record, (n, d). Raises `RequestError`."""
    packer, labels, packed = NumberPacker(len(names), impute=True), [repr(name) for name in names], []
    for i, record in enumerate(records):
        try:
            row = [record[name] for name in names]
            packed.append(packer.pack(row, refuse_booleans=True, labels=labels))
        except KeyError as missing:
            raise invalid(f"records[{i}] has no {missing}: there is {quote_names(record)}") from None
        except VectorError as error:
            raise invalid(f"records[{i}]: {error}") from None
    return np.frombuffer(b"".join(packed)).reshape(len(records), len(names))


def _pack(packer: NumberPacker, row: Any, booleans: bool, label: str) -> bytes:
    if not isinstance(row, list):
        hint = "; write a single vector as [[…]]" if type(row) in (int, float) else ""
        raise invalid(f"{label} must be an array of numbers, not {type_name(row)}{hint}")
    try:
        return packer.pack(row, refuse_booleans=booleans, entry=f"{label}[{{}}]")
    except VectorError as error:
        if error.reason == "wrong_length":
            raise invalid(f"{label} has {error} as the rows before it: all need the model's dimensions") from None
        raise invalid(str(error)) from None


def _from_bytes(raw: RawRequest, name: str) -> Array:
    """The rows of a binary body: (n, width); for one of `RAW` all numbers, (n · width,), which `fit` cuts into rows."""
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
    return array.reshape(1, -1) if array.ndim == 1 else array


def fit(
    rows: Array, name: str, width: int, limits: Limits, *, impute: bool = False, names: Sequence[str] | None = None
) -> Array:
    """The rows, (n, width), in float32 or else float64, within the limits, all finite; or `RequestError`.

    With `impute` entries may be missing, NaN, but not all entries of a row. `names` are those of the columns, for
    errors.
    """
    if rows.dtype.kind == "V":
        if rows.itemsize not in (4 * width, 8 * width):
            raise invalid(f"{name}[0] has {rows.itemsize} bytes, not {width} numbers of 4 or 8 bytes")
        rows = rows.view(f"<f{rows.itemsize // width}")
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
    return rows.astype(np.float32 if rows.dtype.newbyteorder("=") == np.float32 else np.float64, copy=False)


def _refuse_bad(rows: Array, name: str, names: Sequence[str] | None, *, impute: bool) -> None:
    missing = np.isnan(rows)
    bad = first_not_finite(rows, impute=impute)
    if bad is not None:
        i, j = bad
        value = "null or NaN (this model was learned with missing=refuse)" if missing[i, j] else rows[i, j]
        column = j if names is None else repr(names[j])
        raise invalid(f"{name}[{i}][{column}] must be a finite number, not {value}")
    if (empty := missing.all(axis=1)).any():
        raise invalid(f"{name}[{int(empty.argmax())}] has no number")
