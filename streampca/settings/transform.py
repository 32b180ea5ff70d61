"""Settings of `streampca transform`."""

from importlib.util import find_spec
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from streampca.errors import needs
from streampca.settings.base import Rules
from streampca.settings.consumer import ConsumerSettings
from streampca.settings.kafka import TOPIC_NAME

EMITTED = ("coordinates", "residual", "score", "p", "reconstruction")


class TransformSettings(ConsumerSettings):
    """Settings of `streampca transform`; those that it shares with the worker have the same names."""

    output_topic: str = Field(
        pattern=TOPIC_NAME, description="Topic to write to, with at least as many partitions as the topic."
    )
    emit: str = Field(
        "coordinates,residual",
        description="Fields of an output, in order: coordinates, residual, score, p, reconstruction.",
    )
    output_format: Literal["json", "float32", "npy", "avro", "protobuf", "arrow"] = Field(
        "json", description="Format of outputs: json, float32, npy, avro, protobuf or arrow."
    )
    basis: Literal["principal", "whitened"] = Field(
        "principal", description="Coordinates in the data's units (principal), or with variance one (whitened)."
    )
    only_p_below: float | None = Field(
        None, gt=0, le=1, description="Write only outputs of records with a lower p-value; unset: all."
    )
    model_version: int | None = Field(None, ge=0, description="Model version to project with; unset: the newest.")
    transform_group_id: str = Field(
        "streampca-transform-<topic>", min_length=1, description="Consumer group of `streampca transform`."
    )
    metrics_port: int = Field(
        8020, ge=0, le=65535, description="Port of /metrics, /healthz and /readyz; 0: any free one."
    )

    @property
    def group(self) -> str:
        """The consumer group to join."""
        return self.transform_group_id

    @property
    def emitted(self) -> tuple[str, ...]:
        """The names in `emit`."""
        return tuple(name.strip() for name in self.emit.split(","))

    @field_validator("emit")
    @classmethod
    def _names_what_exists(cls, emit: str) -> str:
        names = [name.strip() for name in emit.split(",")]
        if len(set(names)) < len(names) or not set(names) <= set(EMITTED):
            raise ValueError(f"not a comma-separated choice of {', '.join(EMITTED)}")
        return emit

    RULES: ClassVar[Rules] = (
        (lambda s: s.output_topic in (s.topic, s.dead_letter_topic),
         "output_topic must be neither the topic itself nor the dead-letter topic"),
        (lambda s: s.output_format in ("avro", "protobuf") and s.schema_registry_url is None,
         "output_format {s.output_format} needs schema_registry_url"),
        (lambda s: s.output_format in ("avro", "protobuf") and s.format == "arrow",
         "output_format {s.output_format} holds one vector, and records of format arrow hold several"),
        (
            lambda s: s.output_format == "arrow" and find_spec("pyarrow") is None,
            needs("output_format arrow", "pyarrow", "arrow"),
        ),
    )  # fmt: skip
