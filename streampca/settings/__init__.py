"""Every setting with its type, default and description.

Precedence: command-line options, `STREAMPCA_*` environment variables, the TOML file given by `--config` or
`STREAMPCA_CONFIG`, defaults. One environment and one file serve all commands.
"""

from typing import Literal, Self

from pydantic import Field

from streampca import help_texts
from streampca.settings.base import Rule, Settings
from streampca.settings.consumer import ConsumerSettings
from streampca.settings.formats import Format, FormatSettings
from streampca.settings.kafka import GroupSettings, KafkaSettings
from streampca.settings.topics import DeadLetterSettings, LogSettings, StoreSettings, TopicSettings
from streampca.settings.transform import TransformSettings

__all__ = [
    "ConsumerSettings",
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
    "TransformSettings",
    "WorkerSettings",
    "descriptions_of",
]


class WorkerSettings(ConsumerSettings, GroupSettings):
    """Settings of `streampca worker`."""

    # The model. A checkpoint made with other values of these is refused.
    dimensions: int = Field(ge=1, le=10_000_000, description=help_texts.DIMENSIONS)
    components: int = Field(ge=1, description=help_texts.COMPONENTS)
    oversampling: int | None = Field(None, ge=0, description=help_texts.OVERSAMPLING)
    center: bool = Field(True, description=help_texts.CENTER)
    half_life_messages: float | None = Field(None, gt=0, allow_inf_nan=False, description=help_texts.HALF_LIFE_MESSAGES)
    half_life_seconds: float | None = Field(None, gt=0, allow_inf_nan=False, description=help_texts.HALF_LIFE_SECONDS)
    dtype: Literal["float64", "float32"] = Field(
        "float64", description="Floating-point type of the factor C and of the computation."
    )

    # The input, beside its format.
    missing: Literal["refuse", "impute"] = Field("refuse", description=help_texts.MISSING)
    implausible_factor: float = Field(
        1e4,
        ge=0,
        allow_inf_nan=False,
        description="Distance from the running mean, in multiples of the usual (root mean square) distance, beyond "
        "which a vector is rejected as implausible; 0: no limit.",
    )

    # Checkpoints and models.
    checkpoint_interval_s: float = Field(
        5,
        gt=0,
        description="Maximum time between checkpoints of a partition; models are published as often, or less often "
        "where publishing would take more than a tenth of the time.",
    )
    keep_checkpoints: int = Field(3, ge=2, description="Number of checkpoints kept per partition.")
    keep_models: int = Field(100, ge=1, description="Number of published models kept.")

    # The HTTP port of the worker; its address is `worker_host`.
    worker_port: int = Field(8010, ge=0, le=65535, description=help_texts.WORKER_PORT)

    @property
    def group(self) -> str:
        """The consumer group to join."""
        return self.group_id

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
