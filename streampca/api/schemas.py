"""The shapes of requests and answers, for the OpenAPI page. Nothing is parsed with them: `bodies` does that, faster."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from streampca.pca.model import Basis
from streampca.stores.worker_status import WorkerStatus

Rows = list[list[float]]

_VERSION_ASKED = Field(None, ge=0, description="Version of the model; null or absent: the newest.")
_BASIS = Field(
    description="principal: in the data's units, along orthonormal axes. whitened: each coordinate with variance one.",
)
Version = Annotated[int, Field(ge=0, description="Version of the model that answered: messages learned until then.")]
Vectors = Annotated[Rows, Field(description="Vectors, each of the model's d dimensions.")]
Coordinates = Annotated[Rows, Field(description="Coordinates, k for each vector, in its order.")]
SquaredDistances = Annotated[
    list[float], Field(description="Squared distance of each vector from the components' plane.")
]


class Shape(BaseModel):
    """Requests take no other fields than these."""

    model_config = ConfigDict(extra="forbid")


class Error(BaseModel):
    """Every error."""

    error: str = Field(
        description="What was wrong, where, and how to mend it.", examples=["vectors[3][0] must be a number, not null"]
    )


class NotReadyError(Error):
    """Why no one should be sent here."""

    reasons: list[str]


class Ready(BaseModel):
    """A model is served, and it is young enough."""

    version: Version


class Alive(BaseModel):
    """The process answers."""

    status: str = Field(examples=["ok"])


class ProjectRequest(Shape):
    """Vectors to be projected."""

    vectors: Vectors
    basis: Annotated[Basis, _BASIS] = "principal"
    version: int | None = _VERSION_ASKED

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"vectors": [[1.0, 0.5, -2.0]], "basis": "principal", "version": None}]}
    )


class Projection(BaseModel):
    """Vectors in terms of the model."""

    version: Version
    coordinates: Coordinates
    residual: SquaredDistances

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"version": 50000, "coordinates": [[2.25, -0.5]], "residual": [0.01]}]}
    )


class ReconstructRequest(Shape):
    """Either coordinates, or vectors."""

    coordinates: Coordinates | None = None
    vectors: Vectors | None = None
    basis: Basis = Field("principal", description="Of the coordinates; means nothing for vectors.")
    version: int | None = _VERSION_ASKED

    model_config = ConfigDict(json_schema_extra={"examples": [{"coordinates": [[2.25, -0.5]]}]})


class Reconstruction(BaseModel):
    """Vectors as the components alone have them."""

    version: Version
    vectors: Vectors
    squared_error: Annotated[list[float] | None, Field(description="Of each vector; absent for coordinates.")] = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"version": 50000, "vectors": [[1.0, 0.5, -1.9]], "squared_error": [0.01]}]
        }
    )  # fmt: skip


class ModelInfo(BaseModel):
    """Everything about a model but its axes and its mean."""

    version: Version
    topic: str
    dimensions: PositiveInt = Field(description="d, the length of a vector.")
    components: PositiveInt = Field(description="k, the number of axes.")
    explained_variance: list[float] = Field(description="Along each axis, falling.")
    explained_variance_ratio: list[float] = Field(description="The same as a share of the total variance.")
    total_variance: float
    weight: float = Field(description="Effective number of messages: the count, or what forgetting leaves of it.")
    loss: float | None = Field(description="Mean squared residual, each message scored before it was learned.")
    loss_ratio: float | None = Field(description="The same over the mean squared norm.")
    loss_ewma: float | None = Field(description="The same ratio over the last 1000 messages or so.")
    rejected: int = Field(description="Records that could not be learned.")
    positions: dict[str, int] = Field(description="Next offset of each partition; every record before it is in.")
    first_timestamp_ms: int = Field(description="Of the records learned, since 1970; -1: unknown.")
    last_timestamp_ms: int
    published_at: float = Field(description="Seconds since 1970.")
    settings: dict[str, Any] = Field(description="Settings that shape the model.")


class ModelList(BaseModel):
    """The versions there are."""

    version: int | None = Field(description="The one that is served; null: none yet.")
    versions: list[int] = Field(description="All that can be asked for, rising.")


class HistoryPoint(BaseModel):
    """One version's figures."""

    version: Version
    published_at: float = Field(description="Seconds since 1970.")
    last_timestamp_ms: int = Field(description="Of the newest record learned, since 1970; -1: unknown.")
    loss_ewma: float | None = Field(description="‖r‖²/‖y‖² of the last 1000 messages or so, before they were learned.")
    loss_ratio: float | None = Field(description="The same over all messages.")
    explained_variance_ratio: float = Field(description="Share of the variance along all k axes together.")


class ModelHistory(BaseModel):
    """The versions that the store keeps, in the order in which they were published."""

    now: float = Field(description="Seconds since 1970, by the server's clock.")
    version: int | None = Field(description="The one that is served; null: none yet.")
    not_ready: list[str] = Field(description="Why /readyz says 503, in words; empty when it does not.")
    models: list[HistoryPoint]


class RecentProjections(BaseModel):
    """The vectors that were projected last, as two components of a model show them; never the vectors themselves."""

    version: Version
    components: list[PositiveInt] = Field(description="Which two, counted from 1.")
    coordinates: Rows = Field(description="Along these two, in the data's units, oldest first.")
    residual: Annotated[
        list[float], Field(description="Squared distance of each vector from the plane of all k components.")
    ]
    at: list[float] = Field(description="When each was projected, in seconds since 1970.")


class WorkerEntry(WorkerStatus):
    """A worker, as it reported last."""

    silent_s: float = Field(
        description="Seconds since that report, by the server's clock; every few seconds one comes."
    )


class WorkerList(BaseModel):
    """The workers of the topic that reported within the hour, by name."""

    now: float = Field(description="Seconds since 1970, by the server's clock.")
    workers: list[WorkerEntry]


class Components(BaseModel):
    """What is needed to project elsewhere: coordinates = (vector − mean)·componentsᵀ."""

    version: Version
    components: Rows = Field(description="k orthonormal axes of length d, by falling variance; signs are kept.")
    explained_variance: list[float]
    mean: list[float]
