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

_TIMEOUT_S = 3.0  # timeout of a request, which decoding waits for
_NOT_FOUND, _NO_ACCESS, _LATER = 404, (401, 403), (408, 429)
_FAILING_S = 300.0  # after failing this long while the registry answers, an id counts as unknown


def create_schemas(settings: FormatSettings) -> Schemas | None:
    """The registry in the settings, if the format needs one. Raises `SettingsError` if its client is not installed."""
    return SchemaRegistry(settings) if settings.format in ("avro", "protobuf") else None


def create_writer(
    settings: FormatSettings,
    format: str,  # noqa: A002
    topic: str,
    layout: Layout,
    *,
    registers: bool = True,
) -> Writer:
    """The writer of a topic's values; registers their schema, if the format has schemas, as `<topic>-value`.

    Without `registers` the registry only says whether it would accept the schema. Raises `SettingsError` if a package
    is not installed, `NoBrokerError` while the registry is away, and `SourceError`.
    """
    frame = b""
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
        except (TimeoutError, KeyError) as error:
            kind = SourceError if isinstance(error, _RefusedError | KeyError) else NoBrokerError
            raise kind(str(error)) from None
    return writer_of(format, layout.around, frame)


class _RefusedError(TimeoutError):
    """The registry refuses a request, for another reason than the login."""


class SchemaRegistry:
    """See `streampca.formats.schemas.Schemas`."""

    def __init__(self, settings: FormatSettings) -> None:
        with naming_the_extra("a schema registry", "avro"):
            from confluent_kafka import schema_registry
        self._url, self._error = settings.schema_registry_url, schema_registry.SchemaRegistryError
        self._schema = schema_registry.Schema
        self._failing: dict[int | str, float] = {}  # schema id or GUID → monotonic time of its first failure
        configuration: dict[str, Any] = {
            "url": self._url,
            "timeout": _TIMEOUT_S,
            "max.retries": 0,  # the worker retries by itself
        }
        if settings.schema_registry_login:
            configuration["basic.auth.user.info"] = settings.schema_registry_login.get_secret_value()
        try:
            self._client = schema_registry.SchemaRegistryClient(configuration)
        except OSError as error:  # of the certificates
            raise SettingsError(f"SSL_CERT_FILE cannot be used: {error}") from None

    def get(self, schema_id: int | str) -> WriterSchema:
        references: dict[str, str] = {}
        get = self._client.get_schema if isinstance(schema_id, int) else self._client.get_schema_by_guid
        try:
            schema = self._call(get, schema_id)
            self._add_references(schema, references)
        except SourceError as error:
            if self._answers():  # the login may have expired: that says nothing about the id
                raise TimeoutError(str(error)) from None
            raise
        except TimeoutError as error:
            failing_s = time.monotonic() - self._failing.setdefault(schema_id, time.monotonic())
            refused = isinstance(error, _RefusedError)
            if (refused or failing_s > _FAILING_S) and self._answers():  # the id is at fault: no partition waits for it
                raise KeyError(schema_id) from None
            raise
        self._failing.pop(schema_id, None)
        return WriterSchema(schema.schema_type, schema.schema_str, references)

    def _answers(self) -> bool:
        """Return True if the registry answers a request that needs no schema."""
        try:
            self._client.get_schema_types()
        except Exception:  # as in `_call`
            return False
        return True

    def register(self, subject: str, schema: WriterSchema) -> int:
        """The id of the schema; registers it under the subject if it is new. Raises as `get` does."""
        return int(self._call(self._client.register_schema, subject, self._schema(schema.text, schema.kind)))

    def accepts(self, subject: str, schema: WriterSchema) -> bool:
        """Return True if the subject has no schema, or a compatible one as its newest. Raises as `get` does."""
        try:
            return bool(self._call(self._client.test_compatibility, subject, self._schema(schema.text, schema.kind)))
        except KeyError:
            return True

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _add_references(self, schema: Any, references: dict[str, str]) -> None:
        """Add the texts of the schemas that a schema refers to, dependencies first."""
        for reference in schema.references or ():
            if reference.name not in references:
                referred = self._call(self._client.get_version, reference.subject, reference.version).schema
                self._add_references(referred, references)
                references[reference.name] = referred.schema_str

    def _call(self, method: Any, *arguments: Any) -> Any:
        watchdog.tick()  # a batch may need many
        try:
            return method(*arguments)
        except self._error as error:
            if error.http_status_code == _NOT_FOUND:
                raise KeyError(*arguments) from None
            if error.http_status_code in _NO_ACCESS:
                raise SourceError(
                    f"the schema registry {self._url} refuses access ({error.http_status_code}): check "
                    "schema_registry_login"
                ) from None
            refused = 400 <= error.http_status_code < 500 and error.http_status_code not in _LATER
            kind = _RefusedError if refused else TimeoutError
            raise kind(f"the schema registry {self._url} does not answer as it should: {error}") from None
        except Exception as error:  # its HTTP client, and so its exceptions, change with its versions
            raise TimeoutError(f"the schema registry {self._url} cannot be reached: {one_line(error)}") from None
