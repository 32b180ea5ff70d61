"""The interface to a schema registry, and Confluent's wire format: a frame with the schema's id, then the payload.

A frame is 0 and four bytes of id, or 1 and the sixteen bytes of a GUID. Confluent's header serializer writes the frame
into a header of the record instead; before decoding, it is put in front of the value.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from streampca.errors import StreampcaError, on_one_line
from streampca.formats.errors import VectorError

T = TypeVar("T")
FRAME_BYTES = 5
_GUID_FRAME_BYTES = 17
SCHEMA_ID_HEADER = "__value_schema_id"  # holds the frame if the value has none
_FOREIGN_FRAMES = {  # how a value begins → what it is framed with
    b"\x03\x00": "of AWS Glue's schema registry",
    b"\xc3\x01": "of Avro's single-object encoding",
    b"Obj\x01": "of an Avro container file",
    bytes(FRAME_BYTES): "with an eight-byte id, which Apicurio's serializers write unless they are set to four bytes",
}
_MAX_ERROR_LENGTH = 200
_MAX_WAIT_S = 1.0  # for another thread's request to a registry that answered the request before


class WriterSchema(NamedTuple):
    """A registered schema, with the texts of the schemas that it refers to, by the names that it uses for them."""

    kind: str  # AVRO, PROTOBUF, JSON
    text: str
    references: Mapping[str, str] = {}


class Schemas(Protocol):
    """A schema registry."""

    def get(self, schema_id: int | str) -> WriterSchema:
        """Return the schema with this id or GUID, which never changes.

        If there is no such schema, raises `KeyError`. While the registry cannot answer, or refuses access to this
        schema only, raises `TimeoutError`: the caller tries again. If the registry refuses all access, raises
        `SourceError`.
        """


def frame_of(schema_id: int) -> bytes:
    """Return the bytes that a registry's clients put before a payload."""
    return b"\0" + schema_id.to_bytes(FRAME_BYTES - 1, "big")


def begins_as_frame(value: bytes) -> bool:
    """Return whether a value begins with 0 or 1, as a frame does. No JSON in UTF-8 begins so."""
    return value[:1] in (b"\0", b"\1")


def frame_size(value: bytes) -> int:
    """Return the number of bytes before the payload of a framed value."""
    return _GUID_FRAME_BYTES if value[:1] == b"\1" else FRAME_BYTES


def describe_foreign_frame(value: bytes) -> str:
    """If a value begins with a frame that is not Confluent's, say which it is; else return ""."""
    for start, description in _FOREIGN_FRAMES.items():
        if value.startswith(start):
            return f"a frame {description}"
    return ""


class SchemaCache(Generic[T]):
    """Caches what `make` makes of a writer's schema, such as a decoder.

    An id that the registry does not know is not cached: the registry is asked again for each record. The id may be
    registered at any time, and whether a record is rejected must not depend on what this process has asked before.

    Several threads may use the cache. One at a time asks the registry, and the other threads wait for it. While the
    registry does not answer, they raise `TimeoutError` at once, so that only one thread is blocked.
    """

    def __init__(self, schemas: Schemas | None, kind: str, make: Callable[[WriterSchema], T]) -> None:
        """`kind` is the kind of schema, such as AVRO. Without a registry, raises `ValueError`."""
        if schemas is None:
            raise ValueError(f"{kind} needs a schema registry")
        self._schemas = schemas
        self._kind = kind
        self._make = make
        self._cache: dict[bytes, T | VectorError] = {}  # by frame
        self._request_lock = Lock()  # held by the thread that asks the registry
        self._is_unreachable = False  # did not answer the last request

    def get(self, value: bytes) -> T:
        """Return what was made of a value's schema. Ask the registry if the schema is new."""
        frame = value[: frame_size(value)]
        result = self._cache.get(frame)
        if result is None:
            result = self._ask_registry(frame)
        if isinstance(result, VectorError):
            # A cached error would keep the traceback of each raise.
            raise VectorError(result.reason, str(result))
        return result

    def _ask_registry(self, frame: bytes) -> T | VectorError:
        """Cache what is made of the schema that a frame names, and return it."""
        wait_s = 0.0 if self._is_unreachable else _MAX_WAIT_S  # an unreachable registry should block only one thread
        if not self._request_lock.acquire(timeout=wait_s):
            raise TimeoutError("another thread waits for the schema registry")
        is_unreachable = False
        try:
            result = self._cache.get(frame)  # another thread may have asked for the same schema
            if result is None:
                result = self._make_for(frame)
                self._cache[frame] = result
            return result
        except TimeoutError:
            is_unreachable = True
            raise
        finally:
            self._is_unreachable = is_unreachable
            self._request_lock.release()

    def _make_for(self, frame: bytes) -> T | VectorError:
        """Call `make` with the schema whose id is in the frame, and return the result.

        A permanent error is returned, to be cached. A temporary error is raised, and so not cached.
        """
        schema_id = _parse_frame(frame)
        try:
            schema = self._schemas.get(schema_id)
        except KeyError:  # temporary: the schema may be registered later
            raise VectorError("unknown_schema", f"the schema registry does not know schema {schema_id}") from None
        if schema.kind != self._kind:
            return VectorError("undecodable", f"schema {schema_id} is {schema.kind}, not {self._kind}")
        try:
            return self._make(schema)
        except VectorError as error:
            return VectorError(error.reason, f"schema {schema_id}: {error}")
        except (StreampcaError, TimeoutError):
            raise
        except Exception as error:  # schemas are as untrusted as values
            text = on_one_line(f"{type(error).__name__} {error}")
            return VectorError("undecodable", f"schema {schema_id} cannot be used: {text[:_MAX_ERROR_LENGTH]}")


def _parse_frame(frame: bytes) -> int | str:
    """Return the id or GUID in a frame. If the bytes are not a complete frame, raises `VectorError`."""
    problem = describe_foreign_frame(frame)
    is_complete = len(frame) == frame_size(frame)
    if not problem and not (is_complete and begins_as_frame(frame)):
        problem = f"no schema id before the value or in the header {SCHEMA_ID_HEADER}"
    if problem:
        raise VectorError("undecodable", f"not framed as a schema registry's clients do: {problem}")
    has_guid = frame[0] == 1
    return str(UUID(bytes=frame[1:])) if has_guid else int.from_bytes(frame[1:], "big")
