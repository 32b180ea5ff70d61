"""The requests and responses of the HTTP interface. They validate requests and document both.

Responses are serialized by orjson: pydantic would make a Python object of every number. Tests validate them.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, PositiveInt, WithJsonSchema

from streampca.pca.arrays import Array
from streampca.pca.drift import Cause
from streampca.pca.model import Basis
from streampca.settings.pins import PIN_NAME, parse_version_or_pin
from streampca.sidecar.parsing import validate_rows


def _describe_rows(kind: str | list[str]) -> WithJsonSchema:
    """Describe an array of arrays of this type, or of these types, in JSON Schema."""
    return WithJsonSchema({"type": "array", "items": {"type": "array", "items": {"type": kind}}})


Rows = list[list[float]]
RowsArray = Annotated[Array, PlainValidator(validate_rows)]  # its errors say more, and it is 3 times as fast as Rows
VectorsArray = Annotated[RowsArray, _describe_rows(["number", "null"])]
VersionNumber = Annotated[int, Field(ge=0, lt=2**63)]
_VERSION_OR_PIN: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    {"type": "string", "pattern": f"^{PIN_NAME}$"},
]

# A version, or the name of a pin; "latest" becomes None, the newest version.
PathVersion = Annotated[
    int | str | None, PlainValidator(parse_version_or_pin), WithJsonSchema({"anyOf": _VERSION_OR_PIN})
]
AnyVersion = Annotated[PathVersion, WithJsonSchema({"anyOf": [*_VERSION_OR_PIN, {"type": "null"}]})]

_VECTORS = "Vectors, each of the model's d dimensions; entries may be null if it was learned with missing=impute."
_RECORDS = (
    "The vectors as objects, in place of `vectors`: a number for each name of the model; other names are ignored."
)
_COORDINATES = "The k coordinates of each vector, in the order of the vectors."

Version = Annotated[int, Field(ge=0, description="Version of the model used: the number of messages it has learned.")]
CoordinatesBasis = Annotated[Basis, Field(description="The basis of the coordinates; ignored for vectors.")]
SquaredDistances = Annotated[
    list[float],
    Field(
        description="Squared distance of each vector from the subspace of the components, in the data's units; in "
        "standard deviations if the model was learned with `standardize`."
    ),
]
ScoreName = Literal["t2", "spe", "score", "p", "p_t2", "p_spe"]
SCORES: tuple[ScoreName, ...] = get_args(ScoreName)
ScoreFields = Annotated[
    list[ScoreName],
    Field(max_length=len(SCORES)),
    BeforeValidator(lambda names: names.split(",", len(SCORES)) if isinstance(names, str) else names),
]
T2 = Annotated[list[float], Field(description="Hotelling's T², unusual within the subspace: k on average.")]
Score = Annotated[
    list[float], Field(description="T² + SPE/σ², with σ² the mean variance outside the subspace: d on average.")
]
P = Annotated[
    list[float],
    Field(
        description="Share of recent messages that score at least as high, each scored before it was learned: `p` by "
        "`score`, `p_t2` by `t2`, and `p_spe` by `spe`. Null if the model has no past scores."
    ),
]


class VersionResponse(BaseModel):
    """An answer by one version of the model."""

    version: Version


class RowsRequest(BaseModel):
    """The fields of every request with rows of numbers."""

    version: AnyVersion = Field(
        None, description="Version of the model, or the name of a pin; the newest if it is latest or absent."
    )

    model_config = ConfigDict(extra="forbid")


class VectorsRequest(RowsRequest):
    """Vectors, either as arrays or as records."""

    vectors: VectorsArray | None = Field(None, description=_VECTORS)
    records: list[dict[str, Any]] | None = Field(None, description=_RECORDS)


class ProjectQuery(RowsRequest):
    """Options of a projection."""

    basis: Basis = Field(
        "principal",
        description="principal: orthonormal axes, in the data's units, or with `standardize` in standard deviations. "
        "whitened: coordinates scaled to variance one.",
    )
    fields: ScoreFields = Field(
        default=[], description="Scores to add to the answer, named as in the answer of /v1/score: " + ", ".join(SCORES)
    )


class ProjectRequest(VectorsRequest, ProjectQuery):
    """Vectors to project."""


class ProjectResponse(VersionResponse):
    """Coordinates of vectors in the basis of a model, and the scores that `fields` of the request names."""

    coordinates: Rows = Field(description=_COORDINATES)
    residual: SquaredDistances
    t2: T2 | None = None
    spe: SquaredDistances | None = None
    score: Score | None = None
    p: P | None = None
    p_t2: P | None = None
    p_spe: P | None = None


class ReconstructQuery(RowsRequest):
    """Options of a reconstruction."""

    basis: CoordinatesBasis = "principal"
    of: Literal["coordinates", "vectors"] | None = Field(
        None, description="What the body holds: a binary body needs it, and the fields of JSON must agree with it."
    )


class ReconstructRequest(VectorsRequest):
    """Either coordinates or vectors to reconstruct."""

    basis: CoordinatesBasis = "principal"
    coordinates: Annotated[RowsArray, _describe_rows("number")] | None = Field(None, description=_COORDINATES)


class ReconstructResponse(VersionResponse):
    """Vectors as the components reconstruct them."""

    vectors: Rows = Field(description="Vectors, each of the model's d dimensions, in the data's units.")
    squared_error: list[float] | None = Field(
        None, description="Squared error of each vector, in the units of `residual`; absent if coordinates were sent."
    )


class ScoreQuery(RowsRequest):
    """Options of scoring."""

    contributions: Annotated[int, Field(ge=0)] = Field(
        0, description="How many dimensions to return for each vector: those that contribute most; at most d."
    )


class ScoreRequest(VectorsRequest, ScoreQuery):
    """Vectors to score."""


class ScoreResponse(VersionResponse):
    """Scores of vectors."""

    t2: T2
    spe: SquaredDistances
    score: Score
    p: P | None
    p_t2: P | None
    p_spe: P | None
    t2_dimensions: list[list[int]] | None = Field(
        None, description="Dimensions, counted from 0, that contribute most to T²; only if `contributions` is given."
    )
    t2_names: list[list[str]] | None = Field(None, description="Names of `t2_dimensions`, if the model has names.")
    t2_contributions: Rows | None = Field(
        None, description="Contributions of `t2_dimensions`; those of all d dimensions sum to T²."
    )
    spe_dimensions: list[list[int]] | None = Field(None, description="Dimensions that contribute most to `spe`.")
    spe_names: list[list[str]] | None = Field(None, description="Names of `spe_dimensions`, if the model has names.")
    spe_contributions: Rows | None = Field(
        None,
        description="Contributions of `spe_dimensions`, with the sign of the deviation; the absolute values of all d "
        "dimensions sum to `spe`.",
    )
    labels: list[str] | None = Field(
        None, description="Labels of `records`, if `contributions` and the setting `label` are given; empty: none."
    )


class ReadyResponse(VersionResponse):
    """A model is loaded and not too old."""


class HealthResponse(BaseModel):
    """The process responds."""

    status: str = Field(examples=["ok"])


class DriftResponse(BaseModel):
    """How far the newest model has moved from a pinned one, in the newest model's units."""

    version: Version
    angle_radians: float = Field(description="The largest principal angle between their axes, radians.")
    explained_variance_ratio: float = Field(
        description="Share of new messages' variance along the pinned axes, as the newest model expects it."
    )
    newest_explained_variance_ratio: float = Field(description="The same along the newest model's own axes.")
    mean_shift_ratio: float | None = Field(
        description="Squared shift of the mean, divided by the pinned model's total variance; null if that is 0."
    )
    outdated: list[Cause] = Field(
        description="What has moved so far that the pinned model no longer fits the stream; empty if it fits."
    )


