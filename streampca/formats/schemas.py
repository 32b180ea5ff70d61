"""The interface to a schema registry, and Confluent's wire format: a zero, four bytes of schema id, the payload."""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from streampca.errors import StreampcaError
from streampca.formats.packing import VectorError

T = TypeVar("T")
FRAME = 5  # bytes before the payload
_ERROR_LENGTH = 200


class WriterSchema(NamedTuple):
    """A registered schema, with the texts of the schemas that it refers to, by the names that it uses for them."""

    kind: str  # AVRO, PROTOBUF, JSON
    text: str
    references: Mapping[str, str] = {}


class Schemas(Protocol):
    """A schema registry."""

    def get(self, schema_id: int) -> WriterSchema:
        """The schema with this id; it never changes, so callers may cache it.

        Raises `KeyError` if there is none, `TimeoutError` while the registry cannot be reached, cannot answer or
        refuses access to this schema, and `SourceError` if it refuses all access.
        """


def frame_of(schema_id: int) -> bytes:
    """The bytes before a payload."""
    return b"\0" + schema_id.to_bytes(FRAME - 1, "big")


class SchemaCache(Generic[T]):
    """Caches what `make` makes of a writer's schema, such as a decoder.

    An id that the registry does not know is asked for with every record: it may be registered at any time, and what
    becomes of a record must not depend on what this process has asked before.
    """

    def __init__(self, schemas: Schemas | None, kind: str, make: Callable[[WriterSchema], T]) -> None:
        if schemas is None:
            raise ValueError(f"{kind} needs a schema registry")
        self._schemas, self._kind, self._make = schemas, kind, make
        self._cache: dict[int, T | VectorError] = {}

    def get(self, value: bytes) -> T:
        """Return what is made of a value's schema. Raises `VectorError`, and the registry's errors."""
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

    def _made(self, schema_id: int) -> T | VectorError:
        try:
            schema = self._schemas.get(schema_id)
        except KeyError:
            raise VectorError("unknown_schema", f"the schema registry knows no schema {schema_id}") from None
        if schema.kind != self._kind:
            return VectorError("undecodable", f"schema {schema_id} is {schema.kind}, not {self._kind}")
        try:
            return self._make(schema)
        except VectorError as error:
            return VectorError(error.reason, f"schema {schema_id}: {error}")
        except (StreampcaError, TimeoutError):
            raise
        except Exception as error:  # of any kind: schemas are as untrusted as values
            text = " ".join([type(error).__name__, *str(error).split()])
            return VectorError("undecodable", f"schema {schema_id} cannot be used: {text[:_ERROR_LENGTH]}")
