"""A request's body → a validated request model of `schemas`, or `RequestError` with the mistake.

400: the body is not of its media type. 422: it is, but not what the request model declares.

A JSON body holds all fields. A binary body holds only rows of numbers; the other fields are then query parameters.
"""

from typing import Any, TypeVar

from pydantic import ValidationError

from streampca.api import request_arrays
from streampca.api.request import BINARY, UNCOUNTED_BYTES, RawRequest, RequestError
from streampca.api.request_arrays import Limits
from streampca.api.schemas import ROW_FIELDS, RowsRequest
from streampca.vectors.json import count, fast_fields, loads
from streampca.vectors.packing import VectorError, type_name

R = TypeVar("R", bound=RowsRequest)


def parse(raw: RawRequest, schema: type[R]) -> R:
    """The request that the body, and for a binary body the query, describes."""
    return _parse_binary(raw, schema) if raw.media_type in BINARY else _parse_json(raw, schema)


def check_size(raw: RawRequest, limits: Limits) -> None:
    """Refuse a JSON body whose Python objects would need too much memory: before it is parsed, by counting.

    A number needs some 40 bytes, a list at least twice and an object six times as much, a field twice.
    """
    if raw.media_type in BINARY or len(raw.body) <= UNCOUNTED_BYTES:
        return
    commas, arrays, objects, fields = (count(raw.body, letter) for letter in (b",", b"[", b"{", b":"))
    values = commas + 2 * arrays + 6 * objects + 2 * fields
    if values > limits.numbers + 2 * limits.rows + 64:
        text = f"the body holds too many values: send at most {limits.numbers} numbers in {limits.rows} rows"
        raise RequestError(413, text, limit="numbers")


def describe(mistakes: list[Any]) -> str:
    """pydantic's mistakes as one sentence."""
    return "; ".join(f"{_place(mistake['loc'])}: {mistake['msg']}" for mistake in mistakes)


def _place(path: tuple[str | int, ...]) -> str:
    """A field as a caller writes it: `fields[0]`."""
    *_, last = path
    return f"{path[-2]}[{last}]" if isinstance(last, int) and len(path) > 1 else str(last)


def _parse_json(raw: RawRequest, schema: type[R]) -> R:
    for name in raw.query:
        if name in schema.model_fields:
            raise RequestError(422, f"{name} is a field of a JSON body, not a query parameter")
    content = fast_fields(raw.body, schema.model_fields)
    if content is None:
        content = _parse_object(raw.body, schema)
    return _validate(schema, content, strict=True, context=raw.body)


def _parse_object(body: bytes, schema: type[R]) -> dict[str, Any]:
    """The fields of any JSON body, rows as lists. Of a duplicate field the last one counts."""
    try:
        content = loads(body)
    except VectorError as error:
        raise RequestError(400, f"the body is {error}") from None
    if not isinstance(content, dict):
        raise RequestError(422, f"the body must be a JSON object, not {type_name(content)}")
    _check_names("field", content, list(schema.model_fields))
    return content


def _parse_binary(raw: RawRequest, schema: type[R]) -> R:
    names = [name for name in schema.model_fields if name in ROW_FIELDS]
    query = dict(raw.query)
    name = names[0] if len(names) == 1 else query.pop("of", "")
    if name not in names:
        raise RequestError(422, f"say in the query what the body holds: {' or '.join(f'?of={name}' for name in names)}")
    _check_names("parameter", query, [name for name in schema.model_fields if name not in ROW_FIELDS])
    return _validate(schema, query | {name: request_arrays.from_body(raw.body, raw.media_type, name)}, strict=False)


def _check_names(kind: str, given: dict[str, Any], known: list[str]) -> None:
    """Before pydantic's own check, which would make an error object for each of a million unknown names."""
    for name in given:
        if name not in known:
            raise RequestError(422, f"unknown {kind} {name[:80]!r}; known: {', '.join(known)}")


def _validate(schema: type[R], content: dict[str, Any], *, strict: bool, context: bytes | None = None) -> R:
    try:
        return schema.model_validate(content, strict=strict, context=context)
    except ValidationError as error:
        raise RequestError(422, describe(error.errors(include_url=False, include_input=False))) from None