class ModelResponse(VersionResponse):
    """Everything about a model except its axes and its mean."""

    topic: str
    dimensions: PositiveInt = Field(description="d, the length of a vector.")
    names: list[str] | None = Field(description="Names of the dimensions, in order; null: they have none.")
    components: PositiveInt = Field(description="k, the number of axes.")
    explained_variance: list[float] = Field(
        description="Variance along each axis, in descending order. If `settings` have `standardize`, all variances, "
        "losses and residuals are in squared standard deviations."
    )
    explained_variance_ratio: list[float] = Field(description="The same as a share of the total variance.")
    total_variance: float
    subspace_error: float | None = Field(
        description="Estimated sampling error of the axes' subspace: the expected sum of the squared sines of the "
        "angles between it and the subspace of the stream's distribution, 0 to k. Null with fewer than four partitions."
    )
    axis_errors: list[float] | None = Field(
        description="Estimated standard error of each axis: an angle in radians, at most π/2."
    )
    weight: float = Field(description="Effective number of messages: with a half-life, older messages count for less.")
    loss: float | None = Field(description="Mean squared residual, each message scored before it was learned.")
    loss_ratio: float | None = Field(description="The loss divided by the mean squared norm.")
    loss_ewma: float | None = Field(description="The loss ratio over the last 1000 messages or so.")
    rejected: int = Field(description="Number of records that could not be learned.")
    positions: dict[str, int] = Field(description="Next offset of each partition; all records before it are learned.")
    first_timestamp_ms: int = Field(description="Of the oldest record learned, since 1970; -1: unknown.")
    last_timestamp_ms: int = Field(description="Of the newest record learned, since 1970; -1: unknown.")
    published_at: float = Field(description="Seconds since 1970.")
    settings: dict[str, Any] = Field(description="The settings that shape the model.")
    drift: dict[str, DriftResponse] = Field(
        description="How far the newest model has moved from each pinned one, by name; empty for an older version."
    )


class ModelsResponse(BaseModel):
    """The versions in the store."""

    version: int | None = Field(description="The version in use; null: none yet.")
    versions: list[int] = Field(description="All versions, in ascending order.")
    pins: dict[str, int] = Field(description="Versions that are pinned, by name.")


class ComponentsResponse(VersionResponse):
    """All that a client needs to project by itself: coordinates = (scale·(vector − mean))·componentsᵀ."""

    components: Rows = Field(description="k orthonormal axes of length d, by falling variance; signs never flip.")
    explained_variance: list[float] = Field(description="In the units of the coordinates, squared.")
    mean: list[float] = Field(description="In the data's units.")
    names: list[str] | None = Field(description="Names of the dimensions, in order; null: they have none.")
    scale: list[float] | None = Field(
        description="One over the standard deviation of each dimension, 1 for a constant one. Null: all are 1, the "
        "model was learned without `standardize`."
    )
