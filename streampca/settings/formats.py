"""Settings of the value format: how vectors are encoded in records."""

from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from streampca.settings.base import Rules, Settings

Dimensions = Annotated[int, Field(ge=1, le=10_000_000)]
Format = Literal["json", "float32", "float64", "npy", "avro", "protobuf", "arrow"]

_WITH_FIELDS = ("json", "avro", "protobuf", "arrow")
_WITH_SCHEMAS = ("avro", "protobuf")


class FormatSettings(Settings):
    format: Format = Field(
        "json", description="Format of values: json, float32, float64, npy, arrow, avro or protobuf."
    )
    field: str = Field("", description="Field that holds the vector: a dotted path; in arrow a column.")
    schema_registry_url: str | None = Field(None, description="URL of the schema registry, for avro and protobuf.")
    schema_registry_login: SecretStr | None = Field(None, description="Login at the schema registry, user:password.")

    @field_validator("schema_registry_url")
    @classmethod
    def _is_http_without_password(cls, urls: str | None) -> str | None:
        for url in urls.split(",") if urls else ():
            parts = urlsplit(url.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("not http://host:port or https://host:port")
            if parts.username or parts.password:
                raise ValueError("set user and password as schema_registry_login")
        return urls

    @field_validator("schema_registry_login")
    @classmethod
    def _is_user_and_password(cls, login: SecretStr | None) -> SecretStr | None:
        if login is not None and not all(login.get_secret_value().partition(":")):
            raise ValueError("not user:password")
        return login

    RULES: ClassVar[Rules] = (
        (lambda s: s.field != "" and s.format not in _WITH_FIELDS,
         "format {s.format} has no fields: leave field unset"),
        (lambda s: s.field == "" and s.format == "protobuf", "format protobuf needs field"),
        (lambda s: s.schema_registry_url is None and s.format in _WITH_SCHEMAS,
         "format {s.format} needs schema_registry_url"),
    )  # fmt: skip
