"""The interface to a schema registry, and Confluent's wire format: a frame with the schema's id, then the payload.

A frame is 0 and four bytes of id, or 1 and the sixteen bytes of a GUID. Confluent's header serializer writes the frame
into a header instead; it is put before the value again.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from streampca.errors import StreampcaError
from streampca.formats.errors import VectorError

T = TypeVar("T")
FRAME, _GUID_FRAME = 5, 17  # bytes before the payload
HEADER = "__value_schema_id"  # holds the frame if the value has none
_FOREIGN = {
    b"\x03\x00": "of AWS Glue's schema registry",
    b"\xc3\x01": "of Avro's single-object encoding",
    b"Obj\x01": "of an Avro container file",
    bytes(FRAME): "with an eight-byte id, which Apicurio's serializers write unless they are set to four bytes",
}
_ERROR_LENGTH = 200
_PATIENCE_S = 1.0  # longest time that a thread waits for another one that asks a registry which answered last


class WriterSchema(NamedTuple):
    """A registered schema, with the texts of the schemas that it refers to, by the names that it uses for them."""

    kind: str  # AVRO, PROTOBUF, JSON
    text: str
    references: Mapping[str, str] = {}


class Schemas(Protocol):
    """A schema registry."""

    def get(self, schema_id: int | str) -> WriterSchema:
        """The schema with this id or GUID; it never changes, so callers may cache it.

        Raises `KeyError` if there is none, `TimeoutError` while the registry cannot be reached, cannot answer or
        refuses access to this schema, and `SourceError` if it refuses all access.
        """


def frame_of(schema_id: int) -> bytes:
    """The bytes before a payload."""
    return b"\0" + schema_id.to_bytes(FRAME - 1, "big")


def frame_size(value: bytes) -> int:
    """The number of bytes before the payload of a framed value."""
    return _GUID_FRAME if value[:1] == b"\1" else FRAME


def foreign_frame(value: bytes) -> str:
    """Name the frame at the beginning of a value if it is not Confluent's; else empty."""
    return next((f"a frame {kind}" for start, kind in _FOREIGN.items() if value.startswith(start)), "")


class SchemaCache(Generic[T]):
    """Caches what `make` makes of a writer's schema, such as a decoder.

    An id that the registry does not know is asked for with every record: it may be registered at any time, and what
    becomes of a record must not depend on what this process has asked before.

    Several threads may use it. One of them asks the registry at a time. The others wait for it, but while the registry
    does not answer they do not, so that it holds one thread alone.
    """

    def __init__(self, schemas: Schemas | None, kind: str, make: Callable[[WriterSchema], T]) -> None:
        if schemas is None:
            raise ValueError(f"{kind} needs a schema registry")
        self._schemas, self._kind, self._make = schemas, kind, make
        self._cache: dict[bytes, T | VectorError] = {}  # by frame
        self._asking = Lock()
        self._is_away = False  # whether the registry did not answer the last request

    def get(self, value: bytes) -> T:
        """Return what is made of a value's schema. Raises `VectorError`, and the registry's errors."""
        frame = value[: frame_size(value)]
        made = self._cache.get(frame)
        if made is None:
            made = self._asked(frame)
        if isinstance(made, VectorError):
            raise VectorError(made.reason, str(made))
        return made

    def _asked(self, frame: bytes) -> T | VectorError:
        """What to cache for a frame that is not cached yet."""
        if not self._asking.acquire(timeout=0 if self._is_away else _PATIENCE_S):
            raise TimeoutError("another thread waits for the schema registry")
        is_away = False
        try:
            made = self._cache.get(frame)  # the thread before may have asked for the same schema
            if made is None:
                made = self._cache[frame] = self._made(frame)
            return made
        except TimeoutError:
            is_away = True
            raise
        finally:
            self._is_away = is_away
            self._asking.release()

    def _made(self, frame: bytes) -> T | VectorError:
        foreign = foreign_frame(frame)
        if foreign or len(frame) < frame_size(frame) or frame[0] > 1:
            found = foreign or f"no schema id before the value or in the header {HEADER}"
            raise VectorError("undecodable", f"not framed as a schema registry's clients do: {found}")
        schema_id = str(UUID(bytes=frame[1:])) if frame[0] else int.from_bytes(frame[1:], "big")
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
