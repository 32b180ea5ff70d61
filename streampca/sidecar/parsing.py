"""A request's body → a validated request model of `schemas`, or `RequestError` with the mistake.

400: the body is not of its media type. 422: it is, but not what the request model declares.

A binary body holds only rows of numbers; the other fields are then query parameters. With a JSON body they may be, too:
for fields that it does not hold.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from streampca.formats.json import count, loads
from streampca.formats.packing import VectorError, type_name
from streampca.sidecar import request_arrays
from streampca.sidecar.request import BINARY, BYTES, RAW, UNCOUNTED_BYTES, RawRequest, RequestError
from streampca.sidecar.request_arrays import Limits
from streampca.sidecar.v1.schemas import ROW_FIELDS, RowsRequest

R = TypeVar("R", bound=RowsRequest)
M = TypeVar("M", bound=BaseModel)
_DESCRIBED = 20  # mistakes


def parse(raw: RawRequest, schema: type[R], limits: Limits) -> R:
    """The request that body and query describe."""
    if raw.media_type == BYTES:
        raise RequestError(415, f"{BYTES} does not say which numbers: send Content-Type: {next(iter(RAW))}")
    if raw.media_type in BINARY:
        return _parse_binary(raw, schema)
    check_values(raw.body, limits)
    return _parse_json(raw, schema)


def check_values(text: bytes, limits: Limits) -> None:
    """Refuse JSON whose Python objects would need too much memory: before it is parsed, by counting.

    A number needs some 40 bytes, a list at least twice and an object six times as much, a field twice.
    """
    if len(text) <= UNCOUNTED_BYTES:
        return
    commas, arrays, objects, fields = (count(text, letter) for letter in (b",", b"[", b"{", b":"))
    values = commas + 2 * arrays + 6 * objects + 2 * fields
    if values > limits.numbers + 2 * limits.rows + 64:
        sentence = f"the body holds too many values: send at most {limits.numbers} numbers in {limits.rows} rows"
        raise RequestError(413, sentence, limit="numbers")


def describe(mistakes: list[Any]) -> str:
    """The first of pydantic's mistakes as one sentence."""
    return "; ".join(f"{_place(mistake['loc'])}: {mistake['msg']}" for mistake in mistakes[:_DESCRIBED])


def _place(path: tuple[str | int, ...]) -> str:
    """A field as a caller writes it: `fields[0]`."""
    *_, last = path
    return f"{path[-2]}[{last}]" if isinstance(last, int) and len(path) > 1 else str(last)


def _parse_json(raw: RawRequest, schema: type[R]) -> R:
    content = json_object(raw.body)
    check_names("field", content, list(schema.model_fields))
    if raw.query:
        content = _in_query(raw.query, schema) | content
        content.pop("of", None)
    return validate(schema, content, strict=True, context=raw.body)


def _in_query(query: Mapping[str, str], schema: type[RowsRequest]) -> dict[str, Any]:
    """The fields in a query."""
    check_names("parameter", query, list(schema.query.model_fields))
    return validate(schema.query, query, strict=False).model_dump(exclude_unset=True)


def json_object(body: bytes) -> dict[str, Any]:
    """The fields of any JSON body, rows as lists. Of a duplicate field the last one counts."""
    try:
        content = loads(body)
    except VectorError as error:
        raise RequestError(400, f"the body is {error}") from None
    if not isinstance(content, dict):
        raise RequestError(422, f"the body must be a JSON object, not {type_name(content)}")
    return content


def _parse_binary(raw: RawRequest, schema: type[R]) -> R:
    names = [name for name in schema.model_fields if name in ROW_FIELDS]
    query = _in_query(raw.query, schema)
    name = names[0] if len(names) == 1 else query.pop("of", "")
    if name not in names:
        raise RequestError(422, f"say in the query what the body holds: {' or '.join(f'?of={name}' for name in names)}")
    return validate(schema, query | {name: request_arrays.from_body(raw.body, raw.media_type, name)}, strict=False)


def check_names(kind: str, given: Mapping[str, Any], known: list[str]) -> None:
    """Before pydantic's own check, which would make an error object for each of a million unknown names."""
    for name in given:
        if name not in known:
            raise RequestError(422, f"unknown {kind} {name[:80]!r}; known: {', '.join(known)}")


def validate(schema: type[M], content: Mapping[str, Any], *, strict: bool, context: bytes | None = None) -> M:
    """The content as an object of the schema; `context` is the JSON text that its rows come from."""
    try:
        return schema.model_validate(content, strict=strict, context=context)
    except ValidationError as error:
        raise RequestError(422, describe(error.errors(include_url=False, include_input=False))) from None
