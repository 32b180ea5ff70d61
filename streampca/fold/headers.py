"""The headers of our files, as schemas: a file with a right digest may still hold wrong values."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
Milliseconds = Annotated[int, Field(ge=-1, lt=2**63)]  # since 1970; -1: unknown
Finite = Annotated[float, Field(allow_inf_nan=False)]
Error = Annotated[Finite, Field(ge=0)]
Settings = dict[str, str | bool | int | float | None]
PartitionName = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Positions = dict[PartitionName, Annotated[int, Field(ge=-1, lt=2**63)]]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")  # numbers are numbers and texts are texts


class EventTimeHeader(_Strict):
    now_ms: Milliseconds
    recent: Annotated[tuple[Annotated[Milliseconds, Field(ge=0)], ...], Field(max_length=62, strict=False)]
    ahead: Count


class StatsHeader(_Strict):
    learned: Count
    rejected: dict[str, Count]
    gap: Count
    with_loss: Count
    loss: Finite
    norm: Finite
    loss_ewma: Finite
    norm_ewma: Finite
    first_ms: Milliseconds
    last_ms: Milliseconds


class LastRecordHeader(_Strict):
    offset: Count
    leader_epoch: Annotated[int, Field(ge=0, lt=2**31)]


class CheckpointHeader(_Strict):
    kind: str
    format_version: int
    numpy: str
    topic: str
    topic_id: str
    partition: Count
    next_offset: Annotated[int, Field(ge=-1, lt=2**63)]
    last_record: LastRecordHeader | None
    settings: Settings
    weight: Annotated[Finite, Field(ge=0)]
    total_variance: Annotated[Finite, Field(ge=0)]
    count: Count
    shortened: Count
    gaps: Annotated[Finite, Field(ge=0, le=1.000001)] | None
    event_time: EventTimeHeader
    stats: StatsHeader
    until: Annotated[str, Field(pattern=r"^(-?\d{1,18}|\d{1,10}:\d{1,19}(,\d{1,10}:\d{1,19})*)?$")] = ""


class ModelHeader(_Strict):
    kind: str
    format_version: int
    version: Count
    topic: str
    topic_id: str
    positions: Positions
    rejected: Count
    loss: Finite | None
    loss_ratio: Finite | None
    loss_ewma: Finite | None
    partition_losses: dict[PartitionName, Error] = {}  # earlier files lack it
    first_timestamp_ms: Milliseconds
    last_timestamp_ms: Milliseconds
    published_at: Finite
    settings: Settings
    total_variance: Finite
    weight: Finite
    subspace_error: Error | None
    axis_errors: list[Error] | None
