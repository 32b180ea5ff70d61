"""A schema registry with Confluent's HTTP API, accessed by Confluent's client."""

import time
from contextlib import closing
from typing import Any

from streampca.errors import NoBrokerError, SettingsError, SourceError, naming_the_extra
from streampca.formats import schema_of, writer_of
from streampca.formats.base import Layout, Writer
from streampca.formats.schemas import Schemas, WriterSchema, frame_of
from streampca.process import watchdog
from streampca.settings.kafka import FormatSettings
from streampca.sources.client_connection import one_line

_TIMEOUT_S = 3.0  # of a request, which decoding waits for
_FAILING_S = 300.0  # an id that cannot be read for this long, while the registry answers, counts as unknown

# HTTP statuses:
_NOT_FOUND = 404
_NO_ACCESS = (401, 403)
_TRY_LATER = (408, 429)


def create_schemas(settings: FormatSettings) -> Schemas | None:
    """Create the client of the registry in the settings; None if the format needs no registry.

    Raises `SettingsError` if the package of the client is not installed.
    """
    return SchemaRegistry(settings) if settings.format in ("avro", "protobuf") else None


def create_writer(
    settings: FormatSettings,
    format: str,  # noqa: A002
    topic: str,
    layout: Layout,
    *,
    registers: bool = True,
) -> Writer:
    """Create the writer of a topic's values. If the format has schemas, register one as `<topic>-value`.

    Without `registers`, only ask the registry whether it would accept the schema. Raises `SettingsError` if a package
    is not installed, `NoBrokerError` while the registry is away, and `SourceError` if it refuses the schema.
    """
    frame = b""  # before each value
    if schema := schema_of(format, layout):
        subject = f"{topic}-value"
        try:
            with closing(SchemaRegistry(settings)) as registry:
                if not registry.accepts(subject, schema):
                    raise SourceError(
                        f"the schema of these outputs is not compatible with those of {subject} at "
                        f"{settings.schema_registry_url}: write to another topic, or relax its compatibility"
                    )
                if registers:
                    frame = frame_of(registry.register(subject, schema))
        except (_RefusedError, KeyError) as error:
            raise SourceError(str(error)) from None
        except TimeoutError as error:
            raise NoBrokerError(str(error)) from None
    return writer_of(format, layout.around, frame)


class _RefusedError(TimeoutError):
    """The registry refuses a request, for another reason than the login.

    It is a `TimeoutError`, since a later request may succeed.
    """


class SchemaRegistry:
    """See `streampca.formats.schemas.Schemas`."""

    def __init__(self, settings: FormatSettings) -> None:
        with naming_the_extra("a schema registry", "avro"):
            from confluent_kafka import schema_registry
        self._url = settings.schema_registry_url
        self._error_class = schema_registry.SchemaRegistryError
        self._schema_class = schema_registry.Schema
        self._failing_since: dict[int | str, float] = {}  # by schema id or GUID, time.monotonic of its first failure
        configuration: dict[str, Any] = {
            "url": self._url,
            "timeout": _TIMEOUT_S,
            "max.retries": 0,  # the worker retries by itself
        }
        if settings.schema_registry_login:
            configuration["basic.auth.user.info"] = settings.schema_registry_login.get_secret_value()
        try:
            self._client = schema_registry.SchemaRegistryClient(configuration)
        except OSError as error:  # of reading certificates
            raise SettingsError(f"SSL_CERT_FILE cannot be used: {error}") from None

    def get(self, schema_id: int | str) -> WriterSchema:
        get_schema = self._client.get_schema if isinstance(schema_id, int) else self._client.get_schema_by_guid
        references: dict[str, str] = {}
        try:
            schema = self._call(get_schema, schema_id)
            self._add_references(schema, references)
        except SourceError as error:  # access is refused
            # If the registry answers another request, only this schema is refused, and access may be granted later.
            if self._answers():
                raise TimeoutError(str(error)) from None
            raise
        except TimeoutError as error:
            # The caller will ask for this id again, and its partition waits. But if the registry answers other
            # requests, and refuses this one or fails at it for minutes, the id is at fault: it counts as unknown.
            now = time.monotonic()
            failing_since = self._failing_since.setdefault(schema_id, now)
            fails_for_long = now - failing_since > _FAILING_S
            if (fails_for_long or isinstance(error, _RefusedError)) and self._answers():
                raise KeyError(schema_id) from None
            raise
        self._failing_since.pop(schema_id, None)
        return WriterSchema(kind=schema.schema_type, text=schema.schema_str, references=references)

    def _answers(self) -> bool:
        """Return whether the registry answers a request that needs no schema."""
        try:
            self._client.get_schema_types()
        except Exception:  # as in `_call`
            return False
        return True

    def register(self, subject: str, schema: WriterSchema) -> int:
        """Register a schema under the subject, unless it is registered there, and return its id. Raises as `_call`."""
        return int(self._call(self._client.register_schema, subject, self._schema_class(schema.text, schema.kind)))

    def accepts(self, subject: str, schema: WriterSchema) -> bool:
        """Return whether the subject has no schema, or its newest schema is compatible. Raises as `_call`."""
        try:
            schema_to_test = self._schema_class(schema.text, schema.kind)
            return bool(self._call(self._client.test_compatibility, subject, schema_to_test))
        except KeyError:  # the subject has no schema
            return True

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _add_references(self, schema: Any, references: dict[str, str]) -> None:
        """Add the texts of the schemas that a schema refers to, by name; each comes after those it refers to itself."""
        for reference in schema.references or ():
            if reference.name not in references:
                referred = self._call(self._client.get_version, reference.subject, reference.version).schema
                self._add_references(referred, references)
                references[reference.name] = referred.schema_str

    def _call(self, method: Any, *arguments: Any) -> Any:
        """Send a request by a method of the client.

        Raises `KeyError` if the registry does not find what is asked for, `SourceError` if it refuses access,
        `_RefusedError` if it refuses the request for another reason, and `TimeoutError` for all other errors.
        """
        watchdog.tick()  # a batch may need many requests: without ticks between them, the watchdog ends the process
        try:
            return method(*arguments)
        except self._error_class as error:
            status = error.http_status_code
            if status == _NOT_FOUND:
                raise KeyError(*arguments) from None
            if status in _NO_ACCESS:
                raise SourceError(
                    f"the schema registry {self._url} refuses access ({status}): check schema_registry_login"
                ) from None
            is_refused = 400 <= status < 500 and status not in _TRY_LATER
            error_type = _RefusedError if is_refused else TimeoutError
            raise error_type(f"the schema registry {self._url} does not answer as it should: {error}") from None
        except Exception as error:  # the library's HTTP client, and so its exceptions, change with its versions
            raise TimeoutError(f"the schema registry {self._url} cannot be reached: {one_line(error)}") from None
