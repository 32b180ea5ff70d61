"""Settings of everything that reads the topic as a member of a consumer group, until it is stopped."""

from importlib.util import find_spec
from typing import Literal, Self

from pydantic import Field

from streampca.settings.base import Rule
from streampca.settings.formats import FormatSettings
from streampca.settings.kafka import KafkaSettings
from streampca.settings.topics import TOPIC_NAME, DeadLetterSettings, StoreSettings


class ConsumerSettings(StoreSettings, KafkaSettings, FormatSettings, DeadLetterSettings):
    """Settings that the worker and `streampca transform` share."""

    on_bad_record: Literal["stop", "skip"] = Field(
        "stop", description="What to do with bad records when no dead-letter topic is set."
    )
    max_rejected_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of a partition's last 1,000 records beyond which the process stops if they are rejected, "
        "and also if the first 100 all are; 1: no limit.",
    )
    on_offset_gap: Literal["fail", "earliest", "latest"] = Field(
        "fail",
        description="What to do when records were removed, or replaced in a truncated log, before being learned.",
    )
    kafka_client: Literal["kafka-python", "confluent"] = Field(
        "kafka-python", description="Library that reads the topic; confluent is faster and needs streampca[fast]."
    )
    session_timeout_s: float = Field(
        15, gt=0, allow_inf_nan=False, description="Time without heartbeats after which the group removes a worker."
    )
    group_instance_id: str | None = Field(
        None,
        pattern=TOPIC_NAME,
        description="Identity of this worker in the group, each worker its own: a restart within session_timeout_s "
        "then moves no partition; unset: none.",
    )
    worker_host: str = Field(
        "127.0.0.1", min_length=1, description="Address of the worker's /metrics, /healthz and /readyz."
    )

    @property
    def group(self) -> str:
        """The consumer group to join."""
        raise NotImplementedError

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """The client must be installed."""
        return [
            *super().rules(),
            Rule(
                ("kafka_client",),
                lambda s: s.kafka_client == "confluent" and find_spec("confluent_kafka") is None,
                "kafka_client confluent needs confluent-kafka: pip install 'streampca[fast]'",
            ),
        ]
