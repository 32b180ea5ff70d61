"""The settings that say how vectors lie in the values of records."""

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from streampca.settings.base import Rule, Settings, existing_file

Format = Literal["json", "float32", "float64", "npy", "avro", "protobuf", "arrow"]

_WITH_FIELDS = ("json", "avro", "protobuf", "arrow")
_WITH_SCHEMAS = ("avro", "protobuf")


class FormatSettings(Settings):
    """How values are encoded, and who knows their schemas."""

    format: Format = Field(
        "json",
        description="How values are encoded: json, float32 or float64 (raw, little-endian), npy, arrow (IPC streams, "
        "many vectors a message), or avro or protobuf with a schema registry.",
    )
    field: str = Field(
        "",
        description="Where in a value the vector lies, as a dotted path: of json, avro, protobuf; the column of arrow.",
    )
    schema_registry_url: str | None = Field(
        None, description="Schema registry for avro and protobuf, with Confluent's API: http(s)://host:port."
    )
    schema_registry_username: str | None = Field(None, description="User name for the schema registry.")
    schema_registry_password: SecretStr | None = Field(None, description="Password for the schema registry.")
    schema_registry_cafile: Path | None = Field(
        None, description="Certificates that the schema registry is verified with, PEM."
    )

    @field_validator("schema_registry_url")
    @classmethod
    def _is_http_without_password(cls, urls: str | None) -> str | None:
        for url in urls.split(",") if urls else ():
            parts = urlsplit(url.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("not http://host:port or https://host:port")
            if parts.username or parts.password:
                raise ValueError("user and password belong into schema_registry_username and schema_registry_password")
        return urls

    _is_there = field_validator("schema_registry_cafile")(existing_file)

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """What must hold between the format and what it needs."""
        return [
            *super().rules(),
            Rule(
                ("field", "format"),
                lambda s: s.field != "" and s.format not in _WITH_FIELDS,
                "field means nothing with format {s.format}",
            ),
            Rule(
                ("field", "format"),
                lambda s: s.field == "" and s.format == "protobuf",
                "format protobuf needs field",
            ),
            Rule(
                ("schema_registry_url", "format"),
                lambda s: s.schema_registry_url is None and s.format in _WITH_SCHEMAS,
                "format {s.format} needs schema_registry_url",
            ),
            Rule(
                ("schema_registry_username", "schema_registry_password"),
                lambda s: (s.schema_registry_username is None) != (s.schema_registry_password is None),
                "schema_registry_username and schema_registry_password need each other",
            ),
        ]
