"""Settings of `streampca worker`."""

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from streampca.settings.base import Rules
from streampca.settings.consumer import ConsumerSettings
from streampca.settings.kafka import GroupSettings


class WorkerSettings(ConsumerSettings, GroupSettings):
    """Settings of `streampca worker`."""

    # The model. A checkpoint made with other values of these is refused.
    dimensions: int = Field(ge=1, le=10_000_000, description="Length d of every vector.")
    components: int = Field(ge=1, description="Number k of principal components to learn.")
    oversampling: int | None = Field(
        None,
        ge=0,
        description="Columns of C beyond the k components; unset: max(10, 3k/5), or the covariance up to d = 768.",
    )
    center: bool = Field(True, description="Whether to subtract the running mean.")
    half_life_messages: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Half-life of a message's weight, in messages; unset: nothing is forgotten.",
    )
    half_life_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Half-life of a message's weight, seconds of event time; unset: nothing is forgotten.",
    )
    dtype: Literal["float64", "float32"] | None = Field(
        None, description="Floating-point type of the model; unset: float32 where format is float32, else float64."
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
    keep_models: int = Field(100, ge=1, description="Number of published models kept.")

    @field_validator("start")
    @classmethod
    def _is_a_place(cls, start: str) -> str:
        if start not in ("earliest", "latest", "backfill"):
            datetime.fromisoformat(start)
        return start

    @property
    def start_at(self) -> str | int:
        """`start`, times in milliseconds since 1970."""
        return self.start if self.start.isalpha() else int(datetime.fromisoformat(self.start).timestamp() * 1000)

    @property
    def model_dtype(self) -> str:
        """`dtype`, or what it is if unset: what arrives in float32 has no more digits."""
        return self.dtype or ("float32" if self.format == "float32" else "float64")

    @property
    def group(self) -> str:
        """The consumer group to join."""
        return self.group_id

    RULES: ClassVar[Rules] = (
        (lambda s: s.components > s.dimensions,
         "components ({s.components}) cannot exceed dimensions ({s.dimensions})"),
        (
            lambda s: s.half_life_messages is not None and s.half_life_seconds is not None,
            "half_life_messages and half_life_seconds exclude each other: set one",
        ),
    )  # fmt: skip
