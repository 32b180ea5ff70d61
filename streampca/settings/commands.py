"""The settings of every command, so that whoever imports this module knows them all.

Precedence: command-line options, `STREAMPCA_*` environment variables, the TOML file given by `--config` or
`STREAMPCA_CONFIG`, defaults. One environment and one file serve all commands.
"""

from pydantic import Field

from streampca.settings.base import Settings, all_fields
from streampca.settings.consumer import TransformSettings, WorkerSettings
from streampca.settings.formats import Dimensions, FormatSettings
from streampca.settings.kafka import DeadLetterSettings, GroupSettings, KafkaName, KafkaSettings, TopicSettings
from streampca.settings.process import ListeningSettings, LogSettings, Port, StoreSettings

__all__ = ["LogSettings", "Settings", "StoreSettings", "TransformSettings", "WorkerSettings", "all_fields"]


class ServeSettings(StoreSettings, ListeningSettings):
    port: Port = Field(8000, description="Port to listen on; 0: any free one.")
    allowed_hosts: str | None = Field(
        None,
        pattern=r"^(\*|(\*\.)?[^*,\s]+)(\s*,\s*(\*|(\*\.)?[^*,\s]+))*$",
        description="Host names that requests may be for, comma-separated; *: any.",
    )
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="Maximum size of a request body.")
    model_max_age_s: float | None = Field(
        None, gt=0, description="Model age above which /readyz answers 503; unset: no limit."
    )


class ProduceSettings(TopicSettings, KafkaSettings, FormatSettings, LogSettings):
    dimensions: Dimensions | None = Field(None, description="Length d of every vector.")


class CreateTopicsSettings(DeadLetterSettings, KafkaSettings, LogSettings):
    output_topic: KafkaName | None = Field(
        None, description="Topic to write to, with at least as many partitions as the topic."
    )


class ResetSettings(StoreSettings, KafkaSettings, GroupSettings):
    """Settings of `streampca reset`."""


class DeadLettersSettings(DeadLetterSettings, KafkaSettings, LogSettings):
    dead_letter_topic: KafkaName = Field(description="Dead-letter topic, for records that are rejected.")
