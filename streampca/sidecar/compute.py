"""Computes answers: plain functions of a model and a parsed request, without HTTP and without a clock."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import partition_name
from streampca.formats import npy
from streampca.pca.angles import principal_angles
from streampca.pca.arrays import Array
from streampca.pca.model import Model, Projected
from streampca.sidecar.errors import Problem, RequestError, invalid, too_large
from streampca.sidecar.parsing import Limits, check_rows, pack_records
from streampca.sidecar.schemas import (
    ModelResponse,
    ProjectRequest,
    ReconstructRequest,
    ScoreRequest,
    VectorsRequest,
)

_MAX_COMPARED = 100  # components of each of two models, since the work grows with their square


class Answer(NamedTuple):
    """An answer before it is encoded."""

    version: int  # of the model
    fields: dict[str, Any]
    vector_count: int = 0
    projected: Projected | None = None  # of requests to project or score, for the page


def project(published: PublishedModel, request: ProjectRequest, limits: Limits) -> Answer:
    """Coordinates of vectors in the basis of the components, and each vector's distance from their subspace."""
    projected = _project_request(published, request, limits)
    coordinates = projected.in_basis(request.basis)
    _check_finite("vectors", coordinates, projected.residual)
    fields = {"coordinates": coordinates, "residual": projected.residual}
    if request.fields:
        fields |= {name: value for name, value in _list_scores(projected).items() if name in request.fields}
    return _build_answer(published, fields, len(projected.vectors), projected)


def score(published: PublishedModel, request: ScoreRequest, limits: Limits) -> Answer:
    """Scores of vectors: T², squared distance, score, p-values, and the dimensions that contribute most."""
    projected = _project_request(published, request, limits)
    fields = _list_scores(projected)
    count = min(request.contributions, published.model.dimensions)
    if count:
        fields |= _list_contributions(published, projected, count, limits)
    return _build_answer(published, fields, len(projected.vectors), projected)


def _list_contributions(published: PublishedModel, projected: Projected, count: int, limits: Limits) -> dict[str, Any]:
    """Return, for T² and for SPE, the `count` dimensions that contribute most to each vector's score, with their names.

    Raises `RequestError` if they would make the answer too long.
    """
    names = published.names
    n = len(projected.vectors)
    longest_name = max(map(len, names)) if names else 0
    # Each contribution has two numbers for T² and two for SPE. Four letters of a name count as a number.
    numbers_each = 4 + longest_name // 4
    if numbers_each * count * n > limits.numbers:
        allowed = limits.numbers // (numbers_each * n)
        raise too_large(f"the answer is too long: ask for at most {allowed} contributions", "numbers")
    # For each of the scores t2 and spe, two arrays (n, count).
    dimensions_by_score, contributions_by_score = projected.contributions(count)
    score_names = contributions_by_score._fields
    fields: dict[str, Any] = {}
    for score_name, dimensions, contributions in zip(
        score_names, dimensions_by_score, contributions_by_score, strict=True
    ):
        fields[f"{score_name}_dimensions"] = dimensions
        fields[f"{score_name}_contributions"] = contributions
        if names:
            fields[f"{score_name}_names"] = [[names[j] for j in row] for row in dimensions.tolist()]
    return fields


def _project_request(published: PublishedModel, request: VectorsRequest, limits: Limits) -> Projected:
    """Project the vectors or the records of a request. Raises `RequestError`."""
    names = published.names
    d = published.model.dimensions
    _require_one_form(request)
    if request.vectors is not None:
        return published.project(check_rows(request.vectors, "vectors", d, limits, impute=published.impute))
    if names is None:
        raise invalid("this model has no names of dimensions, so it takes no records: send arrays, in their order")
    rows = pack_records(request.records or [], names)
    return published.project(check_rows(rows, "records", d, limits, impute=published.impute, names=names))


def _require_one_form(request: VectorsRequest) -> None:
    """Raise `RequestError` unless the request has its rows in exactly one of the forms that it may have."""
    forms = [name for name in ("coordinates", "vectors", "records") if hasattr(request, name)]
    given = [form for form in forms if getattr(request, form) is not None]
    if len(given) != 1:
        raise invalid(f"give one of {', '.join(forms)}")


def _list_scores(projected: Projected) -> dict[str, Any]:
    """Return the fields of `SCORES` of projected vectors. If the model has no past scores, p-values are None."""
    _check_finite("vectors", *projected.scores)
    p_t2, p_spe, p = projected.p_values or (None, None, None)
    return projected.scores._asdict() | {"p": p, "p_t2": p_t2, "p_spe": p_spe}


