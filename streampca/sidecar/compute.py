"""Answers as plain functions of a model and a parsed request; no HTTP, no clock."""

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
from streampca.sidecar.parsing import Limits, fit, rows_of_records
from streampca.sidecar.schemas import (
    ModelResponse,
    ProjectRequest,
    ReconstructRequest,
    ScoreRequest,
    VectorsRequest,
)

_MAX_COMPARED = 100  # components of each of two models: the work grows with their square


class Answer(NamedTuple):
    version: int
    fields: dict[str, Any]
    vectors: int = 0
    projected: Projected | None = None  # of requests to project or score: the page shows them


def project(published: PublishedModel, request: ProjectRequest, limits: Limits) -> Answer:
    """Coordinates of vectors in the basis of the components, and each vector's distance from their subspace."""
    projected = _projected(published, request, limits)
    coordinates = projected.in_basis(request.basis)
    _check_finite("vectors", coordinates, projected.residual)
    fields = {"coordinates": coordinates, "residual": projected.residual}
    if request.fields:
        fields |= {name: value for name, value in _scores(projected).items() if name in request.fields}
    return _answer(published, fields, len(projected.vectors), projected)


def score(published: PublishedModel, request: ScoreRequest, limits: Limits) -> Answer:
    """Scores of vectors: T², squared distance, score, p-values, and the dimensions that contribute most."""
    projected = _projected(published, request, limits)
    fields, n, names = _scores(projected), len(projected.vectors), published.names or [""]
    if most := min(request.contributions, published.model.dimensions):
        each = 4 + max(map(len, names)) // 4  # numbers, or as long as such
        if each * most * n > limits.numbers:
            allowed = limits.numbers // (each * n)
            raise too_large(f"the answer is too long: ask for at most {allowed} contributions", "numbers")
        which, values = projected.contributions(most)
        for name, dimensions, contributions in zip(values._fields, which, values, strict=True):
            fields |= {f"{name}_dimensions": dimensions, f"{name}_contributions": contributions}
            if published.names:
                fields[f"{name}_names"] = [[names[j] for j in row] for row in dimensions.tolist()]
    return _answer(published, fields, n, projected)


def _projected(published: PublishedModel, request: VectorsRequest, limits: Limits) -> Projected:
    names, d = published.names, published.model.dimensions
    _require_one(request)
    if request.vectors is not None:
        return published.project(fit(request.vectors, "vectors", d, limits, impute=published.impute))
    if names is None:
        raise invalid("this model has no names of dimensions, so it takes no records: send arrays, in their order")
    rows = rows_of_records(request.records or [], names)
    return published.project(fit(rows, "records", d, limits, impute=published.impute, names=names))


def _require_one(request: VectorsRequest) -> None:
    forms = [name for name in ("coordinates", "vectors", "records") if hasattr(request, name)]
    if sum(getattr(request, form) is not None for form in forms) != 1:
        raise invalid(f"give one of {', '.join(forms)}")


def _scores(projected: Projected) -> dict[str, Any]:
    """The fields of `SCORES` of projected vectors; p is None if the model has no past scores."""
    _check_finite("vectors", *projected.scores)
    p_t2, p_spe, p = projected.p_values or (None, None, None)
    return projected.scores._asdict() | {"p": p, "p_t2": p_t2, "p_spe": p_spe}


@np.errstate(all="ignore")
def reconstruct(published: PublishedModel, request: ReconstructRequest, limits: Limits) -> Answer:
    """Vectors from coordinates; or vectors as the components reconstruct them, with the squared error of each."""
    model = published.model
    if request.coordinates is None:
        projected = _projected(published, request, limits)
        fields = {"vectors": reconstruction(projected), "squared_error": projected.residual}
        _check_finite("vectors", projected.residual)
        return _answer(published, fields, len(projected.vectors))
    _require_one(request)
    coordinates = fit(request.coordinates, "coordinates", model.n_components, limits)
    coordinates = coordinates.astype(np.float64, copy=False)
    if len(coordinates) * model.dimensions > limits.numbers:
        most = limits.numbers // model.dimensions
        raise too_large(f"the answer to {len(coordinates)} rows is too long: send at most {most}", "numbers")
    vectors = model.reconstruct(coordinates, request.basis)
    _check_finite("coordinates", vectors)
    return _answer(published, {"vectors": vectors}, len(coordinates))


@np.errstate(all="ignore")
def reconstruction(projected: Projected) -> Array:
    """Vectors (n, d) as the components reconstruct them. Raises `RequestError` if they exceed float64."""
    vectors = projected.model.reconstruct(projected.coordinates)
    _check_finite("vectors", vectors)
    return vectors


def _check_finite(name: str, *results: Array) -> None:
    for result in results:
        if not np.isfinite(result).all():
            i = int(np.argwhere(~np.isfinite(result))[0, 0])
            raise invalid(f"{name}[{i}] holds values too large: the result exceeds the range of float64")


def _answer(
    published: PublishedModel, fields: dict[str, Any], vectors: int = 0, projected: Projected | None = None
) -> Answer:
    """Arrays in C order, real numbers as float64."""
    plain = {
        name: np.ascontiguousarray(value, np.float64 if value.dtype.kind == "f" else value.dtype)
        if isinstance(value, np.ndarray)
        else value
        for name, value in fields.items()
    }
    return Answer(published.version, {"version": published.version, **plain}, vectors, projected)


def model_info(published: PublishedModel, drift: Mapping[str, Mapping[str, float]]) -> Answer:
    """Everything about a model except its arrays of size d; `drift` is from pinned ones, by name."""
    model, positions = published.model, sorted(published.positions.items())
    own: dict[str, Any] = {
        "components": model.n_components,
        "positions": {partition_name(partition): position for partition, position in positions},
        "drift": drift,
    }
    others = [name for name in ModelResponse.model_fields if name not in own]
    holders = (published, published.stats, model)
    fields = {name: next(getattr(holder, name) for holder in holders if hasattr(holder, name)) for name in others}
    return _answer(published, fields | own)


def components(published: PublishedModel, limits: Limits) -> Answer:
    """The axes, and all else that a client needs to project by itself."""
    model = published.model
    if model.components.size > limits.numbers:
        raise RequestError(
            Problem.TOO_LONG_FOR_JSON,
            f"{model.components.size} numbers are too many for JSON: Accept application/x-npy",
        )
    fields = {name: getattr(model, name) for name in ("components", "explained_variance", "mean", "scale")}
    return _answer(published, fields | {"names": published.names})


def components_npy(published: PublishedModel) -> list[memoryview]:
    """The axes, rows of length d, as the two parts of an `.npy` file in the model's own dtype; they are not copied."""
    array = np.ascontiguousarray(published.model.components)
    return [memoryview(npy.encode_header(array.dtype, array.shape)), array.reshape(-1).view(np.uint8).data]


def angles(one: Model, other: Model) -> dict[str, Any]:
    """Angles in radians between components of the same number, and the principal angles between their spans.

    Of up to 100 components of each model; of none if the vectors have different lengths.
    """
    n = min(one.n_components, other.n_components, _MAX_COMPARED) if one.dimensions == other.dimensions else 0
    A, B = (np.asarray(model.components[:n], np.float64) for model in (one, other))
    between = [principal_angles(A[i : i + 1], B[i : i + 1])[0] for i in range(n)]
    return {"between": between, "principal": principal_angles(A, B)}
