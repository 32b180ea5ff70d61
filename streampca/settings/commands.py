"""The settings of every command. `all_fields` lists them only after this module is imported.

Precedence: command-line options, `STREAMPCA_*` environment variables, the TOML file given by `--config` or
`STREAMPCA_CONFIG`, defaults. One environment and one file serve all commands.
"""

import re
from datetime import datetime
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PlainValidator, field_validator

from streampca.errors import needs
from streampca.settings.base import Rules, Settings, all_fields
from streampca.settings.kafka import DeadLetterSettings, FormatSettings, KafkaName, KafkaSettings, TopicSettings
from streampca.settings.pins import parse_version_or_pin
from streampca.settings.process import ListeningSettings, LogSettings, Port, StoreSettings

__all__ = ["LogSettings", "Settings", "StoreSettings", "all_fields"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Dimensions = Annotated[int, Field(ge=1, le=10_000_000)]

EMITTED = ("coordinates", "residual", "score", "p", "reconstruction")
_EMIT = re.compile("|".join([*EMITTED, "record", "contributions:[1-9][0-9]{0,5}"]))


def milliseconds_of(text: str) -> int:
    """Return the milliseconds since 1970 of a time in ISO 8601. Raises `ValueError`.

    A time without an offset from UTC is local time.
    """
    return int(datetime.fromisoformat(text).timestamp() * 1000)


class ConsumerSettings(StoreSettings, KafkaSettings, FormatSettings, DeadLetterSettings, ListeningSettings):
    """Settings that the worker and `streampca transform` share."""

    on_bad_record: Literal["stop", "skip"] = Field(
        "stop", description="What to do with bad records when no dead-letter topic is set."
    )
    on_offset_gap: Literal["fail", "earliest", "latest"] = Field(
        "fail", description="What to do when records disappeared before they were read."
    )
    session_timeout_s: Positive = Field(
        15, description="Seconds without heartbeats after which the group removes a member."
    )
    group_instance_id: KafkaName | None = Field(
        None, description="Static member id, unique in the group: a quick restart then moves no partition."
    )
    metrics_port: Port = Field(8010, description="Port of /metrics, /healthz and /readyz; 0: any free one.")

    @property
    def group(self) -> str:
        """The consumer group to join; "" for a reader that joins none."""
        return ""

    @property
    def bad_record_policy(self) -> str:
        """What happens to bad records: `on_bad_record`, or "dead_letter" if there is a dead-letter topic."""
        return "dead_letter" if self.dead_letter_topic else self.on_bad_record


class GroupSettings(Settings):
    group_id: str = Field("streampca-<topic>", min_length=1, description="Consumer group of the workers.")


class WorkerSettings(ConsumerSettings, GroupSettings):
    # The model. A checkpoint made with other values of these is refused.
    dimensions: Dimensions = Field(description="Length d of every vector.")
    components: int = Field(ge=1, description="Number k of principal components to learn.")
    oversampling: int | None = Field(
        None,
        ge=0,
        description="Columns learned beyond the k components; unset: 40 + max(10, 3k/5), or 10 up to d = 768.",
    )
    center: bool = Field(True, description="Whether to subtract the running mean.")
    standardize: bool = Field(
        False, description="Whether to divide each dimension by its standard deviation: for different units."
    )
    half_life_messages: Positive | None = Field(
        None, description="Half-life of a message's weight, in messages; unset: nothing is forgotten."
    )
    half_life_seconds: Positive | None = Field(
        None, description="Half-life of a message's weight, seconds of event time; unset: nothing is forgotten."
    )
    dtype: Literal["float64", "float32"] | None = Field(
        None, description="Floating-point type of the model; unset: float32 where it holds all of format, else float64."
    )
    missing: Literal["refuse", "impute"] = Field(
        "refuse", description="What to do with vectors that lack entries (null or NaN)."
    )

    start: str = Field(
        "earliest",
        description="Where partitions without a checkpoint begin: earliest, latest, a time (ISO 8601), or backfill.",
    )

    # Checkpoints and models.
    checkpoint_interval_s: float = Field(5, gt=0, description="Maximum time between checkpoints, and between models.")
    keep_models: int = Field(
        100, ge=1, description="Number of published models kept, beside pinned ones; they reach back to the first."
    )

    @field_validator("start")
    @classmethod
    def _check_start(cls, start: str) -> str:
        if start not in ("earliest", "latest", "backfill"):
            milliseconds_of(start)
        return start

    @property
    def start_at(self) -> str | int:
        """`start` as a word, or as milliseconds since 1970."""
        is_word = self.start.isalpha()
        return self.start if is_word else milliseconds_of(self.start)

    @property
    def model_dtype(self) -> str:
        """`dtype`; if it is unset, float32 for vectors that arrive as float32, otherwise float64."""
        return self.dtype or self.vector_dtype

    @property
    def group(self) -> str:
        return self.group_id

    RULES: ClassVar[Rules] = (
        (lambda s: s.components > s.dimensions,
         "components ({s.components}) cannot exceed dimensions ({s.dimensions})"),
        (lambda s: s.standardize and not s.center,
         "standardize divides by standard deviations about the mean, so it needs center=true"),
        (lambda s: s.half_life_messages is not None and s.half_life_seconds is not None,
         "half_life_messages and half_life_seconds exclude each other: set one"),
    )  # fmt: skip


class TransformSettings(ConsumerSettings):
    """Settings of `streampca transform`; those that it shares with the worker have the same names."""

    output_topic: KafkaName = Field(description="Topic to write to, with at least as many partitions as the topic.")
    emit: str = Field(
        "coordinates,residual",
        description="Fields of an output, in order: coordinates, residual, score, p, reconstruction, record, "
        "contributions:N.",
    )
    output_format: Literal["json", "float32", "npy", "avro", "protobuf", "arrow"] = Field(
        "json", description="Format of outputs: json, float32, npy, avro, protobuf or arrow."
    )
    basis: Literal["principal", "whitened"] = Field(
        "principal", description="Coordinates along orthonormal axes (principal), or with variance one (whitened)."
    )
    only_p_below: float | None = Field(
        None, gt=0, le=1, description="Write only outputs of records with a lower p-value; unset: all."
    )
    model_version: Annotated[
        int | str | None, PlainValidator(parse_version_or_pin, json_schema_input_type=int | str | None)
    ] = Field(None, description="Model version to project with, or the name of a pin; unset: the newest.")
    transform_group_id: str = Field(
        "streampca-transform-<topic>", min_length=1, description="Consumer group of `streampca transform`."
    )
    metrics_port: Port = Field(8020, description="Port of /metrics, /healthz and /readyz; 0: any free one.")

    @property
    def group(self) -> str:
        return self.transform_group_id

    @property
    def emitted(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.emit.split(","))

    @field_validator("emit")
    @classmethod
    def _check_emit(cls, emit: str) -> str:
        fields = [field.strip() for field in emit.split(",")]
        names = {field.split(":")[0] for field in fields}
        is_known = all(_EMIT.fullmatch(field) for field in fields)
        if not is_known or len(names) < len(fields):  # an unknown field, or the same field twice
            raise ValueError(f"not a comma-separated choice of {', '.join(EMITTED)}, record, contributions:N")
        return emit

    RULES: ClassVar[Rules] = (
        (lambda s: s.output_topic in (s.topic, s.dead_letter_topic),
         "output_topic must be neither the topic itself nor the dead-letter topic"),
        (lambda s: s.output_format in ("float32", "npy") and ("record" in s.emitted or "contributions" in s.emit),
         "output_format {s.output_format} holds only numbers, without names: emit record and contributions in json, "
         "avro, protobuf or arrow"),
        (lambda s: s.output_format in ("avro", "protobuf") and s.schema_registry_url is None,
         "output_format {s.output_format} needs schema_registry_url"),
        (lambda s: s.output_format in ("avro", "protobuf") and s.format == "arrow",
         "output_format {s.output_format} holds one vector, and records of format arrow hold several"),
        (lambda s: s.output_format == "arrow" and find_spec("pyarrow") is None,
         needs("output_format arrow", "pyarrow", "arrow")),
    )  # fmt: skip


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
