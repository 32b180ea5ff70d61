"""The settings of every command. `collect_fields` lists them only after this module is imported.

Precedence: command-line options, `STREAMPCA_*` environment variables, the TOML file given by `--config` or
`STREAMPCA_CONFIG`, defaults. One environment and one file serve all commands.
"""

import re
import socket
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, PlainValidator, field_validator

from streampca.errors import describe_missing_package
from streampca.pca.missing_values import normalize_missing_values
from streampca.settings.base import Rules, Settings, collect_fields
from streampca.settings.kafka import (
    DeadLetterSettings,
    FormatSettings,
    KafkaName,
    KafkaSettings,
    LabelSettings,
    TopicSettings,
)
from streampca.settings.pins import parse_version_or_pin
from streampca.settings.plug_ins import FORMATS_WITH_SCHEMA, load_format
from streampca.settings.process import ListeningSettings, LogSettings, Port, StoreSettings

__all__ = ["LogSettings", "Settings", "StoreSettings", "collect_fields"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Dimensions = Annotated[int, Field(ge=1, le=10_000_000)]

# Fields of transform's outputs, besides the record itself and contributions.
EMITTED = ("coordinates", "residual", "score", "p", "reconstruction")
_EMIT = re.compile("|".join([*EMITTED, "record", "contributions:[1-9][0-9]{0,5}"]))

_OutputFormat = Literal["json", "float32", "npy", "avro", "protobuf", "arrow"]  # beside those of plug-ins

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_iso_time_ms(text: str) -> int:
    """Parse a time in ISO 8601 with its zone to milliseconds since 1970.

    Raises `ValueError` that says what to write instead.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-01-31T12:00+02:00") from None
    if time.tzinfo is None:
        raise ValueError(f"the time {text!r} has no zone: write {time.isoformat()}Z if it is in UTC")
    # The zone is at the end, so a fraction at the end is the zone's. `fromisoformat` may read such a zone as UTC.
    has_fraction_in_zone = re.search(r"[.,][0-9]+$", text)
    if has_fraction_in_zone:
        raise ValueError(f"the zone of {text!r} has a fraction of a second: write hours and minutes, such as +02:00")
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _parse_start(start: str) -> str | int:
    """Return where reading begins: a word such as "earliest", or a time in milliseconds since 1970.

    Raises `ValueError` for any other text.
    """
    is_word = start.isalpha()
    return start if is_word else parse_iso_time_ms(start)


class ConsumerSettings(
    StoreSettings, KafkaSettings, FormatSettings, DeadLetterSettings, ListeningSettings, LabelSettings
):
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
    rack: str | None = Field(
        None, description="Rack or zone of this process: it reads from a replica there (KIP-392); unset: from leaders."
    )
    metrics_port: Port = Field(8010, description="Port of /metrics, /healthz and /readyz; 0: any free one.")

    ROLE: ClassVar[str] = "reader"  # part of the client's id

    @property
    def client_id(self) -> str:
        """The name by which brokers know the client: its role, and the member or the host."""
        return f"streampca-{self.ROLE}-{self.group_instance_id or socket.gethostname()}"

    @property
    def group(self) -> str:
        """The consumer group to join; "" for a reader of a topic that does not join a group."""
        return ""

    @property
    def bad_record_policy(self) -> str:
        """What happens to bad records: `on_bad_record`, or "dead_letter" if there is a dead-letter topic."""
        return "dead_letter" if self.dead_letter_topic else self.on_bad_record


class GroupSettings(Settings):
    group_id: str = Field("streampca-<topic>", min_length=1, description="Consumer group of the workers.")


class TransformGroupSettings(Settings):
    transform_group_id: str = Field(
        "streampca-transform-<topic>", min_length=1, description="Consumer group of `streampca transform`."
    )


class WorkerSettings(ConsumerSettings, GroupSettings):
    ROLE: ClassVar[str] = "worker"

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
    missing_values: Annotated[str, PlainValidator(normalize_missing_values, json_schema_input_type=str | float)] = (
        Field("", description="Numbers that mean missing, comma-separated, such as -200, -9999.")
    )

    start: str = Field(
        "earliest",
        description="Where partitions without a checkpoint begin: earliest, latest, backfill, or a time with its zone.",
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
            parse_iso_time_ms(start)  # raises if it is not a time either
        return start

    @property
    def start_at(self) -> str | int:
        """Where partitions without a checkpoint begin: a word, or a time in milliseconds since 1970."""
        return _parse_start(self.start)

    @property
    def model_dtype(self) -> str:
        """Type of the model: `dtype`; if that is unset, the type of decoded vectors."""
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


def _emits_more_than_numbers(emit: str) -> bool:
    """Return whether outputs have fields that are not only numbers: the record, or contributions."""
    return "record" in emit or "contributions" in emit


def _is_plug_in_without_names(output_format: str) -> bool:
    """Return whether a format is a plug-in's, and its values hold only numbers, without names."""
    module = load_format(output_format)
    is_built_in = module is None
    if is_built_in:
        return False
    writer = getattr(module, f"{output_format.title()}Writer")
    return not getattr(writer, "holds_names", False)


class TransformSettings(ConsumerSettings, TransformGroupSettings):
    """Settings of `streampca transform`."""

    ROLE: ClassVar[str] = "transform"

    output_topic: KafkaName = Field(description="Topic to write to, with at least as many partitions as the topic.")
    emit: str = Field(
        "coordinates,residual",
        description="Fields of an output, in order: coordinates, residual, score, p, reconstruction, record, "
        "contributions:N.",
    )
    output_format: _OutputFormat | str = Field(
        "json",
        description="Format of outputs, or the name of a plug-in: json, float32, npy, avro, protobuf or arrow.",
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
    transform_start: str | None = Field(
        None,
        description="Where partitions begin for which the group has committed no offset: outputs (behind the last "
        "output's record), earliest, latest, or a time (ISO 8601); unset: earliest, if nothing can be written twice.",
    )
    metrics_port: Port = Field(8020, description="Port of /metrics, /healthz and /readyz; 0: any free one.")

    @field_validator("output_format")
    @classmethod
    def _check_output_format(cls, name: str) -> str:
        is_plug_in = load_format(name) is not None
        built_in = get_args(_OutputFormat)
        if name not in built_in and not is_plug_in:
            raise ValueError(f"neither {', '.join(built_in)} nor offered by an installed package")
        return name

    @field_validator("transform_start")
    @classmethod
    def _check_transform_start(cls, start: str | None) -> str | None:
        if start not in (None, "outputs", "earliest", "latest"):
            parse_iso_time_ms(start)  # raises if it is not a time either
        return start

    @property
    def transform_start_at(self) -> str | int | None:
        """Where partitions without a committed offset begin; None if the setting is unset.

        A number is a time in milliseconds since 1970.
        """
        return None if self.transform_start is None else _parse_start(self.transform_start)

    @property
    def group(self) -> str:
        return self.transform_group_id

    @property
    def emitted(self) -> tuple[str, ...]:
        """The fields of an output, in order."""
        return tuple(name.strip() for name in self.emit.split(","))

    @field_validator("emit")
    @classmethod
    def _check_emit(cls, emit: str) -> str:
        fields = [field.strip() for field in emit.split(",")]
        are_known = all(_EMIT.fullmatch(field) for field in fields)
        names = {field.split(":")[0] for field in fields}  # contributions:3 and contributions:5 have the same name
        has_repetition = len(names) < len(fields)
        if not are_known or has_repetition:
            raise ValueError(f"not a comma-separated choice of {', '.join(EMITTED)}, record, contributions:N")
        return emit

    RULES: ClassVar[Rules] = (
        (lambda s: s.output_topic in (s.topic, s.dead_letter_topic),
         "output_topic must be neither the topic itself nor the dead-letter topic"),
        (lambda s: s.output_format in ("float32", "npy") and _emits_more_than_numbers(s.emit),
         "output_format {s.output_format} holds only numbers, without names: emit record and contributions in json, "
         "avro, protobuf or arrow"),
        (lambda s: _is_plug_in_without_names(s.output_format) and _emits_more_than_numbers(s.emit),
         "output_format {s.output_format} holds only numbers, since its writer does not set holds_names: emit record "
         "and contributions in json, avro, protobuf or arrow"),
        (lambda s: s.output_format in FORMATS_WITH_SCHEMA and s.schema_registry_url is None,
         "output_format {s.output_format} needs schema_registry_url"),
        (lambda s: s.output_format in FORMATS_WITH_SCHEMA and s.format == "arrow",
         "output_format {s.output_format} holds one vector, and records of format arrow hold several"),
        (lambda s: s.output_format == "arrow" and find_spec("pyarrow") is None,
         describe_missing_package("pyarrow", "arrow", needed_by="output_format arrow")),
    )  # fmt: skip


class ServeSettings(StoreSettings, ListeningSettings, LabelSettings):
    port: Port = Field(8000, description="Port to listen on; 0: any free one.")
    allowed_hosts: str | None = Field(
        None,
        pattern=r"^(\*|(\*\.)?[^*,/\s]+)(\s*,\s*(\*|(\*\.)?[^*,/\s]+))*$",
        description="Host names that requests may be for, comma-separated; *: any.",
    )
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="Maximum size of a request body.")
    model_max_age_s: float | None = Field(
        None,
        gt=0,
        description="Age of the newest model above which /readyz answers 503, unless workers report that it has every "
        "record; unset: no limit.",
    )


class ProduceSettings(TopicSettings, KafkaSettings, FormatSettings, LogSettings):
    dimensions: Dimensions | None = Field(None, description="Length d of every vector.")


class OutputTopicSettings(Settings):
    output_topic: KafkaName | None = Field(
        None, description="Topic to write to, with at least as many partitions as the topic."
    )


class CreateTopicsSettings(DeadLetterSettings, KafkaSettings, OutputTopicSettings, LogSettings):
    """Settings of `streampca create-topics`."""


class ResetSettings(StoreSettings, KafkaSettings, GroupSettings, TransformGroupSettings, OutputTopicSettings):
    """Settings of `streampca reset`."""


class DeadLettersSettings(DeadLetterSettings, KafkaSettings, LogSettings):
    dead_letter_topic: KafkaName = Field(description="Dead-letter topic, for records that are rejected.")
