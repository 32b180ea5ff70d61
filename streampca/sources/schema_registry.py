"""A schema registry with Confluent's HTTP API, accessed by Confluent's client."""

import time
from contextlib import closing
from typing import Any

from streampca.errors import NoBrokerError, SettingsError, SourceError, explain_missing_extra
from streampca.formats import schema_of, writer_of
from streampca.formats.base import Layout, Writer
from streampca.formats.schemas import Schemas, WriterSchema, frame_of
from streampca.process import watchdog
from streampca.settings.kafka import FormatSettings
from streampca.settings.plug_ins import FORMATS_WITH_SCHEMA
from streampca.sources.broker_errors import one_line

_TIMEOUT_S = 3.0  # of a request, which decoding waits for
_UNKNOWN_AFTER_S = 300.0  # a schema that cannot be read for this long, while the registry answers, is unknown

# HTTP statuses:
_NOT_FOUND = 404
_NO_ACCESS = (401, 403)
_TRY_LATER = (408, 429)


def create_schemas(settings: FormatSettings) -> Schemas | None:
    """Return a client of the registry in the settings; None if the format needs no registry.

    Raises `SettingsError` if the package of the client is not installed.
    """
    return SchemaRegistry(settings) if settings.format in FORMATS_WITH_SCHEMA else None


def create_writer(
    settings: FormatSettings,
    format: str,  # noqa: A002
    topic: str,
    layout: Layout,
    *,
    must_register: bool = True,
) -> Writer:
    """Create the writer of a topic's values, and register their schema, if they have one.

    With `must_register=False`, only check that the registry would accept the schema. The values of such a writer have
    no schema id, so they must not be sent. Raises `NoBrokerError` and `SourceError`.
    """
    schema = schema_of(format, layout)
    schema_prefix = b""  # the first bytes of each value, which hold the schema's id
    if schema is not None:
        schema_prefix = _register(settings, f"{topic}-value", schema, must_register=must_register)
    # The enclosing names are the names of the objects that the fields are inside of.
    return writer_of(format, layout.enclosing_names, schema_prefix)


def _register(settings: FormatSettings, subject: str, schema: WriterSchema, *, must_register: bool) -> bytes:
    """Register a schema, and return the schema prefix: the first bytes of each value, which hold the schema's id.

    With `must_register=False`, only check that the registry accepts the schema, and return b"".
    """
    try:
        with closing(SchemaRegistry(settings)) as registry:
            if not registry.accepts(subject, schema):
                raise SourceError(
                    f"the schema of these outputs is not compatible with those of {subject} at "
                    f"{settings.schema_registry_url}: write to another topic, or relax its compatibility"
                )
            if not must_register:
                return b""
            schema_id = registry.register(subject, schema)
            return frame_of(schema_id)  # the schema prefix
    except KeyError:  # only `register` raises it: the registry has answered 404
        raise SourceError(f"the schema registry {settings.schema_registry_url} cannot find {subject}") from None
    except _BadRequestError as error:
        raise SourceError(str(error)) from None
    except TimeoutError as error:
        raise NoBrokerError(str(error)) from None


class _BadRequestError(TimeoutError):
    """The registry answers with an HTTP status of 4xx that means neither a missing schema nor a refused login.

    A later request may succeed.
    """


