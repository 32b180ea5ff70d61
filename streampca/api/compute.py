"""What is answered, as plain functions of a model and a request's body. They know neither HTTP nor a clock.

`find` gives the model of a version (None: the newest); it is called once, so an answer comes from one model.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.api.parsing import ParsedRequest, parse
from streampca.api.request import Body, RequestError
from streampca.pca.arrays import Array
from streampca.pca.model import Basis
from streampca.stream.model_file import PublishedModel

Find = Callable[[int | None], PublishedModel]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for."""

    rows: int
    numbers: int  # in an answer


@dataclass(frozen=True, slots=True)
class Result:
    """The fields of the answer, and how many vectors it took."""

    version: int
    fields: dict[str, Any]
    vectors: int = 0
    probes: Array | None = None  # the vectors themselves, where they were projected


def project(find: Find, body: Body, limits: Limits) -> Result:
    """Coordinates of vectors, and how far each lies from the components' plane."""
    asked = parse(body, ("vectors",))
    basis, served = asked.basis, find(asked.version)
    model = served.model
    vectors = asked.rows("vectors", model.dimensions, limits.rows)
    with np.errstate(all="ignore"):
        coordinates, residual = model.project(vectors, basis)
    _check_finite("vectors", coordinates, residual)
    return _answer(served, {"coordinates": coordinates, "residual": residual}, len(vectors), vectors)


def reconstruct(find: Find, body: Body, limits: Limits) -> Result:
    """Vectors from coordinates, or vectors as the components alone have them, with the squared error of each."""
    asked = parse(body, ("coordinates", "vectors"))
    basis, served = asked.basis, find(asked.version)
    if asked.has("coordinates") == asked.has("vectors"):
        raise RequestError(422, "give either coordinates or vectors")
    if asked.has("coordinates"):
        return _from_coordinates(served, asked, basis, limits)
    vectors = asked.rows("vectors", served.model.dimensions, limits.rows)
    with np.errstate(all="ignore"):
        coordinates, residual = served.model.project(vectors)
        again = served.model.reconstruct(coordinates)
    _check_finite("vectors", again, residual)
    return _answer(served, {"vectors": again, "squared_error": residual}, len(vectors))


def _from_coordinates(served: PublishedModel, asked: ParsedRequest, basis: Basis, limits: Limits) -> Result:
    model = served.model
    coordinates = asked.rows("coordinates", model.n_components, limits.rows)
    if len(coordinates) * model.dimensions > limits.numbers:
        most = limits.numbers // model.dimensions
        raise RequestError(413, f"{len(coordinates)} rows make too long an answer, at most {most} do: send fewer")
    with np.errstate(all="ignore"):
        vectors = model.reconstruct(coordinates, basis)
    _check_finite("coordinates", vectors)
    return _answer(served, {"vectors": vectors}, len(coordinates))


def _check_finite(name: str, *results: Array) -> None:
    for result in results:
        if not np.isfinite(result).all():
            i = int(np.argwhere(~np.isfinite(result))[0, 0])
            raise RequestError(422, f"{name}[{i}] holds values too large: the result exceeds what float64 can hold")


def _answer(served: PublishedModel, fields: dict[str, Any], vectors: int = 0, probes: Array | None = None) -> Result:
    plain = {
        name: np.ascontiguousarray(value, np.float64) if isinstance(value, np.ndarray) else value
        for name, value in fields.items()
    }
    return Result(served.version, {"version": served.version, **plain}, vectors, probes)


def about(served: PublishedModel) -> Result:
    """Everything about a model but its arrays of size d."""
    model = served.model
    fields = {
        "topic": served.topic,
        "dimensions": model.dimensions,
        "components": model.n_components,
        "explained_variance": model.explained_variance,
        "explained_variance_ratio": model.explained_variance_ratio,
        "total_variance": model.total_variance,
        "weight": model.weight,
        "loss": served.loss,
        "loss_ratio": served.loss_ratio,
        "loss_ewma": served.loss_ewma,
        "rejected": served.rejected,
        "positions": {str(partition): position for partition, position in sorted(served.positions.items())},
        "first_timestamp_ms": served.first_timestamp_ms,
        "last_timestamp_ms": served.last_timestamp_ms,
        "published_at": served.published_at,
        "settings": served.settings,
    }
    return _answer(served, fields)


def components(served: PublishedModel, limits: Limits) -> Result:
    """The axes, with what is needed to project without us."""
    model = served.model
    if model.components.size > limits.numbers:
        raise RequestError(406, f"{model.components.size} numbers are too many for JSON: Accept application/x-npy")
    arrays = {"components": model.components, "explained_variance": model.explained_variance, "mean": model.mean}
    return _answer(served, arrays)


def components_npy(served: PublishedModel) -> bytes:
    """The axes, rows of length d, as an `.npy` file in the model's own dtype."""
    buffer = io.BytesIO()
    np.save(buffer, served.model.components, allow_pickle=False)
    return buffer.getvalue()
