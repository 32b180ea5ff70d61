"""The seam to a schema registry, and the frame of the values that refer to one: a zero, four bytes of id, the rest."""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from streampca.vectors.packing import VectorError

T = TypeVar("T")
FRAME = 5  # bytes before what the schema describes


class WriterSchema(NamedTuple):
    """A schema as it was registered, with the texts of those that it refers to, by the names it uses for them."""

    kind: str  # AVRO, PROTOBUF, JSON
    text: str
    references: Mapping[str, str] = {}


class Schemas(Protocol):
    """What a registry is asked."""

    def get(self, schema_id: int) -> WriterSchema:
        """The schema of this id; it never changes, so nobody asks twice.

        Raises `KeyError` when the registry knows none, `TimeoutError` when it cannot be reached or cannot answer now,
        and `SourceError` when it refuses us for good.
        """


class MemorySchemas:
    """A registry in memory, for tests; `away` lets it not answer."""

    def __init__(self, schemas: Mapping[int, WriterSchema]) -> None:
        self.schemas, self.away = dict(schemas), False

    def get(self, schema_id: int) -> WriterSchema:
        if self.away:
            raise TimeoutError("the schema registry does not answer")
        return self.schemas[schema_id]


class SchemaCache(Generic[T]):
    """What is made of each writer's schema, once: a decoder of the values that were written with it."""

    def __init__(self, schemas: Schemas, kind: str, make: Callable[[WriterSchema], T]) -> None:
        self._schemas, self._kind, self._make = schemas, kind, make
        self._made: dict[int, T | VectorError] = {}

    def of(self, value: bytes) -> T:
        """What was made of the schema that the value was written with. Raises its fault."""
        if len(value) < FRAME or value[0] != 0:
            raise VectorError(
                "undecodable", "not framed as a schema registry's clients do: a zero, then the schema's id"
            )
        schema_id = int.from_bytes(value[1:FRAME], "big")
        made = self._made.get(schema_id)
        if made is None:
            made = self._made[schema_id] = self._fresh(schema_id)
        if isinstance(made, VectorError):
            raise VectorError(made.reason, str(made))
        return made

    def _fresh(self, schema_id: int) -> T | VectorError:
        try:
            schema = self._schemas.get(schema_id)
        except KeyError:  # not kept: it may be registered yet
            raise VectorError("unknown_schema", f"the schema registry knows no schema {schema_id}") from None
        if schema.kind != self._kind:
            return VectorError("undecodable", f"schema {schema_id} is {schema.kind}, not {self._kind}")
        try:
            return self._make(schema)
        except VectorError as fault:
            return VectorError(fault.reason, f"schema {schema_id}: {fault}")
