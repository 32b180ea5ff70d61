"""Computes answers: plain functions of a model and a parsed request, without HTTP and without a clock."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import partition_name
from streampca.formats import npy
from streampca.pca.angles import principal_angles
from streampca.pca.arrays import Array
from streampca.pca.model import Basis, Model, Projected
from streampca.sidecar.errors import Problem, RequestError, invalid, too_large
from streampca.sidecar.parsing import Limits, check_rows, pack_records
from streampca.sidecar.schemas import (
    ProjectRequest,
    ReconstructRequest,
    ScoreRequest,
    VectorsRequest,
)

_MAX_COMPARED_COMPONENTS = 100  # of each of two models, since the work grows with their square


class Answer(NamedTuple):
    """An answer before it is encoded."""

    version: int  # of the model
    fields: dict[str, Any]
    vector_count: int = 0  # how many vectors the request has, for the metrics
    projected: Projected | None = None  # vectors for the page to display; None if it displays none of this request


def project(published: PublishedModel, request: ProjectRequest, limits: Limits) -> Answer:
    """Return the coordinates of vectors, their residuals, and the scores that the request asks for.

    A residual is the squared distance of a vector from the plane of the components.
    """
    projected = _project_request(published, request, limits)
    coordinates = projected.in_basis(request.basis)
    _check_finite(coordinates, projected.residual, row_field=_find_row_field(request))
    answer_fields = {"coordinates": coordinates, "residual": projected.residual}
    if request.fields:
        for name, values in _compute_scores(projected, _find_row_field(request)).items():
            if name in request.fields:
                answer_fields[name] = values
    return _build_answer(published, answer_fields, vector_count=len(projected.vectors), projected=projected)


def score(published: PublishedModel, request: ScoreRequest, limits: Limits) -> Answer:
    """Return the scores and p-values of vectors, and as many contributing dimensions as the request asks for."""
    projected = _project_request(published, request, limits)
    answer_fields = _compute_scores(projected, _find_row_field(request))
    count = min(request.contributions, published.model.dimensions)
    if count > 0:
        answer_fields |= _compute_contributions(published, projected, count, limits)
    return _build_answer(published, answer_fields, vector_count=len(projected.vectors), projected=projected)


def _compute_contributions(
    published: PublishedModel, projected: Projected, count: int, limits: Limits
) -> dict[str, Any]:
    """Return the `count` dimensions that contribute most to each vector's T² and SPE.

    Raises `RequestError` if the answer would be too long.
    """
    names = published.names
    _limit_contributions(count, len(projected.vectors), names, limits)
    t2_and_spe_dimensions, contributions = projected.contributions(count)
    t2_dimensions, spe_dimensions = t2_and_spe_dimensions
    fields: dict[str, Any] = {}
    for score_name, dimensions, values in (
        ("t2", t2_dimensions, contributions.t2),
        ("spe", spe_dimensions, contributions.spe),
    ):
        fields[f"{score_name}_dimensions"] = dimensions
        fields[f"{score_name}_contributions"] = values
        if names:
            fields[f"{score_name}_names"] = [[names[j] for j in row] for row in dimensions.tolist()]
    return fields


def _limit_contributions(count: int, vector_count: int, names: Sequence[str] | None, limits: Limits) -> None:
    """Raise `RequestError` if an answer with `count` contributions to both scores of each vector is too long.

    Eight letters of a name count as a number.
    """
    longest_name = max(len(name) for name in names) if names else 0
    # A contribution to T² and one to SPE take four numbers (two dimensions, two values) and perhaps two names.
    numbers_per_pair = 4 + (2 * longest_name) // 8
    numbers_if_count_is_1 = numbers_per_pair * vector_count
    if count * numbers_if_count_is_1 > limits.numbers:
        max_count = limits.numbers // numbers_if_count_is_1
        raise too_large(f"the answer is too long: ask for at most {max_count} contributions", "numbers")


def _project_request(published: PublishedModel, request: VectorsRequest, limits: Limits) -> Projected:
    """Project the vectors or the records of a request. Raises `RequestError`."""
    _require_one_row_field(request)
    if request.vectors is not None:
        field = "vectors"
        rows = request.vectors
        column_names = None
    elif published.names is None:
        raise invalid("this model has no names of dimensions, so it takes no records: send arrays, in their order")
    else:
        field = "records"
        rows = pack_records(request.records or [], published.names, impute=published.impute)
        column_names = published.names
    vectors = check_rows(
        rows,
        field,
        published.model.dimensions,
        limits,
        impute=published.impute,
        missing_values=published.missing_values,
        entry_names=column_names,
    )
    return published.project(vectors)


def _require_one_row_field(request: VectorsRequest) -> None:
    """Raise `RequestError` unless the request has its rows in exactly one field."""
    allowed = ["vectors", "records"]
    if isinstance(request, ReconstructRequest):
        allowed.insert(0, "coordinates")
    given = [name for name in allowed if getattr(request, name) is not None]
    if len(given) != 1:
        raise invalid(f"give one of {', '.join(allowed)}")


def _find_row_field(request: VectorsRequest) -> str:
    """Return the field of a request that holds its rows, which errors name."""
    return "records" if request.vectors is None else "vectors"


def _compute_scores(projected: Projected, row_field: str) -> dict[str, Any]:
    """Return the scores and p-values of vectors; the p-values are None if the model has no past scores.

    Raises `RequestError` if a score exceeds float64.
    """
    _check_finite(*projected.scores, row_field=row_field)
    p_values = projected.p_values
    fields: dict[str, Any] = projected.scores._asdict()
    fields["p"] = p_values.score if p_values else None
    fields["p_t2"] = p_values.t2 if p_values else None
    fields["p_spe"] = p_values.spe if p_values else None
    return fields


@np.errstate(all="ignore")  # an overflow makes a number infinite, which `_check_finite` refuses
def reconstruct(published: PublishedModel, request: ReconstructRequest, limits: Limits) -> Answer:
    """Return the vectors that belong to coordinates, or the reconstructions of vectors."""
    if request.coordinates is not None:
        _require_one_row_field(request)  # refuses vectors or records beside the coordinates
        return _reconstruct_coordinates(published, request.coordinates, request.basis, limits)
    projected = _project_request(published, request, limits)
    row_field = _find_row_field(request)
    reconstructed = reconstruct_projected(projected, row_field)  # raises if a number is not finite
    squared_error = projected.residual
    _check_finite(squared_error, row_field=row_field)
    fields = {"vectors": reconstructed, "squared_error": squared_error}
    return _build_answer(published, fields, vector_count=len(projected.vectors))


def _reconstruct_coordinates(published: PublishedModel, rows: Array, basis: Basis, limits: Limits) -> Answer:
    """Return the vectors that belong to rows of coordinates. Raises `RequestError`."""
    model = published.model
    coordinates = check_rows(rows, "coordinates", model.n_components, limits).astype(np.float64, copy=False)
    if len(coordinates) * model.dimensions > limits.numbers:
        max_rows = limits.numbers // model.dimensions
        raise too_large(f"the answer to {len(coordinates)} rows is too long: send at most {max_rows}", "numbers")
    vectors = model.reconstruct(coordinates, basis)
    _check_finite(vectors, row_field="coordinates")
    return _build_answer(published, {"vectors": vectors}, vector_count=len(coordinates))


@np.errstate(all="ignore")  # an overflow makes a number infinite, which `_check_finite` refuses
def reconstruct_projected(projected: Projected, row_field: str = "vectors") -> Array:
    """Reconstruct vectors (n, d) from their coordinates. Raises `RequestError` if they exceed float64."""
    vectors = projected.model.reconstruct(projected.coordinates)
    _check_finite(vectors, row_field=row_field)
    return vectors


def _check_finite(*results: Array, row_field: str) -> None:
    """If a result of a row is not finite, raise `RequestError`, which names the first such row of the request.

    `row_field` is the field of the request that holds the rows.
    """
    for result in results:
        is_finite = np.isfinite(result)
        if not is_finite.all():
            first_row = int(np.argwhere(~is_finite)[0, 0])
            raise invalid(f"{row_field}[{first_row}] holds values too large: the result exceeds the range of float64")


def _build_answer(
    published: PublishedModel, fields: dict[str, Any], *, vector_count: int = 0, projected: Projected | None = None
) -> Answer:
    """Return an answer with the version of the model and these fields.

    Arrays become contiguous, and their real numbers float64, since the JSON encoder takes nothing else.
    """
    encodable: dict[str, Any] = {"version": published.version}
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            dtype = np.float64 if value.dtype.kind == "f" else value.dtype
            value = np.ascontiguousarray(value, dtype)
        encodable[name] = value
    return Answer(version=published.version, fields=encodable, vector_count=vector_count, projected=projected)


def describe_model(published: PublishedModel, drift: Mapping[str, Mapping[str, Any]]) -> Answer:
    """Return the fields of `ModelResponse`. The keys of `drift` are the names of pins."""
    model = published.model
    stats = published.stats
    positions = {partition_name(partition): position for partition, position in sorted(published.positions.items())}
    fields: dict[str, Any] = {
        "topic": published.topic,
        "dimensions": model.dimensions,
        "names": published.names,
        "explained_variance": model.explained_variance,
        "explained_variance_ratio": model.explained_variance_ratio,
        "total_variance": model.total_variance,
        "subspace_error": published.subspace_error,
        "axis_errors": published.axis_errors,
        "weight": model.weight,
        "loss": stats.loss,
        "loss_ratio": stats.loss_ratio,
        "loss_ewma": stats.loss_ewma,
        "rejected": stats.rejected,
        "first_timestamp_ms": stats.first_timestamp_ms,
        "last_timestamp_ms": stats.last_timestamp_ms,
        "published_at": published.published_at,
        "settings": published.settings,
        "components": model.n_components,
        "positions": positions,
        "drift": drift,
    }
    return _build_answer(published, fields)


def describe_components(published: PublishedModel, limits: Limits) -> Answer:
    """Return the axes, and the other arrays that a client needs to project vectors by itself.

    Raises `RequestError` if the axes have too many numbers for JSON.
    """
    model = published.model
    if model.components.size > limits.numbers:
        raise RequestError(
            Problem.TOO_LONG_FOR_JSON,
            f"{model.components.size} numbers are too many for JSON: Accept application/x-npy",
        )
    fields = {name: getattr(model, name) for name in ("components", "explained_variance", "mean", "scale")}
    return _build_answer(published, fields | {"names": published.names})


def draw_example(published: PublishedModel, rng: np.random.Generator, limits: Limits) -> Answer:
    """Draw a vector with the mean and the variances of the model.

    Raises `RequestError` if the vector has too many numbers for JSON.
    """
    model = published.model
    if model.dimensions > limits.numbers:
        raise RequestError(Problem.TOO_LONG_FOR_JSON, f"{model.dimensions} numbers are too many for an example in JSON")
    coordinates = rng.standard_normal(model.n_components) * np.sqrt(model.explained_variance)
    noise = rng.standard_normal(model.dimensions) * np.sqrt(model.noise_variance)
    noise_outside = noise - noise @ model.components.T @ model.components  # orthogonal to the components
    centred_vector = coordinates @ model.components + noise_outside
    vector = model.uncentre(centred_vector)
    fields = {"vector": vector, "coordinates": coordinates, "mean": model.mean, "scale": model.scale}
    return _build_answer(published, fields | {"names": published.names})


def encode_components(published: PublishedModel) -> list[bytes | memoryview]:
    """Return the axes (k, d) as the header and the numbers of an `.npy` file. The numbers are not copied."""
    axes = np.ascontiguousarray(published.model.components)
    header = npy.encode_header(axes.dtype, axes.shape)
    return [header, axes.data.cast("B")]


def compare_axes(one: Model, other: Model) -> dict[str, Any]:
    """Return the angles in radians between the axes of two models, and between their subspaces.

    If the models' dimensions differ, there are no angles.
    """
    can_be_compared = one.dimensions == other.dimensions
    count = min(one.n_components, other.n_components, _MAX_COMPARED_COMPONENTS) if can_be_compared else 0
    one_axes = np.asarray(one.components[:count], np.float64)
    other_axes = np.asarray(other.components[:count], np.float64)
    angles_between_axes = []
    for i in range(count):
        (angle,) = principal_angles(one_axes[i : i + 1], other_axes[i : i + 1])
        angles_between_axes.append(angle)
    return {"between": angles_between_axes, "principal": principal_angles(one_axes, other_axes)}
