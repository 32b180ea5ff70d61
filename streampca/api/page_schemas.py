"""The responses that the page at `/` needs besides the model: metrics over time, recent vectors, workers."""

from typing import Annotated

from pydantic import BaseModel, Field, PositiveInt

from streampca.api.schemas import P, Rows, Version
from streampca.stores.worker_status import WorkerStatus


class HistoryPoint(BaseModel):
    """The metrics of one version."""

    version: Version
    published_at: float = Field(description="Seconds since 1970.")
    last_timestamp_ms: int = Field(description="Of the newest record learned, since 1970; -1: unknown.")
    loss_ewma: float | None = Field(
        description="‖r‖²/‖y‖² over the last 1000 messages or so, each scored before it was learned."
    )
    loss_ratio: float | None = Field(description="The same ratio over all messages.")
    explained_variance_ratio: float = Field(description="Share of the variance along all k axes together.")


class HistoryResponse(BaseModel):
    """The metrics of all versions in the store, in the order in which they were published."""

    now: float = Field(description="Seconds since 1970, by the server's clock.")
    version: int | None = Field(description="The version in use; null: none yet.")
    not_ready: list[str] = Field(description="The reasons why /readyz answers 503; empty if it does not.")
    models: list[HistoryPoint]


class UnusualVector(BaseModel):
    """One of the most unusual vectors, and why it is."""

    at: float = Field(description="When it was projected, in seconds since 1970.")
    score: float | None = Field(description="As of `/v1/score`; null: beyond the range of float64.")
    p: float | None = Field(description="As of `/v1/score`.")
    dimensions: list[int] = Field(description="At most 3 dimensions, counted from 0, that contribute most to `spe`.")
    contributions: list[float | None] = Field(description="What they contribute, with the sign of the deviation.")


class RecentResponse(BaseModel):
    """The vectors projected most recently, along two components of a model; never the vectors themselves."""

    version: Version
    components: list[PositiveInt] = Field(description="The two components, counted from 1.")
    coordinates: Rows = Field(description="Along these two, in the data's units, the oldest vector first.")
    residual: Annotated[
        list[float], Field(description="Squared distance of each vector from the plane of all k components.")
    ]
    at: list[float] = Field(description="When each vector was projected, in seconds since 1970.")
    p: P | None
    worst: list[UnusualVector] = Field(
        description="Those of them with the highest scores, at most 5, the highest first."
    )


class WorkerReport(WorkerStatus):
    """The last report of a worker or a member of transform."""

    silent_s: float = Field(
        description="Seconds since that report, by the server's clock; they come every few seconds."
    )


class WorkersResponse(BaseModel):
    """The workers and members of transform that reported within the last hour, by name."""

    now: float = Field(description="Seconds since 1970, by the server's clock.")
    workers: list[WorkerReport]
