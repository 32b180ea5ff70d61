"""Settings of everything that reads the topic as a member of a consumer group, until it is stopped."""

from importlib.util import find_spec
from typing import ClassVar, Literal

from pydantic import Field

from streampca.errors import needs
from streampca.settings.base import Rules
from streampca.settings.formats import FormatSettings
from streampca.settings.kafka import TOPIC_NAME, DeadLetterSettings, KafkaSettings
from streampca.settings.listening import ListeningSettings
from streampca.settings.store import StoreSettings


class ConsumerSettings(StoreSettings, KafkaSettings, FormatSettings, DeadLetterSettings, ListeningSettings):
    """Settings that the worker and `streampca transform` share."""

    on_bad_record: Literal["stop", "skip"] = Field(
        "stop", description="What to do with bad records when no dead-letter topic is set."
    )
    on_offset_gap: Literal["fail", "earliest", "latest"] = Field(
        "fail", description="What to do when records disappeared before they were read."
    )
    kafka_client: Literal["kafka-python", "confluent"] | None = Field(
        None, description="Kafka client; unset: confluent, the faster one, where it is installed, else kafka-python."
    )
    session_timeout_s: float = Field(
        15, gt=0, allow_inf_nan=False, description="Seconds without heartbeats after which the group removes a member."
    )
    group_instance_id: str | None = Field(
        None,
        pattern=TOPIC_NAME,
        description="Static member id, unique in the group: a quick restart then moves no partition.",
    )
    metrics_port: int = Field(
        8010, ge=0, le=65535, description="Port of /metrics, /healthz and /readyz; 0: any free one."
    )

    @property
    def group(self) -> str:
        """The consumer group to join."""
        raise NotImplementedError

    @property
    def client(self) -> str:
        """`kafka_client`, or what it is if unset. Packages of confluent-kafka are built without Kerberos (GSSAPI)."""
        has_confluent = find_spec("confluent_kafka") is not None and self.sasl_mechanism != "GSSAPI"
        return self.kafka_client or ("confluent" if has_confluent else "kafka-python")

    @property
    def bad_records(self) -> str:
        """The policy for bad records: stop, skip or dead_letter."""
        return "dead_letter" if self.dead_letter_topic else self.on_bad_record

    RULES: ClassVar[Rules] = (
        (
            lambda s: s.kafka_client == "confluent" and find_spec("confluent_kafka") is None,
            needs("kafka_client confluent", "confluent-kafka", "fast"),
        ),
    )  # fmt: skip
