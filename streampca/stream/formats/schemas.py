"""The interface to a schema registry, and Confluent's wire format: a zero, four bytes of schema id, the payload."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from streampca.errors import StreampcaError
from streampca.vectors.packing import VectorError

T = TypeVar("T")
FRAME = 5  # bytes before the payload
_UNKNOWN_S = 60.0  # how long an id is believed to be unknown
_MOST_UNKNOWN = 100  # ids in so long: ids in values may be random, and each is a request


class WriterSchema(NamedTuple):
    """A registered schema, with the texts of the schemas that it refers to, by the names that it uses for them."""

    kind: str  # AVRO, PROTOBUF, JSON
    text: str
    references: Mapping[str, str] = {}


class Schemas(Protocol):
    """A schema registry."""

    def get(self, schema_id: int) -> WriterSchema:
        """The schema with this id; it never changes, so callers may cache it.

        Raises `KeyError` if there is none, `TimeoutError` while the registry cannot be reached or cannot answer, and
        `SourceError` if it refuses access.
        """


class MemorySchemas:
    """A registry in memory, for tests; it does not answer while `away`."""

    def __init__(self, schemas: Mapping[int, WriterSchema]) -> None:
        self.schemas, self.away = dict(schemas), False

    def get(self, schema_id: int) -> WriterSchema:
        if self.away:
            raise TimeoutError("the schema registry does not answer")
        return self.schemas[schema_id]


class SchemaCache(Generic[T]):
    """Caches what is made of each writer's schema, such as a decoder."""

    def __init__(
        self,
        schemas: Schemas,
        kind: str,
        make: Callable[[WriterSchema], T],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schemas, self._kind, self._make, self._clock = schemas, kind, make, clock
        self._cache: dict[int, T | VectorError] = {}
        self._unknown: dict[int, float] = {}  # ids that the registry did not know, and until when to believe it

    def get(self, value: bytes) -> T:
        """What is made of the value's schema. Raises `VectorError`, and the registry's errors."""
        if len(value) < FRAME or value[0] != 0:
            raise VectorError(
                "undecodable", "not framed as a schema registry's clients do: a zero, then the schema's id"
            )
        schema_id = int.from_bytes(value[1:FRAME], "big")
        made = self._cache.get(schema_id)
        if made is None:
            made = self._cache[schema_id] = self._made(schema_id)
        if isinstance(made, VectorError):
            raise VectorError(made.reason, str(made))
        return made

    def _requested(self, schema_id: int) -> WriterSchema:
        """The schema from the registry; an unknown one is requested once in a while: it may be registered later."""
        now = self._clock()
        if self._unknown.get(schema_id, -math.inf) <= now:
            self._unknown = {unknown: until for unknown, until in self._unknown.items() if until > now}
            if len(self._unknown) >= _MOST_UNKNOWN:
                text = f"schema {schema_id} is not looked up: {_MOST_UNKNOWN} unknown ids were, within a minute"
                raise VectorError("unknown_schema", text)
            try:
                return self._schemas.get(schema_id)
            except KeyError:
                self._unknown[schema_id] = now + _UNKNOWN_S
        raise VectorError("unknown_schema", f"the schema registry knows no schema {schema_id}")

    def _made(self, schema_id: int) -> T | VectorError:
        schema = self._requested(schema_id)
        if schema.kind != self._kind:
            return VectorError("undecodable", f"schema {schema_id} is {schema.kind}, not {self._kind}")
        try:
            return self._make(schema)
        except VectorError as error:
            return VectorError(error.reason, f"schema {schema_id}: {error}")
        except (StreampcaError, TimeoutError):
            raise
        except Exception as error:  # of any kind: schemas are as untrusted as values
            return VectorError("undecodable", f"schema {schema_id} cannot be used: {type(error).__name__}")
