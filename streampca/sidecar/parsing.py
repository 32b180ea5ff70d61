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
from streampca.formats.json import loads
from streampca.formats.judge import first_not_finite
from streampca.formats.numbers import NumberPacker
from streampca.formats.text import decode_text
from streampca.pca.arrays import Array
from streampca.pca.missing_values import NO_MISSING_VALUES, MissingValues
from streampca.sidecar.errors import Problem, RequestError, describe_mistakes, invalid, too_large
from streampca.sidecar.request import BINARY_TYPES, OCTET_STREAM, RAW_TYPES, SMALL_BYTES, RawRequest

Schema = TypeVar("Schema", bound=BaseModel)

# Memory is counted in numbers: the memory of one parsed number. A container is an array, an object or a field of an
# object in JSON, and needs up to as much memory as this many numbers.
_NUMBERS_PER_CONTAINER = 3
_MAX_CONTAINERS_BESIDE_ROWS = 100  # in a JSON body, where each row is a container, too


class Limits(NamedTuple):
    """How large a request and an answer may be."""

    rows: int
    numbers: int


def parse(raw: RawRequest, limits: Limits, schema: type[Schema], query: type[BaseModel]) -> Schema:
    """Parse the body and the query parameters into a request of `schema`. Raises `RequestError`."""
    if raw.media_type == OCTET_STREAM:
        example = next(iter(RAW_TYPES))
        raise RequestError(
            Problem.UNSUPPORTED_TYPE, f"{OCTET_STREAM} does not say the type of numbers: send Content-Type: {example}"
        )
    check_names("parameter", raw.query, query.model_fields)
    parameters = validate(query, raw.query).model_dump(exclude_unset=True) if raw.query else {}
    # The query parameter `of` states which field the rows of the body belong to: "vectors" or "coordinates".
    stated_field = parameters.pop("of", None)
    if raw.media_type in BINARY_TYPES:  # the body holds only rows of numbers
        row_field = _find_row_field(schema, stated_field)
        return validate(schema, parameters | {row_field: _parse_binary(raw, row_field)})
    raw.require_json(also_named_in_error=BINARY_TYPES)
    content = parse_json_object(raw.body, limits)
    check_names("field", content, schema.model_fields)
    if stated_field is not None:
        _refuse_rows_in_other_fields(content, stated_field)
    return validate(schema, parameters | content, strict=True)  # JSON must not write a number as a text


def _refuse_rows_in_other_fields(content: Mapping[str, Any], stated_field: str) -> None:
    """Raise `RequestError` if a JSON body has rows in another field than the query parameter `of` states."""
    other_fields = ["vectors", "records"] if stated_field == "coordinates" else ["coordinates"]
    for field in other_fields:
        if content.get(field) is not None:
            raise invalid(
                f"the query says of={stated_field}, but the body holds {field}: omit `of`, or send {stated_field}"
            )


def _find_row_field(schema: type[BaseModel], stated_field: str | None) -> str:
    """Return the name of the request's field whose rows a binary body holds: "vectors" or "coordinates".

    If the schema has both fields, the query parameter `of` must state one, `stated_field`. Raises `RequestError`.
    """
    if "coordinates" not in schema.model_fields:
        return "vectors"
    if stated_field is None:
        raise invalid("say in the query what the body holds: ?of=vectors or ?of=coordinates")
    return stated_field


def parse_json_object(body: bytes, limits: Limits) -> dict[str, Any]:
    """Return the fields of a JSON body, not validated. Of a repeated field, the last value counts.

    Raises `RequestError`, also if the parsed body would need too much memory.
    """
    if len(body) > SMALL_BYTES:
        # The unit of memory is one parsed number. A container is an array, an object or a field of an object. Each row
        # is a container, and the body has a few more.
        max_containers = limits.rows + _MAX_CONTAINERS_BESIDE_ROWS
        max_memory_in_numbers = limits.numbers + _NUMBERS_PER_CONTAINER * max_containers
        if _estimate_memory_in_numbers(body) > max_memory_in_numbers:
            raise too_large(
                f"the body holds too many values: send at most {limits.numbers} numbers in {limits.rows} rows",
                "numbers",
            )
    try:
        content = loads(body)
    except VectorError as error:  # the text of this error begins with "not JSON"
        raise RequestError(Problem.MALFORMED_BODY, f"the body is {error}") from None
    if not isinstance(content, dict):
        raise invalid(f"the body must be a JSON object, not {type_name(content)}")
    return content


def _estimate_memory_in_numbers(json_text: bytes) -> int:
    """Estimate the memory of the Python objects of a JSON text, without parsing it.

    The unit is the memory of a number, some 40 bytes.
    """
    letters = np.frombuffer(json_text, np.uint8)
    numbers = np.count_nonzero(letters == ord(","))
    # An array has a "[", an object a "{", and each field of an object a ":". A field counts as a container, since its
    # name takes memory, too.
    containers = sum(np.count_nonzero(letters == ord(letter)) for letter in "[{:")
    return int(numbers + _NUMBERS_PER_CONTAINER * containers)


