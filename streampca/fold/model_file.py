"""Published models and their files. The worker and `streampca fit` write them; the sidecar and transform read them."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field

from streampca.errors import DamagedFileError
from streampca.fold import earlier_format, npz
from streampca.fold.names import Names
from streampca.pca.arrays import F64, Array
from streampca.pca.model import Model, Projected
from streampca.pca.past_scores import PastScores

KIND = "model"
FORMAT_VERSION = 3
_ARRAYS = {"components", "explained_variance", "mean"}  # every file has these
_ROUNDING = 1e-6  # by so much a share may exceed 1 after merges


class ModelStats(npz.Strict):
    """Counts, losses and times of the messages that a model has learned; part of its header."""

    model_config = ConfigDict(frozen=True)

    rejected: npz.Count  # records that could not be learned
    loss: npz.Finite | None  # mean ‖r‖² of all messages, each scored before it is learned
    loss_ratio: npz.Finite | None  # Σ‖r‖² / Σ‖y‖² of the same messages
    loss_ewma: npz.Finite | None  # ‖r‖²/‖y‖², exponentially weighted over about the last 1000 messages
    first_timestamp_ms: npz.Milliseconds  # the least timestamp of the records learned; -1: unknown
    last_timestamp_ms: npz.Milliseconds  # the greatest one


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """A model with its version and origin."""

    version: int  # the number of messages learned, so it only grows, even across restarts
    model: Model
    stats: ModelStats
    topic: str = ""
    topic_id: str = ""
    positions: dict[int, int] = field(default_factory=dict)  # partition → next offset; all before it are included
    partition_losses: dict[int, float] = field(default_factory=dict)  # partition → its own loss_ewma, once it has one
    published_at: float = 0.0  # seconds since 1970
    settings: dict[str, Any] = field(default_factory=dict)  # the settings that shape the model
    subspace_error: float | None = None  # expected Σ sin² of the angles between the model and the stream's axes
    axis_errors: list[float] | None = None  # (k,) standard error of each axis, radians; None with `subspace_error`
    past_scores: PastScores | None = None  # of messages that were scored by the versions before this one
    learned: Array | None = None  # `axes.continuation`, which continuing needs; only of `streampca fit`
    known: F64 | None = (
        None  # `State.known` of `learned`, shares of the weight; None if all are 1 or nothing is learned
    )
    names: Names = None

    @property
    def impute(self) -> bool:
        """True if vectors may lack entries: the model has learned to fill them."""
        return self.settings.get("missing") == "impute"

    def project(self, vectors: Array) -> Projected:
        """Project vectors (n, d), with p-values if the model has past scores."""
        return self.model.project(vectors, self.past_scores)


PartitionName = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]


class ModelHeader(npz.Header, ModelStats):
    version: npz.Count
    positions: dict[PartitionName, Annotated[int, Field(ge=-1, lt=2**63)]]
    partition_losses: dict[PartitionName, npz.NonNegative]
    published_at: npz.Finite
    total_variance: npz.Finite
    weight: npz.Finite
    subspace_error: npz.NonNegative | None
    axis_errors: list[npz.NonNegative] | None


def encode(published: PublishedModel) -> bytes:
    """Return the bytes of a model file. The same model gives the same bytes. Raises `ValueError` if it is not valid."""
    model = published.model
    problem = _find_problem(published)
    if problem:
        raise ValueError(f"this model cannot be written: {problem}")
    header = {name: value for name, value in vars(published).items() if name in ModelHeader.model_fields} | {
        **dict(published.stats),
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "positions": {str(partition): position for partition, position in published.positions.items()},
        "partition_losses": {str(partition): loss for partition, loss in published.partition_losses.items()},
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
    present = {name: array for name, array in optional.items() if array is not None}
    return npz.encode(header, arrays | _derive_arrays(published) | present)


def _derive_arrays(published: PublishedModel) -> dict[str, Array]:
    """Return arrays for people who open the file with `numpy.load`. `decode` does not need them."""
    return {
        "explained_variance_ratio": np.asarray(published.model.explained_variance_ratio),
        "noise_variance": np.asarray(published.model.noise_variance),
        "version": np.asarray(published.version),
        "topic": np.asarray(published.topic),
    }


def decode(data: bytes) -> PublishedModel:
    """Return the model that `encode` wrote, in this release or in the one before.

    Raises `DamagedFileError` for other bytes, and the errors of `npz.decode` for the formats of other releases.
    """
    fields, arrays = npz.decode(data, KIND, FORMAT_VERSION, earlier_format.upgrade_model)
    header = npz.validate(ModelHeader, fields)
    past_scores = None
    try:
        if "calibration" in arrays:
            past_scores = PastScores.from_table(arrays.pop("calibration"))
    except ValueError as error:
        raise DamagedFileError(f"the calibration of the scores is damaged: {error}") from None
    if not arrays.keys() >= _ARRAYS:
        raise DamagedFileError(f"not a model file: it holds the arrays {', '.join(sorted(arrays)) or 'of none'}")
    model = Model(
        **{name: arrays[name] for name in _ARRAYS},
        total_variance=header.total_variance,
        weight=header.weight,
        scale=arrays.get("scale"),
        seen=arrays.get("seen"),
    )
    values = {name: value for name, value in header if name in PublishedModel.__dataclass_fields__}
    for name in ("positions", "partition_losses"):
        values[name] = {int(partition): value for partition, value in getattr(header, name).items()}
    published = PublishedModel(
        model=model,
        stats=ModelStats(**header.model_dump(include=set(ModelStats.model_fields))),
        past_scores=past_scores,
        learned=arrays.get("learned"),
        known=arrays.get("known"),
        **values,
    )
    problem = _find_problem(published)
    if problem:
        raise DamagedFileError(problem)
    return published


def _find_problem(published: PublishedModel) -> str | None:
    """Return what is wrong with the model, or None if it is valid."""
    model = published.model
    if type(published.version) is not int or not 0 <= published.version < 2**63:
        return f"version {published.version!r} is not a number of messages"
    k, d = model.components.shape if model.components.ndim == 2 else (0, 0)  # no components are refused below
    if k < 1 or model.explained_variance.shape != (k,) or model.mean.shape != (d,):
        return "the arrays of the model do not fit each other"
    for name in ("components", "explained_variance", "mean"):
        values = getattr(model, name)
        if values.dtype not in (np.float64, np.float32) or not np.isfinite(values).all():
            return f"{name} holds values that are not finite numbers"
    scale = model.D
    if scale.shape != (d,) or scale.dtype != np.float64 or not (np.isfinite(scale) & (scale > 0)).all():
        return "the scale is not one positive number for each dimension"
    if model.seen is not None and (model.seen.shape != (d,) or model.seen.dtype != np.bool_):
        return "which dimensions were seen is not one truth value for each"
    errors = published.axis_errors
    with np.errstate(all="ignore"):
        orthonormal = np.abs(model.components @ model.components.T - np.eye(k)).max() <= 1e-3
    rules = {
        f"the names of the dimensions are not {d} different names": npz.are_names(published.names, d),
        "what continuing needs does not fit the model": _can_continue(published.learned, published.known, d),
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
    broken = [problem for problem, holds in rules.items() if not holds]
    return broken[0] if broken else None


def _can_continue(learned: Array | None, known: Array | None, d: int) -> bool:
    """Return whether the arrays that continuing a model needs fit d dimensions. A worker's model has neither.

    `learned` is the packed covariance, or the axes (d, r) where no covariance is kept. `known` has the share of the
    weight for which each pair of entries has been known, or each entry where no covariance is kept. None means that all
    shares are 1.
    """
    if learned is None:
        return known is None
    if learned.ndim not in (1, 2):
        return False
    is_covariance = learned.ndim == 1
    length = d * (d + 1) // 2 if is_covariance else d
    if len(learned) != length or learned.dtype != np.float32 or not np.isfinite(learned).all():
        return False
    if known is None:
        return True
    return known.shape == (length,) and bool(((known >= 0) & (known <= 1 + _ROUNDING)).all())
