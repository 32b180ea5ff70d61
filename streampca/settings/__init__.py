"""Every setting, once: typed, with its default and its meaning. Read at the edge and never at import.

Sources, the first that has a value wins: command-line options, `STREAMPCA_*` environment variables, the TOML
file that `--config` or `STREAMPCA_CONFIG` names. One environment and one file serve all commands.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator

from streampca.settings.base import Rule, Settings, existing_file
from streampca.settings.formats import Format, FormatSettings

__all__ = [
    "Format",
    "FormatSettings",
    "KafkaSettings",
    "LogSettings",
    "ProduceSettings",
    "ServeSettings",
    "Settings",
    "StoreSettings",
    "WorkerSettings",
    "settings_named",
]

_TOPIC_NAME = r"^[A-Za-z0-9._-]{1,249}$"  # what Kafka allows


class LogSettings(Settings):
    """What is logged, and how."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["auto", "json", "human"] = Field(
        "auto", description="One JSON object a line, or text for people; auto: text on a terminal."
    )


class TopicSettings(Settings):
    """The topic that everything is about."""

    topic: str = Field(pattern=_TOPIC_NAME, description="Topic to learn from.")

    @field_validator("topic")
    @classmethod
    def _is_no_folder(cls, topic: str) -> str:
        if topic in (".", ".."):
            raise ValueError("no topic can have this name")
        return topic


class StoreSettings(TopicSettings, LogSettings):
    """What the worker and the sidecar share."""

    store: Path = Field(Path("streampca-store"), description="Folder of checkpoints and models; shared by all workers.")


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

    @field_validator("bootstrap_servers")
    @classmethod
    def _names_hosts_and_ports(cls, servers: str) -> str:
        for server in servers.split(","):
            host, colon, port = server.strip().rpartition(":")
            if not host or not colon or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"{server.strip()!r} is not host:port")
        return servers

    _are_there = field_validator("ssl_cafile", "ssl_certfile", "ssl_keyfile")(existing_file)

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """What must hold between the settings of a connection."""
        return [
            *super().rules(),
            Rule(
                ("security_protocol", "sasl_mechanism"),
                lambda s: s.security_protocol.startswith("SASL") and s.sasl_mechanism is None,
                "security_protocol {s.security_protocol} needs sasl_mechanism",
            ),
            Rule(
                ("security_protocol", "sasl_mechanism"),
                lambda s: not s.security_protocol.startswith("SASL") and s.sasl_mechanism is not None,
                "sasl_mechanism needs security_protocol SASL_PLAINTEXT or SASL_SSL",
            ),
            Rule(
                ("sasl_mechanism", "sasl_username", "sasl_password"),
                lambda s: s.sasl_mechanism not in (None, "GSSAPI") and not (s.sasl_username and s.sasl_password),
                "sasl_mechanism {s.sasl_mechanism} needs sasl_username and sasl_password",
            ),
            Rule(
                ("sasl_mechanism",),
                lambda s: s.sasl_mechanism == "GSSAPI" and find_spec("gssapi") is None,
                "sasl_mechanism GSSAPI needs the package gssapi and Kerberos' libraries: pip install gssapi",
            ),
            Rule(
                ("security_protocol", "ssl_cafile", "ssl_certfile", "ssl_keyfile"),
                lambda s: "SSL" not in s.security_protocol and any((s.ssl_cafile, s.ssl_certfile, s.ssl_keyfile)),
                "ssl_cafile, ssl_certfile and ssl_keyfile need security_protocol SSL or SASL_SSL",
            ),
            Rule(
                ("ssl_certfile", "ssl_keyfile"),
                lambda s: s.ssl_keyfile is not None and s.ssl_certfile is None,
                "ssl_keyfile needs ssl_certfile",
            ),
        ]