@np.errstate(all="ignore")
def reconstruct(published: PublishedModel, request: ReconstructRequest, limits: Limits) -> Answer:
    """Vectors from coordinates; or vectors as the components reconstruct them, with the squared error of each."""
    model = published.model
    if request.coordinates is None:
        projected = _project_request(published, request, limits)
        fields = {"vectors": reconstruct_projected(projected), "squared_error": projected.residual}
        _check_finite("vectors", projected.residual)
        return _build_answer(published, fields, len(projected.vectors))
    _require_one_form(request)
    coordinates = check_rows(request.coordinates, "coordinates", model.n_components, limits)
    coordinates = coordinates.astype(np.float64, copy=False)
    if len(coordinates) * model.dimensions > limits.numbers:
        max_rows = limits.numbers // model.dimensions
        raise too_large(f"the answer to {len(coordinates)} rows is too long: send at most {max_rows}", "numbers")
    vectors = model.reconstruct(coordinates, request.basis)
    _check_finite("coordinates", vectors)
    return _build_answer(published, {"vectors": vectors}, len(coordinates))


@np.errstate(all="ignore")
def reconstruct_projected(projected: Projected) -> Array:
    """Return vectors (n, d) as the components reconstruct them. Raises `RequestError` if they exceed float64."""
    vectors = projected.model.reconstruct(projected.coordinates)
    _check_finite("vectors", vectors)
    return vectors


def _check_finite(name: str, *results: Array) -> None:
    """If a result of a row is not finite, raise `RequestError`, which names the first such row."""
    for result in results:
        is_finite = np.isfinite(result)
        if not is_finite.all():
            row = int(np.argwhere(~is_finite)[0, 0])
            raise invalid(f"{name}[{row}] holds values too large: the result exceeds the range of float64")


def _build_answer(
    published: PublishedModel, fields: dict[str, Any], vector_count: int = 0, projected: Projected | None = None
) -> Answer:
    """Return an answer with the version and then these fields, whose arrays are made encodable.

    They get C order, and real numbers become float64.
    """
    encodable: dict[str, Any] = {"version": published.version}
    for name, value in fields.items():
        if isinstance(value, np.ndarray):
            dtype = np.float64 if value.dtype.kind == "f" else value.dtype
            value = np.ascontiguousarray(value, dtype)
        encodable[name] = value
    return Answer(version=published.version, fields=encodable, vector_count=vector_count, projected=projected)


def describe_model(published: PublishedModel, drift: Mapping[str, Mapping[str, float]]) -> Answer:
    """Return everything about a model except its arrays of size d.

    `drift` says by the name of each pin how far the model has moved from the pinned one.
    """
    model = published.model
    positions = sorted(published.positions.items())
    # The names and values of these fields are not those of the model's attributes.
    converted: dict[str, Any] = {
        "components": model.n_components,
        "positions": {partition_name(partition): position for partition, position in positions},
        "drift": drift,
    }
    fields: dict[str, Any] = {}
    for name in ModelResponse.model_fields:
        if name not in converted:
            # The other fields are attributes, with the same name, of the first of these objects that has one.
            holder = next(holder for holder in (published, published.stats, model) if hasattr(holder, name))
            fields[name] = getattr(holder, name)
    return _build_answer(published, fields | converted)


def describe_components(published: PublishedModel, limits: Limits) -> Answer:
    """Return the axes, and everything else that a client needs to project by itself."""
    model = published.model
    if model.components.size > limits.numbers:
        raise RequestError(
            Problem.TOO_LONG_FOR_JSON,
            f"{model.components.size} numbers are too many for JSON: Accept application/x-npy",
        )
    fields = {name: getattr(model, name) for name in ("components", "explained_variance", "mean", "scale")}
    return _build_answer(published, fields | {"names": published.names})


def encode_components(published: PublishedModel) -> list[memoryview]:
    """Return the axes (k, d) as the header and the content of an `.npy` file. The content is not copied."""
    array = np.ascontiguousarray(published.model.components)
    return [memoryview(npy.encode_header(array.dtype, array.shape)), array.reshape(-1).view(np.uint8).data]


def compare_axes(one: Model, other: Model) -> dict[str, Any]:
    """Return the angles between components with the same number, and the principal angles between the subspaces.

    All are in radians. Up to 100 components of each model are compared, and none if the dimensions differ.
    """
    n = min(one.n_components, other.n_components, _MAX_COMPARED)
    if one.dimensions != other.dimensions:
        n = 0
    A = np.asarray(one.components[:n], np.float64)
    B = np.asarray(other.components[:n], np.float64)
    between = [principal_angles(A[i : i + 1], B[i : i + 1])[0] for i in range(n)]
    return {"between": between, "principal": principal_angles(A, B)}
