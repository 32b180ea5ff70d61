"""Every setting with its type, default and description.

Precedence: command-line options, `STREAMPCA_*` environment variables, the TOML file given by `--config` or
`STREAMPCA_CONFIG`, defaults. One environment and one file serve all commands.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from streampca import help_texts, store_url
from streampca.settings.base import Rule, Settings
from streampca.settings.formats import Format, FormatSettings
from streampca.settings.guard import GuardSettings
from streampca.settings.kafka import GroupSettings, KafkaSettings

__all__ = [
    "CreateTopicsSettings",
    "Format",
    "FormatSettings",
    "GroupSettings",
    "KafkaSettings",
    "LogSettings",
    "ProduceSettings",
    "ResetSettings",
    "ServeSettings",
    "Settings",
    "StoreSettings",
    "WorkerSettings",
    "descriptions_of",
]

_TOPIC_NAME = r"^[A-Za-z0-9._-]{1,249}$"  # what Kafka allows


class LogSettings(Settings):
    """Settings of the log."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description=help_texts.LOG_LEVEL)
    log_format: Literal["auto", "json", "human"] = Field("auto", description=help_texts.LOG_FORMAT)


class TopicSettings(Settings):
    """The topic."""

    topic: str = Field(pattern=_TOPIC_NAME, description=help_texts.TOPIC)

    @field_validator("topic")
    @classmethod
    def _is_no_folder(cls, topic: str) -> str:
        if topic in (".", ".."):
            raise ValueError("not a valid topic name")
        return topic


class DeadLetterSettings(TopicSettings):
    """The topic and its dead-letter topic."""

    dead_letter_topic: str | None = Field(None, pattern=_TOPIC_NAME, description=help_texts.DEAD_LETTER_TOPIC)

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """The two differ."""
        return [
            *super().rules(),
            Rule(
                ("dead_letter_topic", "topic"),
                lambda s: s.dead_letter_topic == s.topic,
                "dead_letter_topic must not be the topic itself",
            ),
        ]


class StoreSettings(TopicSettings, LogSettings):
    """Settings shared by the worker and the sidecar."""

    store: Annotated[
        str,
        BeforeValidator(lambda place: str(place) if isinstance(place, Path) else place),
        AfterValidator(store_url.checked),
    ] = Field("streampca-store", min_length=1, description=help_texts.STORE)

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """A URL needs a package."""
        return [
            *super().rules(),
            Rule(
                ("store",),
                lambda s: store_url.scheme_of(s.store) is not None and not store_url.is_supported(),
                store_url.MISSING_PACKAGE,
            ),
        ]