class WorkerSettings(StoreSettings, KafkaSettings, FormatSettings):
    """Everything that `streampca worker` can be told."""

    # The model. These shape its bits: a checkpoint made with others is refused.
    dimensions: int = Field(ge=1, le=10_000_000, description="Length d of every vector.")
    components: int = Field(ge=1, description="Number k of components to serve.")
    oversampling: int = Field(10, ge=0, description="Columns tracked beside the k that are served, for accuracy.")
    center: bool = Field(True, description="Whether the running mean is subtracted.")
    half_life_messages: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Forget: a message's weight halves after so many messages of its partition.",
    )
    half_life_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Forget: a message's weight halves after so many seconds of record time.",
    )
    dtype: Literal["float64", "float32"] = Field("float64", description="Arithmetic of the factor C.")

    # The input, beside its format.
    dead_letter_topic: str | None = Field(
        None, pattern=_TOPIC_NAME, description="Topic for records that cannot be learned."
    )
    on_bad_record: Literal["stop", "skip"] = Field("stop", description="What to do with them when there is none.")
    on_offset_gap: Literal["fail", "earliest", "latest"] = Field(
        "fail", description="What to do when retention has removed the records behind the checkpoint."
    )

    # Kafka.
    kafka_client: Literal["kafka-python", "confluent"] = Field(
        "kafka-python", description="Library that reads the topic; confluent is faster and needs streampca[fast]."
    )
    group_id: str = Field("streampca", min_length=1, description="Consumer group of the workers.")
    isolation_level: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed", description="Whether records of unfinished and aborted transactions are left out."
    )
    session_timeout_s: float = Field(
        15, gt=0, allow_inf_nan=False, description="Silence after which the group gives a worker up for dead."
    )
    max_poll_records: int = Field(2000, ge=1, description="Most records taken from the client at once.")
    read_ahead_mib: float = Field(
        32,
        ge=0,
        le=1024,
        description="About how much is read ahead of learning at most, MiB; 0: as little as possible.",
    )

    # The rhythm.
    checkpoint_interval_s: float = Field(
        5, gt=0, description="Longest time between checkpoints of a partition; models are published in the same rhythm."
    )
    checkpoint_messages: int = Field(500_000, ge=1, description="Most messages of a partition between checkpoints.")
    keep_checkpoints: int = Field(3, ge=2, description="Checkpoints kept of each partition.")
    keep_models: int = Field(100, ge=1, description="Published models kept.")

    # Its own HTTP port.
    worker_host: str = Field("127.0.0.1", min_length=1, description="Address of the worker's /metrics and /healthz.")
    worker_port: int = Field(9100, ge=0, le=65535, description="Port of the worker's /metrics and /healthz; 0: any.")

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """What must hold between the settings of a worker."""
        return [
            *super().rules(),
            Rule(
                ("components", "dimensions"),
                lambda s: s.components > s.dimensions,
                "components ({s.components}) cannot exceed dimensions ({s.dimensions})",
            ),
            Rule(
                ("half_life_messages", "half_life_seconds"),
                lambda s: s.half_life_messages is not None and s.half_life_seconds is not None,
                "half_life_messages and half_life_seconds exclude each other",
            ),
            Rule(
                ("kafka_client",),
                lambda s: s.kafka_client == "confluent" and find_spec("confluent_kafka") is None,
                "kafka_client confluent needs confluent-kafka: pip install 'streampca[fast]'",
            ),
            Rule(
                ("dead_letter_topic", "topic"),
                lambda s: s.dead_letter_topic == s.topic,
                "dead_letter_topic must not be the topic itself",
            ),
        ]


class ServeSettings(StoreSettings):
    """Everything that `streampca serve` can be told."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0: any.")
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="Largest request body.")
    max_rows: int = Field(10_000, ge=1, description="Most vectors in one request.")
    model_max_age_s: float | None = Field(
        None, gt=0, description="Age of the newest model from which on /readyz says 503; unset: any age will do."
    )
    reload_interval_s: float = Field(1, gt=0, description="How often the store is asked for a newer model.")


class ProduceSettings(TopicSettings, KafkaSettings, FormatSettings, LogSettings):
    """What `streampca produce` needs of the settings that the worker reads."""


def settings_named(kind: type[Settings]) -> dict[str, str]:
    """Name and meaning of every setting of a class."""
    return {name: field.description or "" for name, field in kind.model_fields.items()}