class SchemaRegistry:
    """See `streampca.formats.schemas.Schemas`."""

    def __init__(self, settings: FormatSettings) -> None:
        with explain_missing_extra("avro", needed_by="a schema registry"):
            from confluent_kafka import schema_registry
        self._url = settings.schema_registry_url
        self._error_class = schema_registry.SchemaRegistryError
        self._schema_class = schema_registry.Schema
        self._failing_since: dict[int | str, float] = {}  # by id or GUID of the schema
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
        """Ask for a schema by its id or GUID, with the schemas that it refers to.

        Raises `KeyError` for an unknown schema, `SourceError` if access is refused, and `TimeoutError`.
        """
        get_schema = self._client.get_schema if isinstance(schema_id, int) else self._client.get_schema_by_guid
        references: dict[str, str] = {}
        try:
            schema = self._call(get_schema, schema_id)
            self._add_references(schema, references)
        except (SourceError, TimeoutError) as error:
            # If only this schema fails, the error becomes a `KeyError`, at once or after five minutes, so that the
            # record is rejected.
            raise self._find_error_to_raise(schema_id, error) from None
        self._failing_since.pop(schema_id, None)
        return WriterSchema(kind=schema.schema_type, text=schema.schema_str, references=references)

    def _find_error_to_raise(self, schema_id: int | str, error: SourceError | TimeoutError) -> Exception:
        """Return the error to raise after a request for a schema has failed.

        - `SourceError`: the registry refuses all access.
        - `TimeoutError`: the registry refuses access to this schema only, or does not answer. The caller tries again.
        - `KeyError`: the registry answers other requests, but calls the request for this schema a bad one, or has not
          answered it for five minutes. The schema counts as unknown.
        """
        if isinstance(error, SourceError):  # the registry has refused access
            is_only_schema_refused = self._answers_other_requests()
            return TimeoutError(str(error)) if is_only_schema_refused else error
        now = time.monotonic()
        failing_since = self._failing_since.setdefault(schema_id, now)
        is_unanswered_for_long = now - failing_since > _UNKNOWN_AFTER_S
        is_called_bad = isinstance(error, _BadRequestError)  # a kind of `TimeoutError`, after a status of 4xx
        may_be_unknown = is_called_bad or is_unanswered_for_long
        if may_be_unknown and self._answers_other_requests():
            return KeyError(schema_id)  # an unknown schema
        return error

    def _answers_other_requests(self) -> bool:
        """Return whether the registry answers a request that needs no schema."""
        try:
            self._client.get_schema_types()
        except Exception:  # the client's HTTP library, and so its errors, change with its versions
            return False
        return True

    def register(self, subject: str, schema: WriterSchema) -> int:
        """Register a schema under the subject, unless it is registered there, and return its id.

        Raises `KeyError` (the registry answers with the HTTP status 404), `SourceError` (access refused),
        `_BadRequestError` (request refused), and `TimeoutError` after any other failure.
        """
        return int(self._call(self._client.register_schema, subject, self._schema_class(schema.text, schema.kind)))

    def accepts(self, subject: str, schema: WriterSchema) -> bool:
        """Return whether a schema may be registered under a subject. A subject without a schema accepts any schema.

        Raises `SourceError` (access refused), `_BadRequestError` (request refused), and `TimeoutError` after any other
        failure.
        """
        try:
            schema_to_test = self._schema_class(schema.text, schema.kind)
            return bool(self._call(self._client.test_compatibility, subject, schema_to_test))
        except KeyError:  # the subject has no schema
            return True

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _add_references(self, schema: Any, references: dict[str, str]) -> None:
        """Ask for the schemas that a schema refers to, and add their texts by name, each after its own references."""
        for reference in schema.references or ():
            if reference.name not in references:
                referenced = self._call(self._client.get_version, reference.subject, reference.version).schema
                self._add_references(referenced, references)
                references[reference.name] = referenced.schema_str

    def _call(self, method: Any, *arguments: Any) -> Any:
        """Call a method of the client that sends a request, and translate its errors.

        Raises `KeyError` (not found), `SourceError` (access refused), `_BadRequestError` (request refused), and
        `TimeoutError` after any other failure.
        """
        watchdog.tick()  # one record may need several requests, and each may take long
        try:
            return method(*arguments)
        except self._error_class as error:
            # A web server without a registry at this path has no error codes.
            is_answer_of_registry = isinstance(error.error_code, int) and error.error_code > 0
            if error.http_status_code == _NOT_FOUND and is_answer_of_registry:
                raise KeyError(*arguments) from None
            raise self._explain_status(error.http_status_code, str(error)) from None
        except Exception as error:  # the client's HTTP library, and so its errors, change with its versions
            raise TimeoutError(f"the schema registry {self._url} cannot be reached: {one_line(error)}") from None

    def _explain_status(self, status: int, text: str) -> SourceError | TimeoutError:
        """Return our error for an answer with this HTTP status: `TimeoutError` if a later request may succeed."""
        if status in _NO_ACCESS:
            return SourceError(
                f"the schema registry {self._url} refuses access ({status}): check schema_registry_login"
            )
        is_refused = 400 <= status < 500 and status not in _TRY_LATER
        error_type = _BadRequestError if is_refused else TimeoutError
        return error_type(f"the schema registry {self._url} does not answer as it should: {text}")
