"""Every setting, once: typed, with its default and its meaning. Read at the edge and never at import.

Sources, the first that has a value wins: command-line options, `STREAMPCA_*` environment variables, the TOML
file that `STREAMPCA_CONFIG` names.
"""

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from streampca.errors import SettingsError

Format = Literal["json", "float32", "float64", "npy"]


class Settings(BaseSettings):
    """Where settings come from, and how mistakes in them are told."""

    model_config = SettingsConfigDict(
        env_prefix="STREAMPCA_", extra="forbid", frozen=True, populate_by_name=True, env_ignore_empty=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Options, then the environment, then the file that STREAMPCA_CONFIG names."""
        path = os.environ.get("STREAMPCA_CONFIG")
        return (init_settings, env_settings, *([TomlConfigSettingsSource(settings_cls, Path(path))] if path else []))

    @classmethod
    def read(cls, **options: Any) -> Self:
        """The effective settings. Raises `SettingsError` that lists every mistake at once."""
        path = os.environ.get("STREAMPCA_CONFIG")
        if path and not Path(path).is_file():
            raise SettingsError(f"STREAMPCA_CONFIG names {path}, which is not a file")
        try:
            return cls(**{name: value for name, value in options.items() if value is not None})
        except ValidationError as error:
            raise SettingsError("; ".join(_sentence(dict(e)) for e in error.errors())) from None
        except ValueError as error:  # a TOML file that is not TOML
            raise SettingsError(f"{path}: {error}") from None


def _sentence(mistake: dict[str, Any]) -> str:
    name = ".".join(str(part) for part in mistake["loc"]) or "settings"
    if mistake["type"] == "missing":
        return f"{name} is required: set STREAMPCA_{name.upper()}"
    text = str(mistake["msg"]).removeprefix("Value error, ")
    return f"{name}: {text}" + (f" (got {mistake['input']!r})" if mistake["loc"] else "")


class StoreSettings(Settings):
    """What the worker and the sidecar share."""

    store: Path = Field(Path("streampca-store"), description="Folder of checkpoints and models; shared by all workers.")
    topic: str = Field(min_length=1, description="Topic to learn from.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["auto", "json", "human"] = Field(
        "auto", description="One JSON object a line, or text for people; auto: text on a terminal."
    )


class KafkaSettings(Settings):
    """How to reach the brokers."""

    bootstrap_servers: str = Field("localhost:9092", description="Brokers to ask first, host:port,host:port.")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How connections are secured."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"] | None = Field(
        None, description="How to log in, with a SASL protocol."
    )
    sasl_username: str | None = Field(None, description="User name for PLAIN and SCRAM.")
    sasl_password: SecretStr | None = Field(None, description="Password for PLAIN and SCRAM.")
    ssl_cafile: Path | None = Field(None, description="Certificates that brokers are verified with, PEM.")
    ssl_certfile: Path | None = Field(None, description="The client's certificate, PEM.")
    ssl_keyfile: Path | None = Field(None, description="The client's private key, PEM.")
    ssl_password: SecretStr | None = Field(None, description="Password of the private key.")
    ssl_check_hostname: bool = Field(True, description="Whether a broker's certificate must name its host.")
    kafka_api_version: str | None = Field(
        None, pattern=r"^\d+(\.\d+)+$", description="Protocol version of the brokers; asked of them when unset."
    )

    @model_validator(mode="after")
    def _sasl_is_complete(self) -> Self:
        if self.security_protocol.startswith("SASL"):
            if self.sasl_mechanism is None:
                raise ValueError(f"security_protocol {self.security_protocol} needs sasl_mechanism")
            if self.sasl_mechanism != "GSSAPI" and (self.sasl_username is None or self.sasl_password is None):
                raise ValueError(f"sasl_mechanism {self.sasl_mechanism} needs sasl_username and sasl_password")
        elif self.sasl_mechanism is not None:
            raise ValueError("sasl_mechanism needs security_protocol SASL_PLAINTEXT or SASL_SSL")
        return self


class WorkerSettings(StoreSettings, KafkaSettings):
    """Everything that `streampca worker` can be told."""

    # The model. These shape its bits: a checkpoint made with others is refused.
    dimensions: int = Field(ge=1, le=10_000_000, description="Length d of every vector.")
    components: int = Field(ge=1, description="Number k of components to serve.")
    oversampling: int = Field(10, ge=0, description="Columns tracked beside the k that are served, for accuracy.")
    center: bool = Field(True, description="Whether the running mean is subtracted.")
    half_life_messages: float | None = Field(
        None, gt=0, description="Forget: a message's weight halves after so many messages of its partition."
    )
    half_life_seconds: float | None = Field(
        None, gt=0, description="Forget: a message's weight halves after so many seconds of record time."
    )
    dtype: Literal["float64", "float32"] = Field("float64", description="Arithmetic of the factor C.")

    # The input.
    format: Format = Field("json", description="How values are encoded: json, raw little-endian floats, or npy.")
    json_field: str = Field("", description="Where in a JSON object the vector lies, as a dotted path.")
    dead_letter_topic: str | None = Field(None, min_length=1, description="Topic for records that cannot be learned.")
    on_bad_record: Literal["stop", "skip"] = Field("stop", description="What to do with them when there is none.")
    on_offset_gap: Literal["fail", "earliest", "latest"] = Field(
        "fail", description="What to do when retention has removed the records behind the checkpoint."
    )

    # Kafka.
    group_id: str = Field("streampca", min_length=1, description="Consumer group of the workers.")
    isolation_level: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed", description="Whether records of unfinished and aborted transactions are left out."
    )
    session_timeout_s: float = Field(45, gt=0, description="Silence after which the group gives a worker up for dead.")
    max_poll_records: int = Field(2000, ge=1, description="Most records taken from the client at once.")

    # The rhythm.
    checkpoint_interval_s: float = Field(10, gt=0, description="Longest time between checkpoints of a partition.")
    checkpoint_messages: int = Field(500_000, ge=1, description="Most messages of a partition between checkpoints.")
    keep_checkpoints: int = Field(3, ge=2, description="Checkpoints kept of each partition.")
    publish_interval_s: float = Field(5, gt=0, description="Least time between two published models.")
    keep_models: int = Field(100, ge=1, description="Published models kept.")

    # Its own HTTP port.
    worker_host: str = Field("127.0.0.1", description="Address of the worker's /metrics and /healthz.")
    worker_port: int = Field(9100, ge=0, le=65535, description="Port of the worker's /metrics and /healthz; 0: any.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.components > self.dimensions:
            raise ValueError(f"components ({self.components}) cannot exceed dimensions ({self.dimensions})")
        if self.half_life_messages and self.half_life_seconds:
            raise ValueError("half_life_messages and half_life_seconds exclude each other")
        if self.json_field and self.format != "json":
            raise ValueError(f"json_field means nothing with format {self.format}")
        if self.dead_letter_topic == self.topic:
            raise ValueError("dead_letter_topic must not be the topic itself")
        return self


class ServeSettings(StoreSettings):
    """Everything that `streampca serve` can be told."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0: any.")
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="Largest request body.")
    max_rows: int = Field(10_000, ge=1, description="Most vectors in one request.")
    model_max_age_s: float | None = Field(
        None, gt=0, description="Age of the newest model from which on /readyz says 503; unset: any age will do."
    )
    reload_interval_s: float = Field(1, gt=0, description="How often the store is asked for a newer model.")


def settings_named(kind: type[Settings]) -> dict[str, str]:
    """Name and meaning of every setting of a class."""
    return {name: field.description or "" for name, field in kind.model_fields.items()}