def check_names(kind: str, content: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise `RequestError` for the first name that is not allowed.

    Pydantic would make an error object for each of a million unknown names.
    """
    for name in content:
        if name not in allowed:
            raise invalid(f"unknown {kind} {name[:80]!r}; known: {', '.join(allowed)}")


def refuse_query(names: Sequence[str], instead: str) -> None:
    """Raise `RequestError` if a request has query parameters that a protocol does not read.

    The error asks to do `instead`.
    """
    if names:
        raise invalid(f"{names[0][:80]} is not read from the query: {instead}")


def validate(schema: type[Schema], content: Mapping[str, Any], *, strict: bool = False) -> Schema:
    """Return the content as an object of the schema. Raises `RequestError`.

    With `strict`, which is for the values of JSON, a text such as "1" is refused where a number is expected.
    """
    context = {"is_json": True} if strict else None
    strict_or_by_field = strict or None  # None: each field is as strict as the schema declares it
    try:
        return schema.model_validate(content, strict=strict_or_by_field, context=context)
    except ValidationError as error:
        raise invalid(describe_mistakes(error.errors(include_url=False, include_input=False))) from None


def validate_rows(value: Any, info: ValidationInfo) -> Array:
    """Make an array of lists of numbers for pydantic, and return an array as it is."""
    if isinstance(value, np.ndarray):
        return value
    return pack_rows(value, info.field_name or "rows")


def pack_rows(value: Any, name: str) -> Array:
    """Return n rows of numbers as an array (n, width). Raises `RequestError`.

    If the rows are texts in base64, the type of their numbers is not known yet. They become an array (n,), where each
    item holds the bytes of a row.
    """
    if not isinstance(value, list):
        raise invalid(f"{name} must be an array of arrays of numbers, not {type_name(value)}")
    rows = [_decode_row(row, f"{name}[{i}]") if isinstance(row, str) else row for i, row in enumerate(value)]
    if rows and isinstance(rows[0], bytes):  # the first row is base64, so all others must be
        return _join_bytes(rows, name)
    width = len(rows[0]) if rows and isinstance(rows[0], list) else 0
    packer = NumberPacker(width, null_as_nan=True)
    packed = [_pack_row(packer, row, f"{name}[{i}]") for i, row in enumerate(rows)]
    return np.frombuffer(b"".join(packed)).reshape(len(rows), width)


def _join_bytes(rows: Sequence[Any], name: str) -> Array:
    """Return rows of bytes as an array (n,), whose items are the bytes of a row. The rows were base64 texts before.

    Raises `RequestError`.
    """
    row_bytes = len(rows[0])
    have_same_length = all(isinstance(row, bytes) and len(row) == row_bytes for row in rows)
    if not have_same_length:
        raise invalid(f"{name}: all texts need the same number of bytes, in base64")
    return np.frombuffer(b"".join(rows), f"V{row_bytes}")


def _decode_row(row: str, label: str) -> Any:
    """Return the numbers in a text: a list from a JSON array, or bytes from base64. Raises `RequestError`."""
    try:
        decoded = decode_text(row)
    except VectorError as error:
        raise invalid(f"{label}: {error}") from None
    return decoded or []  # an empty text is a row without numbers


def pack_records(records: Sequence[dict[str, Any]], names: Sequence[str], *, impute: bool) -> Array:
    """Return the numbers with these names in each record as an array (n, d). Raises `RequestError`.

    A null becomes NaN; without `impute`, `check_rows` refuses NaN later. With `impute`, a record may also lack names,
    but not all of them.
    """
    packer = NumberPacker(len(names), null_as_nan=True, labels=[repr(name) for name in names])
    packed = []
    for i, record in enumerate(records):
        try:
            packed.append(packer.pack(_read_record(record, names, impute=impute)))
        except KeyError as error:
            missing_name = error.args[0]
            raise invalid(f"records[{i}] has no {missing_name!r}: there is {quote_names(record)}") from None
        except VectorError as error:
            raise invalid(f"records[{i}]: {error}") from None
    return np.frombuffer(b"".join(packed)).reshape(len(records), len(names))


def _read_record(record: Mapping[str, Any], names: Sequence[str], *, impute: bool) -> list[Any]:
    """Return the values of these names. With `impute`, the value of an absent name is None.

    Raises `KeyError` if a name is absent without `impute`, or if all names are absent.
    """
    may_lack_names = impute and any(name in record for name in names)
    if may_lack_names:
        return [record.get(name) for name in names]
    return [record[name] for name in names]


def _pack_row(packer: NumberPacker, row: Any, label: str) -> bytes:
    """Return the numbers of a row as bytes. Raises `RequestError`, whose text begins with the label."""
    if not isinstance(row, list):
        is_number = type(row) in (int, float)
        hint = "; write a single vector as [[…]]" if is_number else ""
        raise invalid(f"{label} must be an array of numbers, not {type_name(row)}{hint}")
    try:
        return packer.pack(row, label_template=label + "[{}]")
    except VectorError as error:
        if error.reason == "wrong_length":
            counts = str(error)  # such as "5 numbers, not 4"
            raise invalid(f"{label} has {counts} as the rows before it: all need the model's dimensions") from None
        raise invalid(str(error)) from None  # it begins with the label of the wrong entry


def _parse_binary(raw: RawRequest, name: str) -> Array:
    """Return the rows of a binary body: an array (n, width), or (n·width,) from raw numbers.

    Raises `RequestError`.
    """
    if raw.media_type in RAW_TYPES:
        dtype = np.dtype(RAW_TYPES[raw.media_type])
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
    rows: Array,
    row_field: str,
    width: int,
    limits: Limits,
    *,
    impute: bool = False,
    missing_values: MissingValues = NO_MISSING_VALUES,
    entry_names: Sequence[str] | None = None,
) -> Array:
    """Return the rows (n, width) as float32 or float64, with NaN for missing values.

    With `impute`, entries may be missing, but not a whole row. Raises `RequestError`, which calls the rows `row_field`,
    and an entry by its name in `entry_names` (None: by its index).
    """
    rows = shape_rows(rows, row_field, width)
    _refuse_too_many_rows(rows, row_field, limits)
    if len(rows) == 0:
        return np.empty((0, width))
    if rows.shape[1] != width:  # `shape_rows` does not change the width of rows that had two axes before
        raise invalid(f"{row_field}[0] has {rows.shape[1]} numbers where this model has {width}")
    is_float32 = rows.dtype.newbyteorder("=") == np.float32  # in any byte order
    sent_rows: Array = rows.astype(np.float32 if is_float32 else np.float64, copy=False)
    rows_with_nan = missing_values.to_nan(sent_rows)
    if not np.isfinite(rows_with_nan).all():
        # The error quotes a wrong entry as it was sent.
        _refuse_wrong_rows(rows_with_nan, sent_rows, row_field, entry_names, impute=impute)
    return rows_with_nan


def _refuse_too_many_rows(rows: Array, name: str, limits: Limits) -> None:
    """Raise `RequestError` if there are more rows or numbers than the limits allow."""
    if len(rows) > limits.rows:
        raise too_large(f"{name} has {len(rows)} rows, at most {limits.rows} are allowed: send fewer", "rows")
    if rows.size > limits.numbers:
        raise too_large(
            f"{name} has {rows.size} numbers, at most {limits.numbers} are allowed: send fewer rows", "numbers"
        )


def shape_rows(rows: Array, name: str, width: int) -> Array:
    """Return rows as an array with two axes, (n, width). Raises `RequestError`.

    Rows from base64 come as n items of NumPy's type void. Raw numbers, which have no NumPy header with a shape, come as
    one long axis.
    """
    is_from_base64 = rows.dtype.kind == "V"
    if is_from_base64:
        if rows.itemsize not in (4 * width, 8 * width):
            raise invalid(f"{name}[0] has {rows.itemsize} bytes, not {width} numbers of 4 or 8 bytes")
        bytes_per_number = rows.itemsize // width
        rows = rows.view(f"<f{bytes_per_number}")
    if rows.ndim == 1:
        if rows.size % width:
            raise invalid(f"{name}: {rows.size} numbers are not a whole number of rows of {width}")
        rows = rows.reshape(-1, width)
    return rows


def _refuse_wrong_rows(
    rows_with_nan: Array, sent_rows: Array, row_field: str, entry_names: Sequence[str] | None, *, impute: bool
) -> None:
    """Raise `RequestError` for the first wrong entry, or for a row without a number.

    `sent_rows` are the rows as the client sent them. In `rows_with_nan`, each missing entry is replaced by NaN. Missing
    entries are only wrong without `impute`.
    """
    wrong_entry = first_not_finite(rows_with_nan, impute=impute)
    if wrong_entry is not None:
        i, j = wrong_entry
        is_missing = bool(np.isnan(rows_with_nan[i, j]))
        refused_entry = _describe_refused_entry(sent_rows[i, j], is_missing=is_missing)
        column = j if entry_names is None else repr(entry_names[j])
        raise invalid(f"{row_field}[{i}][{column}] must be a finite number, not {refused_entry}")
    is_empty = np.isnan(rows_with_nan).all(axis=1)
    if is_empty.any():
        first_empty = int(is_empty.argmax())
        raise invalid(f"{row_field}[{first_empty}] has no number")


def _describe_refused_entry(entry: np.floating[Any], *, is_missing: bool) -> str:
    """Describe an entry in an error: it is infinite, or it is missing although the model allows no missing entries."""
    if not is_missing:
        return str(entry)
    kind = "null or NaN" if np.isnan(entry) else f"{entry!s}, one of missing_values"
    return f"{kind} (this model was learned with missing=refuse)"
