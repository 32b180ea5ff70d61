"""From the bytes of a request to arrays, at the speed of orjson, with a precise word on what is wrong.

400: the body is not JSON. 413: too many bytes or rows. 422: JSON, but not what was asked for.
"""

from collections.abc import Collection
from typing import Any, get_args

import numpy as np
import orjson
from starlette.requests import Request

from streampca.pca.model import Array, Basis

_BASES = get_args(Basis)
_NUMBERS = {int, float}  # by exact type, so that booleans are not among them
_LARGEST_VERSION = 2**63


class RequestError(Exception):
    """The client's fault: a status of 4xx and one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, given up as soon as it is known to exceed `limit` bytes."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(415, f"Content-Encoding {encoding} is not understood: send the body as it is")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise _too_long(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_long(limit)
    return bytes(body)


def parse(body: bytes, fields: Collection[str]) -> dict[str, Any]:
    """The JSON object in the body, which has no other fields than these. Of a doubled field the last one counts."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        hint = " (NaN and Infinity are not JSON)" if b"NaN" in body or b"Infinity" in body else ""
        raise RequestError(400, f"the body is not JSON: {error}{hint}") from None
    if not isinstance(content, dict):
        raise RequestError(422, f"the body must be a JSON object, not {_kind(content)}")
    for name in content:
        if name not in fields:
            raise RequestError(422, f"unknown field {name[:80]!r}; there are: {', '.join(fields)}")
    return content


def version_in(content: dict[str, Any]) -> int | None:
    """The version asked for; None is the newest."""
    version = content.get("version")
    if version is None:
        return None
    if type(version) is not int or not 0 <= version < _LARGEST_VERSION:
        raise RequestError(422, "version must be a whole number that is not negative, or null for the newest")
    return version


def basis_in(content: dict[str, Any]) -> Basis:
    """The basis asked for, "principal" unless said."""
    basis = content.get("basis", "principal")
    if basis not in _BASES:
        raise RequestError(422, f"basis must be one of: {', '.join(_BASES)}")
    chosen: Basis = basis
    return chosen


def rows_in(content: dict[str, Any], name: str, width: int, max_rows: int) -> Array:
    """A list of lists of `width` numbers as an array (n, width); n may be 0."""
    if name not in content:
        raise RequestError(422, f"{name} is required: a list of lists of {width} numbers")
    rows = content[name]
    if not isinstance(rows, list):
        raise RequestError(422, f"{name} must be a list of lists of {width} numbers, not {_kind(rows)}")
    if len(rows) > max_rows:
        raise RequestError(413, f"{name} has {len(rows)} rows, at most {max_rows} are taken at once: send fewer")
    for i, row in enumerate(rows):
        _check_row(row, f"{name}[{i}]", width)
    return np.array(rows, np.float64).reshape(len(rows), width)


def _check_row(row: object, place: str, width: int) -> None:
    if not isinstance(row, list):
        hint = "; a single one is written [[…]]" if type(row) in _NUMBERS else ""
        raise RequestError(422, f"{place} must be a list of {width} numbers, not {_kind(row)}{hint}")
    if len(row) != width:
        raise RequestError(422, f"{place} has {len(row)} numbers where this model has {width}")
    if not set(map(type, row)) <= _NUMBERS:
        j = next(j for j, value in enumerate(row) if type(value) not in _NUMBERS)
        raise RequestError(422, f"{place}[{j}] must be a number, not {_kind(row[j])}")


_KINDS = {
    dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number",
    type(None): "null",
}  # fmt: skip


def _kind(value: object) -> str:
    return _KINDS[type(value)]


def _too_long(limit: int) -> RequestError:
    return RequestError(413, f"the body exceeds {limit} bytes: send fewer rows at once")
