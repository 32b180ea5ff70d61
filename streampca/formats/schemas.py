"""The interface to a schema registry, and Confluent's wire format: the schema prefix, then the payload.

The schema prefix is a magic byte and the id of the schema: 0 and an id of four bytes, or 1 and a GUID of sixteen bytes.
The documentation calls it a frame. Confluent's header serializer writes the prefix into a header of the record instead;
before decoding, it is put in front of the value.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from streampca.errors import StreampcaError, on_one_line
from streampca.formats.errors import VectorError

T = TypeVar("T")
SCHEMA_PREFIX_BYTES = 5
_GUID_PREFIX_BYTES = 17
SCHEMA_ID_HEADER = "__value_schema_id"  # holds the schema prefix if the value has none
_FOREIGN_PREFIXES = {  # how a value begins → whose prefix this is
    b"\x03\x00": "of AWS Glue's schema registry",
    b"\xc3\x01": "of Avro's single-object encoding",
    b"Obj\x01": "of an Avro container file",
    bytes(
        SCHEMA_PREFIX_BYTES
    ): "with an eight-byte id, which Apicurio's serializers write unless they are set to four bytes",
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
    """Return the schema prefix that a registry's clients put before a payload."""
    return b"\0" + schema_id.to_bytes(SCHEMA_PREFIX_BYTES - 1, "big")


def may_have_schema_prefix(value: bytes) -> bool:
    """Return whether a value begins with 0 or 1, as a schema prefix does. No JSON in UTF-8 begins so."""
    return value[:1] in (b"\0", b"\1")


def schema_prefix_size(value: bytes) -> int:
    """Return the number of bytes of the schema prefix at the beginning of a value."""
    return _GUID_PREFIX_BYTES if value[:1] == b"\1" else SCHEMA_PREFIX_BYTES


def describe_foreign_prefix(value: bytes) -> str:
    """If a value begins with the prefix of another encoding than Confluent's, say which it is; else return ""."""
    for start, description in _FOREIGN_PREFIXES.items():
        if value.startswith(start):
            return f"a frame {description}"
    return ""


class SchemaCache(Generic[T]):
    """Caches the decoder of each writer's schema.

    An id that the registry does not know is not cached: the registry is asked again for each record. The id may be
    registered at any time, and whether a record is rejected must not depend on what this process has asked before.

    Several threads may use the cache. One at a time asks the registry, and the other threads wait for it. While the
    registry does not answer, they raise `TimeoutError` at once, so that only one thread is blocked.
    """

    def __init__(self, schemas: Schemas | None, kind: str, create_decoder: Callable[[WriterSchema], T]) -> None:
        """`kind` is the kind of schema, such as AVRO. Without a registry, raises `ValueError`."""
        if schemas is None:
            raise ValueError(f"{kind} needs a schema registry")
        self._schemas = schemas
        self._kind = kind
        self._create_decoder = create_decoder
        self._cache: dict[bytes, T | VectorError] = {}  # by schema prefix; an error if the schema cannot be used
        self._request_lock = Lock()  # held by the thread that asks the registry
        self._is_unreachable = False  # did not answer the last request

    def get(self, value: bytes) -> T:
        """Return the decoder for a value, whose first bytes hold the id of its schema.

        If the schema is new, asks the registry. If the schema cannot be used, raises `VectorError`.
        """
        schema_prefix = value[: schema_prefix_size(value)]
        decoder_or_error = self._cache.get(schema_prefix)
        if decoder_or_error is None:
            decoder_or_error = self._ask_registry(schema_prefix)
        if isinstance(decoder_or_error, VectorError):
            # A copy is raised, because a cached error would keep the traceback of each raise.
            raise VectorError(decoder_or_error.reason, str(decoder_or_error))
        return decoder_or_error

    def _ask_registry(self, schema_prefix: bytes) -> T | VectorError:
        """Ask the registry for a schema, create and cache its decoder, and return the decoder.

        If the schema cannot be used, caches and returns an error. If the registry does not answer, or if another thread
        waits too long for its answer, raises `TimeoutError`.
        """
        wait_s = 0.0 if self._is_unreachable else _MAX_WAIT_S  # an unreachable registry should block only one thread
        if not self._request_lock.acquire(timeout=wait_s):
            raise TimeoutError("another thread waits for the schema registry")
        has_timed_out = False
        try:
            decoder_or_error = self._cache.get(schema_prefix)  # another thread may have asked for the same schema
            if decoder_or_error is None:
                decoder_or_error = self._create_decoder_for(schema_prefix)
                self._cache[schema_prefix] = decoder_or_error
            return decoder_or_error
        except TimeoutError:
            has_timed_out = True
            raise
        finally:
            self._is_unreachable = has_timed_out  # decides how long the next thread waits
            self._request_lock.release()

    def _create_decoder_for(self, schema_prefix: bytes) -> T | VectorError:
        """Ask the registry for the schema that a prefix names, and return a decoder for this schema.

        If the schema can never be used, returns an error, which the caller caches. If the next attempt may succeed,
        raises an error, which is not cached.
        """
        schema_id = _parse_schema_prefix(schema_prefix)
        try:
            schema = self._schemas.get(schema_id)
        except KeyError:  # temporary: the schema may be registered later
            raise VectorError("unknown_schema", f"the schema registry does not know schema {schema_id}") from None
        if schema.kind != self._kind:
            return VectorError("undecodable", f"schema {schema_id} is {schema.kind}, not {self._kind}")
        try:
            return self._create_decoder(schema)
        except VectorError as error:
            return VectorError(error.reason, f"schema {schema_id}: {error}")
        except (StreampcaError, TimeoutError):  # not the fault of the schema
            raise
        except Exception as error:  # a schema is as untrusted as a value, and may cause any error
            text = on_one_line(f"{type(error).__name__} {error}")
            return VectorError("undecodable", f"schema {schema_id} cannot be used: {text[:_MAX_ERROR_LENGTH]}")


def _parse_schema_prefix(prefix: bytes) -> int | str:
    """Return the schema's id or GUID, which follows the magic byte of a schema prefix.

    If the prefix is not complete, or not Confluent's, raises `VectorError`.
    """
    foreign_prefix = describe_foreign_prefix(prefix)  # may begin with 0, too, and look complete
    is_complete = may_have_schema_prefix(prefix) and len(prefix) == schema_prefix_size(prefix)
    if foreign_prefix or not is_complete:
        problem = foreign_prefix or f"no schema id before the value or in the header {SCHEMA_ID_HEADER}"
        raise VectorError("undecodable", f"not framed as a schema registry's clients do: {problem}")
    has_guid = prefix[0] == 1  # the magic byte
    return str(UUID(bytes=prefix[1:])) if has_guid else int.from_bytes(prefix[1:], "big")