class WorkerSettings(StoreSettings, KafkaSettings, FormatSettings, GroupSettings, GuardSettings, DeadLetterSettings):
    """Settings of `streampca worker`."""

    # The model. A checkpoint made with other values of these is refused.
    dimensions: int = Field(ge=1, le=10_000_000, description=help_texts.DIMENSIONS)
    components: int = Field(ge=1, description=help_texts.COMPONENTS)
    oversampling: int | None = Field(None, ge=0, description=help_texts.OVERSAMPLING)
    center: bool = Field(True, description=help_texts.CENTER)
    half_life_messages: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description=help_texts.HALF_LIFE_MESSAGES,
    )
    half_life_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description=help_texts.HALF_LIFE_SECONDS,
    )
    dtype: Literal["float64", "float32"] = Field(
        "float64", description="Floating-point type of the factor C and of the computation."
    )

    # The input, beside its format.
    on_bad_record: Literal["stop", "skip"] = Field(
        "stop", description="What to do with bad records when no dead-letter topic is set."
    )
    max_record_mib: float = Field(
        64, gt=0, le=65536, description="Maximum memory to decode one record, MiB; records that need more are rejected."
    )
    implausible_factor: float = Field(
        1e4,
        ge=0,
        allow_inf_nan=False,
        description="Distance from the running mean, in multiples of the usual (root mean square) distance, beyond "
        "which a vector is rejected as implausible; 0: no limit.",
    )
    max_rejected_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of a partition's last 1,000 records beyond which the worker stops if they are rejected, and "
        "also if the first 100 all are; 1: no limit.",
    )
    on_offset_gap: Literal["fail", "earliest", "latest"] = Field(
        "fail",
        description="What to do when records were removed, or replaced in a truncated log, before being learned.",
    )

    # Kafka.
    kafka_client: Literal["kafka-python", "confluent"] = Field(
        "kafka-python", description="Library that reads the topic; confluent is faster and needs streampca[fast]."
    )
    isolation_level: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed", description="Whether to skip records of open and aborted transactions."
    )
    session_timeout_s: float = Field(
        15, gt=0, allow_inf_nan=False, description="Time without heartbeats after which the group removes a worker."
    )
    group_instance_id: str | None = Field(
        None,
        pattern=_TOPIC_NAME,
        description="Identity of this worker in the group, each worker its own: a restart within session_timeout_s "
        "then moves no partition; unset: none.",
    )
    max_poll_records: int = Field(2000, ge=1, description="Maximum number of records per poll.")
    prefetch_mib: float = Field(32, gt=0, le=1024, description="Prefetch limit, MiB.")

    # Checkpoints and models.
    checkpoint_interval_s: float = Field(
        5, gt=0, description="Maximum time between checkpoints of a partition; models are published as often."
    )
    checkpoint_messages: int = Field(
        500_000, ge=1, description="Maximum number of messages of a partition between checkpoints."
    )
    keep_checkpoints: int = Field(3, ge=2, description="Number of checkpoints kept per partition.")
    keep_models: int = Field(100, ge=1, description="Number of published models kept.")

    # The HTTP port of the worker.
    worker_host: str = Field(
        "127.0.0.1", min_length=1, description="Address of the worker's /metrics, /healthz and /readyz."
    )
    worker_port: int = Field(8010, ge=0, le=65535, description=help_texts.WORKER_PORT)

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """Constraints between the settings of a worker."""
        return [
            *super().rules(),
            Rule(
                ("components", "dimensions"),
                lambda s: s.components > s.dimensions,
                "components ({s.components}) cannot exceed dimensions ({s.dimensions})",
            ),
            Rule(
                ("max_record_mib", "dimensions"),
                lambda s: s.dimensions * 8 > s.max_record_mib * 2**20,
                "max_record_mib ({s.max_record_mib:g}) is too small for a vector of {s.dimensions} dimensions",
            ),
            Rule(
                ("implausible_factor",),
                lambda s: 0 < s.implausible_factor < 10,
                "implausible_factor ({s.implausible_factor:g}) would reject ordinary vectors: 0 for no limit, or at "
                "least 10",
            ),
            Rule(
                ("half_life_messages", "half_life_seconds"),
                lambda s: s.half_life_messages is not None and s.half_life_seconds is not None,
                "half_life_messages and half_life_seconds exclude each other: set one",
            ),
            Rule(
                ("kafka_client",),
                lambda s: s.kafka_client == "confluent" and find_spec("confluent_kafka") is None,
                "kafka_client confluent needs confluent-kafka: pip install 'streampca[fast]'",
            ),
        ]


class ServeSettings(StoreSettings):
    """Settings of `streampca serve`."""

    host: str = Field("127.0.0.1", min_length=1, description=help_texts.HOST)
    port: int = Field(8000, ge=0, le=65535, description=help_texts.PORT)
    allowed_hosts: str | None = Field(
        None,
        pattern=r"^[^,\s]+(\s*,\s*[^,\s]+)*$",
        description="Host names that requests may be for, comma-separated; *: any. Unset: any; on loopback addresses "
        "only localhost, 127.0.0.1, [::1] and `host`.",
    )
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="Maximum size of a request body.")
    max_rows: int = Field(10_000, ge=1, description="Maximum number of vectors in a request.")
    max_numbers: int = Field(1_000_000, ge=1, description="Maximum count of numbers in a request, and in an answer.")
    buffers_mib: float = Field(
        64, gt=0, description="Memory for bodies being received and answers being sent, MiB; beyond it, 503."
    )
    model_max_age_s: float | None = Field(
        None, gt=0, description="Model age above which /readyz answers 503; unset: no limit."
    )
    reload_interval_s: float = Field(1, gt=0, description="Interval between checks of the store for a newer model.")


class ProduceSettings(TopicSettings, KafkaSettings, FormatSettings, LogSettings):
    """Settings of `streampca produce`."""


class CreateTopicsSettings(DeadLetterSettings, KafkaSettings, LogSettings):
    """Settings of `streampca create-topics`."""


class ResetSettings(TopicSettings, KafkaSettings, GroupSettings, LogSettings):
    """Settings of `streampca reset`."""


def descriptions_of(kind: type[Settings]) -> dict[str, str]:
    """Name and description of every setting of a class."""
    return {name: field.description or "" for name, field in kind.model_fields.items()}
