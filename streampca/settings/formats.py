"""Settings of the value format: how vectors are encoded in records."""

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from streampca import help_texts
from streampca.settings.base import Rule, Settings, existing_file

Format = Literal["json", "float32", "float64", "npy", "avro", "protobuf", "arrow"]

_WITH_FIELDS = ("json", "avro", "protobuf", "arrow")
_WITH_SCHEMAS = ("avro", "protobuf")


class FormatSettings(Settings):
    """Settings of the value format and of the schema registry."""

    format: Format = Field(
        "json",
        description=help_texts.FORMAT,
    )
    field: str = Field(
        "",
        description=help_texts.FIELD,
    )
    schema_registry_url: str | None = Field(
        None, description="URL of the schema registry (Confluent's API) for avro and protobuf: http(s)://host:port."
    )
    schema_registry_username: str | None = Field(None, description="User name for the schema registry.")
    schema_registry_password: SecretStr | None = Field(None, description="Password for the schema registry.")
    schema_registry_cafile: Path | None = Field(
        None, description="CA certificates to verify the schema registry with, PEM."
    )

    @field_validator("schema_registry_url")
    @classmethod
    def _is_http_without_password(cls, urls: str | None) -> str | None:
        for url in urls.split(",") if urls else ():
            parts = urlsplit(url.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("not http://host:port or https://host:port")
            if parts.username or parts.password:
                raise ValueError("set user and password as schema_registry_username and schema_registry_password")
        return urls

    _is_there = field_validator("schema_registry_cafile")(existing_file)

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """Constraints between the settings of a format."""
        return [
            *super().rules(),
            Rule(
                ("field", "format"),
                lambda s: s.field != "" and s.format not in _WITH_FIELDS,
                "format {s.format} has no fields: leave field unset",
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
                "schema_registry_username and schema_registry_password must be set together",
            ),
        ]
