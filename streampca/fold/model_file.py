"""Published models and their files: the worker and `streampca fit` write them, the sidecar serves them."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from streampca.errors import DamagedFileError
from streampca.fold import earlier_format, npz
from streampca.fold.names import Names
from streampca.pca.arrays import F64, Array
from streampca.pca.model import Model, Projected
from streampca.pca.past_scores import PastScores

KIND = "model"
FORMAT_VERSION = 3
_ARRAYS = {"components", "explained_variance", "mean"}  # of every file


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """A model with its version and origin."""

    version: int  # the number of messages learned, so it only grows, even across restarts
    model: Model
    topic: str = ""
    topic_id: str = ""
    positions: dict[int, int] = field(default_factory=dict)  # partition → next offset; all before it are included
    rejected: int = 0  # records that could not be learned
    loss: float | None = None  # mean ‖r‖² of all messages, each scored before it is learned
    loss_ratio: float | None = None  # Σ‖r‖² / Σ‖y‖² of the same messages
    loss_ewma: float | None = None  # ‖r‖²/‖y‖², exponentially weighted over the last ~1000 messages
    partition_losses: dict[int, float] = field(default_factory=dict)  # partition → its own loss_ewma, once it has one
    first_timestamp_ms: int = -1  # of the records learned; -1 when unknown
    last_timestamp_ms: int = -1
    published_at: float = 0.0  # seconds since 1970
    settings: dict[str, Any] = field(default_factory=dict)  # the settings that shape the model
    subspace_error: float | None = None  # expected Σ sin² of the angles between the model and the stream's axes
    axis_errors: list[float] | None = None  # (k,) standard error of each axis, radians; both: None if unknown
    past_scores: PastScores | None = None  # of messages by the versions before this one
    learned: Array | None = None  # of `streampca fit`: what continuing needs beyond the model, `axes.continuation`
    known: F64 | None = None  # N of `learned`, `State.known`; None: 1, or not from `streampca fit`
    names: Names = None

    @property
    def impute(self) -> bool:
        """True if vectors may lack entries: the model has learned to fill them."""
        return self.settings.get("missing") == "impute"

    def project(self, vectors: Array) -> Projected:
        """Project vectors (n, d), with p-values if the model has past scores."""
        return self.model.project(vectors, self.past_scores)


PartitionName = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]


class ModelHeader(npz.Header):
    version: npz.Count
    positions: dict[PartitionName, Annotated[int, Field(ge=-1, lt=2**63)]]
    rejected: npz.Count
    loss: npz.Finite | None
    loss_ratio: npz.Finite | None
    loss_ewma: npz.Finite | None
    partition_losses: dict[PartitionName, npz.NonNegative]
    first_timestamp_ms: npz.Milliseconds
    last_timestamp_ms: npz.Milliseconds
    published_at: npz.Finite
    total_variance: npz.Finite
    weight: npz.Finite
    subspace_error: npz.NonNegative | None
    axis_errors: list[npz.NonNegative] | None


def encode(published: PublishedModel) -> bytes:
    """The bytes of a model file; the same model gives the same bytes. Raises `ValueError` if it is not valid."""
    model = published.model
    if problem := _problem(published):
        raise ValueError(f"this model cannot be written: {problem}")
    header = {name: value for name, value in vars(published).items() if name in ModelHeader.model_fields} | {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "positions": {str(p): o for p, o in published.positions.items()},
        "partition_losses": {str(p): loss for p, loss in published.partition_losses.items()},
        "total_variance": model.total_variance,
        "weight": model.weight,
    }
    if published.names is None:
        del header["names"]
    arrays = {"components": model.components, "explained_variance": model.explained_variance, "mean": model.mean}
    optional = {
        "scale": model.scale,
        "seen": model.seen,
        "calibration": None if published.past_scores is None else published.past_scores.table(),
        "learned": published.learned,
        "known": published.known,
        "names": None if published.names is None else np.array(published.names),
    }
    return npz.encode(header, arrays | _for_others(published) | {n: a for n, a in optional.items() if a is not None})


def _for_others(published: PublishedModel) -> dict[str, Array]:
    """What only other readers of the file use, `numpy.load` above all; the header has it, or it follows from it."""
    return {
        "explained_variance_ratio": np.asarray(published.model.explained_variance_ratio),
        "noise_variance": np.asarray(published.model.noise_variance),
        "version": np.asarray(published.version),
        "topic": np.asarray(published.topic),
    }


def decode(data: bytes) -> PublishedModel:
    """The model that `encode` wrote, in this release or the one before. Raises `DamagedFileError` for others."""
    fields, arrays = npz.decode(data, KIND, FORMAT_VERSION, earlier_format.model)
    header = npz.validate(ModelHeader, fields)
    try:
        past_scores = PastScores.from_table(arrays.pop("calibration")) if "calibration" in arrays else None
    except ValueError as error:
        raise DamagedFileError(f"the calibration of the scores is damaged: {error}") from None
    if not arrays.keys() >= _ARRAYS:
        raise DamagedFileError(f"not a model file: it holds the arrays {', '.join(sorted(arrays)) or 'of none'}")
    own = {name: arrays[name] for name in _ARRAYS}
    scale, seen = arrays.get("scale"), arrays.get("seen")
    model = Model(**own, total_variance=header.total_variance, weight=header.weight, scale=scale, seen=seen)
    values = {name: value for name, value in header if name in PublishedModel.__dataclass_fields__}
    for name in ("positions", "partition_losses"):
        values[name] = {int(partition): value for partition, value in getattr(header, name).items()}
    learned, known = arrays.get("learned"), arrays.get("known")
    published = PublishedModel(model=model, past_scores=past_scores, learned=learned, known=known, **values)
    if problem := _problem(published):
        raise DamagedFileError(problem)
    return published


def _problem(published: PublishedModel) -> str | None:
    """Say what is wrong with the model; None if it is valid."""
    model = published.model
    if type(published.version) is not int or not 0 <= published.version < 2**63:
        return f"version {published.version!r} is not a number of messages"
    k, d = model.components.shape if model.components.ndim == 2 else (0, 0)
    if k < 1 or model.explained_variance.shape != (k,) or model.mean.shape != (d,):
        return "the arrays of the model do not fit each other"
    for name in ("components", "explained_variance", "mean"):
        values = getattr(model, name)
        if values.dtype not in (np.float64, np.float32) or not np.isfinite(values).all():
            return f"{name} holds values that are not finite numbers"
    scale = np.ones(d) if model.scale is None else model.scale
    if scale.shape != (d,) or scale.dtype != np.float64 or not (np.isfinite(scale) & (scale > 0)).all():
        return "the scale is not one positive number for each dimension"
    if model.seen is not None and (model.seen.shape != (d,) or model.seen.dtype != np.bool_):
        return "which dimensions were seen is not one truth value for each"
    errors = published.axis_errors
    with np.errstate(all="ignore"):
        orthonormal = np.abs(model.components @ model.components.T - np.eye(k)).max() <= 1e-3
    rules = {
        f"the names of the dimensions are not {d} that differ": npz.are_names(published.names, d),
        "what continuing needs does not fit the model": _continues(published.learned, published.known, d),
        "the total variance or the weight is not finite": np.isfinite([model.total_variance, model.weight]).all(),
        "a variance or the weight is negative": (
            min(model.explained_variance.min(), model.total_variance, model.weight) >= 0
        ),
        "it holds the error of the subspace or of the axes, but not both": (
            (published.subspace_error is None) == (errors is None)
        ),
        f"it holds the errors of {len(errors or [])} axes instead of {k}": errors is None or len(errors) == k,
        "the components are not orthonormal": orthonormal,
    }
    return next((problem for problem, holds in rules.items() if not holds), None)


def _continues(learned: Array | None, known: Array | None, d: int) -> bool:
    """Return whether arrays can be the `axes.continuation` and N of a model of d dimensions, where it has them."""
    if learned is None or not learned.ndim:
        return learned is None and known is None
    pairs = d * (d + 1) // 2
    shape, of_known = ((pairs,), (pairs,)) if learned.ndim == 1 else ((d, learned.shape[1]), (d,))
    fits = learned.shape == shape and learned.dtype == np.float32 and bool(np.isfinite(learned).all())
    return fits and (known is None or (known.shape == of_known and bool(((known >= 0) & (known <= 1 + 1e-6)).all())))
