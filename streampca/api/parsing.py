"""From a request's body to what it asks for, at the speed of orjson or more, with a precise word on what is wrong.

400: the body is not what its type says. 413: too many bytes or rows. 422: of that type, but not what was asked for.

A JSON body has everything in its fields. A binary one is the rows alone; the query then says the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, get_args

import numpy as np
import orjson

from streampca.api import binary
from streampca.api.by_row import fields_by_row
from streampca.api.request import Body, RequestError, check_width
from streampca.pca.arrays import Array
from streampca.pca.model import Basis
from streampca.vectors.json import may_hold_booleans
from streampca.vectors.packing import NumberPacker, VectorError

_BASES = get_args(Basis)
_OPTIONS = ("basis", "version")
_NUMBERS = {int, float}  # by exact type, so that booleans are not among them
_LARGEST_VERSION = 2**63

Rows = TypeVar("Rows", Array, list[Any])


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """What a request asks for. The methods raise `RequestError` for what cannot be meant."""

    fields: dict[str, Any]
    body: Body

    def has(self, name: str) -> bool:
        """Whether these rows were given, be they right or wrong."""
        return self.fields.get(name) is not None

    @property
    def version(self) -> int | None:
        """The version asked for; None is the newest."""
        version = self.fields.get("version")
        if version is None:
            return None
        if type(version) is not int or not 0 <= version < _LARGEST_VERSION:
            raise RequestError(422, "version must be a whole number that is not negative, or null for the newest")
        return version

    @property
    def basis(self) -> Basis:
        """The basis asked for, "principal" unless said."""
        basis = self.fields.get("basis", "principal")
        if basis not in _BASES:
            raise RequestError(422, f"basis must be one of: {', '.join(_BASES)}")
        chosen: Basis = basis
        return chosen

    def rows(self, name: str, width: int, most: int) -> Array:
        """Rows of `width` numbers as an array (n, width), `most` at most; n may be 0. To be asked for once."""
        if self.body.kind:
            return self._few(binary.rows(self.body, name, width), name, most).astype(np.float64)
        if name not in self.fields:
            raise RequestError(422, f"{name} is required: a list of lists of {width} numbers")
        given = self.fields[name]
        if isinstance(given, np.ndarray):
            self._few(given, name, most)
            check_width(f"{name}[0]", given.shape[1], width)
            return given
        if not isinstance(given, list):
            raise RequestError(422, f"{name} must be a list of lists of {width} numbers, not {_kind(given)}")
        return self._packed(self._few(given, name, most), name, width)

    def _few(self, rows: Rows, name: str, most: int) -> Rows:
        if len(rows) > most:
            raise RequestError(413, f"{name} has {len(rows)} rows, at most {most} are taken at once: send fewer")
        return rows

    def _packed(self, rows: list[Any], name: str, width: int) -> Array:
        booleans, packer, packed = may_hold_booleans(self.body.data), _packer(width), []
        for i, row in enumerate(rows):
            if not isinstance(row, list):
                _refuse_row(row, f"{name}[{i}]", width)
            try:
                packed.append(packer.pack(row, booleans=booleans))
            except VectorError:
                _refuse_row(row, f"{name}[{i}]", width)
                raise
            rows[i] = None  # frees its numbers while the processor still has them at hand
        return np.frombuffer(b"".join(packed)).reshape(len(rows), width)


def parse(body: Body, names: Sequence[str]) -> ParsedRequest:
    """What is asked for, when `names` are those that rows may go by."""
    return ParsedRequest(_query_fields(body, names) if body.kind else _json_fields(body, names), body)


def _json_fields(body: Body, names: Sequence[str]) -> dict[str, Any]:
    """The JSON object in the body, which has no other fields. Of a doubled field the last one counts."""
    all_names = (*names, *_OPTIONS)
    for name in body.query:
        if name in all_names:
            raise RequestError(422, f"{name} is a field of a JSON body, not a part of the query")
    fields = fields_by_row(body.data, names)
    if fields is None:
        fields = _object(body)
    _check_names("field", fields, all_names)
    return fields


def _object(body: Body) -> dict[str, Any]:
    """All of a JSON object."""
    try:
        content = orjson.loads(body.data)
    except orjson.JSONDecodeError as error:
        hint = " (NaN and Infinity are not JSON)" if b"NaN" in body.data or b"Infinity" in body.data else ""
        raise RequestError(400, f"the body is not JSON: {error}{hint}") from None
    if not isinstance(content, dict):
        raise RequestError(422, f"the body must be a JSON object, not {_kind(content)}")
    return content


def _query_fields(body: Body, names: Sequence[str]) -> dict[str, Any]:
    """The same for a binary body: the rows go by the one name there is, or by the one that `of` says."""
    fields: dict[str, Any] = dict(body.query)
    _check_names("parameter", fields, _OPTIONS if len(names) == 1 else ("of", *_OPTIONS))
    name = names[0] if len(names) == 1 else fields.pop("of", None)
    if name not in names:
        raise RequestError(422, f"say in the query what the body holds: {' or '.join(f'?of={name}' for name in names)}")
    version = fields.get("version", "")
    if version.isascii() and version.isdigit() and len(version) < 20:
        fields["version"] = int(version)
    return fields | {name: body}


def _check_names(noun: str, given: dict[str, Any], names: Sequence[str]) -> None:
    for name in given:
        if name not in names:
            raise RequestError(422, f"unknown {noun} {name[:80]!r}; there are: {', '.join(names)}")


@lru_cache(maxsize=16)
def _packer(width: int) -> NumberPacker:
    return NumberPacker(width)


def _refuse_row(row: object, place: str, width: int) -> None:
    if not isinstance(row, list):
        hint = "; a single one is written [[…]]" if type(row) in _NUMBERS else ""
        raise RequestError(422, f"{place} must be a list of {width} numbers, not {_kind(row)}{hint}")
    check_width(place, len(row), width)
    if not set(map(type, row)) <= _NUMBERS:
        j = next(j for j, value in enumerate(row) if type(value) not in _NUMBERS)
        raise RequestError(422, f"{place}[{j}] must be a number, not {_kind(row[j])}")


_KINDS = {
    dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number",
    type(None): "null",
}  # fmt: skip


def _kind(value: object) -> str:
    return _KINDS[type(value)]
