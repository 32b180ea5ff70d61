"""How much memory a value of an Avro schema can take when it is decoded, from the schema and the value's length.

Schemas without such a bound are refused: recursive ones (fastavro's decoder overflows the C stack on deeply nested
values) and arrays whose items take no bytes (a short value may claim any number of them).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from streampca.vectors.packing import VectorError

_MAX_DEPTH = 100
# Bytes of Python objects, for CPython: at most, and in places where a list or dictionary has grown.
_POINTER, _STRING, _LIST, _MAP, _FIELD, _LOGICAL = 10, 80, 72, 232, 100, 200
_WIDEST_CHARACTER = 4


class Bound(NamedTuple):
    """What a type takes, apart from the contents of its arrays, maps, strings and bytes."""

    encoded: int  # bytes, at least
    size: int  # memory, at most
    depth: int = 1

    def within(self, other: "Bound") -> "Bound":
        """This type inside another."""
        return self._replace(depth=max(self.depth, other.depth + 1))


_PRIMITIVE = {
    "null": Bound(0, 0), "boolean": Bound(1, 0), "int": Bound(1, 40), "long": Bound(1, 40), "float": Bound(4, 24),
    "double": Bound(8, 24), "bytes": Bound(1, 40), "string": Bound(1, _STRING),
}  # fmt: skip


class AvroBounds:
    """The bound of one schema. Raises `VectorError` if there is none."""

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        """`schema` as parsed by fastavro, and the named types that it refers to."""
        self._named, self._known = named, dict[str, Bound]()
        self._open: list[str] = []  # names of the types around
        self._per_byte = float(_WIDEST_CHARACTER)
        self._size = self._bound(schema).size

    def memory(self, length: int) -> int:
        """Bytes that a value of this length may take."""
        return int(self._size + self._per_byte * length)

    def _bound(self, schema: Any) -> Bound:
        if isinstance(schema, list):
            return self._union([self._bound(branch) for branch in schema])
        if isinstance(schema, str):
            return _PRIMITIVE[schema] if schema in _PRIMITIVE else self._reference(schema)
        kind = schema["type"]
        if "name" in schema and isinstance(kind, str):
            return self._reference(schema["name"], schema)
        bound = self._unnamed(kind, schema)
        return bound._replace(size=bound.size + _LOGICAL) if "logicalType" in schema else bound

    def _unnamed(self, kind: Any, schema: Any) -> Bound:
        if kind == "array":
            item = self._bound(schema["items"])
            if item.encoded == 0:
                raise VectorError("undecodable", "arrays of items without bytes are not supported")
            self._repeat(item.encoded, item.size + _POINTER)
            return _checked(Bound(1, _LIST).within(item))
        if kind == "map":
            value = self._bound(schema["values"])
            self._repeat(1 + value.encoded, value.size + _STRING + _FIELD)
            return _checked(Bound(1, _MAP).within(value))
        return self._bound(kind)

    def _reference(self, name: str, schema: Any = None) -> Bound:
        if name in self._open:
            raise VectorError("undecodable", f"recursive schemas are not supported ({name!r} contains itself)")
        if name not in self._known:
            self._open.append(name)
            if len(self._open) > _MAX_DEPTH:
                raise VectorError("undecodable", "its types are nested too deeply")
            self._known[name] = _checked(self._definition(self._named[name] if schema is None else schema))
            self._open.pop()
        return self._known[name]

    def _definition(self, schema: Any) -> Bound:
        if schema["type"] == "enum":
            return Bound(1, 0)
        if schema["type"] == "fixed":
            return Bound(schema["size"], 40 + schema["size"] + _LOGICAL)
        fields = [self._bound(field["type"]) for field in schema["fields"]]
        encoded, size = sum(field.encoded for field in fields), sum(field.size + _FIELD for field in fields)
        return Bound(encoded, _MAP + size, 1 + max((field.depth for field in fields), default=0))

    @staticmethod
    def _union(branches: list[Bound]) -> Bound:
        encoded = min((branch.encoded for branch in branches), default=0)
        sizes, depths = [branch.size for branch in branches], [branch.depth for branch in branches]
        return _checked(Bound(1 + encoded, max(sizes, default=0), 1 + max(depths, default=0)))

    def _repeat(self, encoded: int, size: int) -> None:
        self._per_byte = max(self._per_byte, size / encoded)


def _checked(bound: Bound) -> Bound:
    if bound.depth > _MAX_DEPTH:
        raise VectorError("undecodable", "its types are nested too deeply")
    return bound
