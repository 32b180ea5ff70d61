"""A request's body → a validated request model of `schemas`, or `RequestError` with the mistake.

A binary body holds only rows of numbers; the other fields are then query parameters. With a JSON body they may be, too:
for fields that it does not hold.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from streampca.formats.json import count, loads
from streampca.formats.packing import VectorError, type_name
from streampca.sidecar import request_arrays
from streampca.sidecar.errors import Problem, RequestError, describe, invalid
from streampca.sidecar.memory import SMALL_BYTES
from streampca.sidecar.request import BINARY, BYTES, RAW, RawRequest
from streampca.sidecar.request_arrays import Limits
from streampca.sidecar.v1.schemas import ROW_FIELDS, RowsRequest

RowsSchema = TypeVar("RowsSchema", bound=RowsRequest)
Schema = TypeVar("Schema", bound=BaseModel)


def parse(raw: RawRequest, limits: Limits, schema: type[RowsSchema], query: type[BaseModel]) -> RowsSchema:
    """The request that body and query describe."""
    if raw.media_type == BYTES:
        text = f"{BYTES} does not say which numbers: send Content-Type: {next(iter(RAW))}"
        raise RequestError(Problem.UNSUPPORTED_TYPE, text)
    check_names("parameter", raw.query, query.model_fields)
    parameters = validate(query, raw.query).model_dump(exclude_unset=True) if raw.query else {}
    row_field = parameters.pop("of", None)
    if raw.media_type in BINARY:
        names = [name for name in schema.model_fields if name in ROW_FIELDS]
        row_field = names[0] if len(names) == 1 else row_field
        if row_field is None:
            choices = " or ".join(f"?of={name}" for name in names)
            raise invalid(f"say in the query what the body holds: {choices}")
        rows = request_arrays.from_body(raw.body, raw.media_type, row_field)
        return validate(schema, parameters | {row_field: rows})
    check_values(raw.body, limits)
    content = json_object(raw.body)
    check_names("field", content, schema.model_fields)
    return validate(schema, parameters | content, strict=True, context=raw.body)


def check_values(text: bytes, limits: Limits) -> None:
    """Refuse JSON whose Python objects would need too much memory: before it is parsed, by counting.

    A number needs some 40 bytes, a list at least twice and an object six times as much, a field twice.
    """
    if len(text) <= SMALL_BYTES:
        return
    commas, arrays, objects, fields = (count(text, letter) for letter in (b",", b"[", b"{", b":"))
    values = commas + 2 * arrays + 6 * objects + 2 * fields
    if values > limits.numbers + 2 * limits.rows + 64:
        sentence = f"the body holds too many values: send at most {limits.numbers} numbers in {limits.rows} rows"
        raise RequestError(Problem.TOO_LARGE, sentence, limit="numbers")


def json_object(body: bytes) -> dict[str, Any]:
    """The fields of any JSON body, rows as lists. Of a duplicate field the last one counts."""
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
        return schema.model_validate(content, strict=strict, context=context)
    except ValidationError as error:
        raise invalid(describe(error.errors(include_url=False, include_input=False))) from None
