"""Published models and their files. The worker and `streampca fit` write them; the sidecar and transform read them."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from streampca.errors import DamagedFileError, StoreError
from streampca.fold import earlier_format, npz
from streampca.fold.names import Names
from streampca.pca.arrays import F64, Array
from streampca.pca.missing_values import MissingValues
from streampca.pca.model import Model, Projected
from streampca.pca.past_scores import PastScores

KIND = "model"
# Fields of a published model by the same names in the header.
_PUBLISHED_FIELDS = ("version", "topic", "topic_id", "published_at", "settings", "subspace_error", "axis_errors")
_OPTIONAL_HEADER_FIELDS = ("names", "estimator")  # left out of the header if they are None
FORMAT_VERSION = 3
_REQUIRED_ARRAYS = {"components", "explained_variance", "mean"}
_ROUNDING = 1e-6  # by how much a share may exceed 1 after merges


class ModelStats(npz.Strict):
    """Counts, losses and timestamps of the messages that a model has learned; part of its header."""

    model_config = ConfigDict(frozen=True)

    rejected: npz.Count  # records that could not be learned
    loss: npz.Finite | None  # mean ‖r‖² of all messages, each scored before it is learned
    loss_ratio: npz.Finite | None  # Σ‖r‖² / Σ‖y‖² of the same messages
    loss_ewma: npz.Finite | None  # ‖r‖²/‖y‖², exponentially weighted over about the last 1000 messages
    first_timestamp_ms: npz.Milliseconds  # the earliest timestamp of the records learned; -1: unknown
    last_timestamp_ms: npz.Milliseconds  # the latest timestamp of the records learned; -1: unknown


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """A model with its version and origin."""

    version: int  # the number of messages learned, so it only grows, even across restarts
    model: Model
    stats: ModelStats
    topic: str = ""
    topic_id: str = ""
    positions: dict[int, int] = field(default_factory=dict)  # partition → next offset: all records before are learned
    partition_losses: dict[int, float] = field(default_factory=dict)  # partition → its own loss_ewma, if it has one
    published_at: float = 0.0  # seconds since 1970
    settings: dict[str, Any] = field(default_factory=dict)  # the settings that shape the model
    subspace_error: float | None = None  # expected Σ sin² of the angles between the model and the stream's axes
    axis_errors: list[float] | None = None  # (k,) standard error of each axis, radians; None with `subspace_error`
    past_scores: PastScores | None = None  # of messages that were scored by the versions before this one
    # Only `streampca fit` keeps these two, from which learning can continue up to rounding.
    covariance_or_axes: Array | None = None  # as returned by `axes.compute_covariance_or_axes`
    known: F64 | None = None  # N of the state (`State.known`); None if all shares are 1
    names: Names = None
    # Only the file of an estimator has these two.
    checkpoint: bytes | None = None  # the checkpoint file with its fold, from which learning continues without a break
    estimator: npz.Parameters | None = None  # the parameters of `StreamingPCA`

    @property
    def impute(self) -> bool:
        """Whether vectors may lack entries, which the model fills."""
        return self.settings.get("missing") == "impute"

    @cached_property
    def missing_values(self) -> MissingValues:
        """The numbers that mean "missing" in vectors."""
        return MissingValues.of(self.settings.get("missing_values", ""), self.settings.get("dtype", "float64"))

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
    estimator: npz.Parameters | None = None


def encode(published: PublishedModel) -> bytes:
    """Return the bytes of a model file. Raises `ValueError` if the model is not valid."""
    model = published.model
    problem = _find_problem(published)
    if problem:
        raise ValueError(f"this model cannot be written: {problem}")
    header = {
        **dict(published.stats),
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "positions": {str(partition): position for partition, position in published.positions.items()},
        "partition_losses": {str(partition): loss for partition, loss in published.partition_losses.items()},
        "total_variance": model.total_variance,
        "weight": model.weight,
        **{name: getattr(published, name) for name in _PUBLISHED_FIELDS},
    }
    optional_fields = {name: getattr(published, name) for name in _OPTIONAL_HEADER_FIELDS}
    header |= {name: value for name, value in optional_fields.items() if value is not None}
    arrays: dict[str, NDArray[Any]] = {
        "components": model.components,
        "explained_variance": model.explained_variance,
        "mean": model.mean,
    }
    optional_arrays = {
        "scale": model.scale,
        "seen": model.seen,
        # The names of the next two arrays in files are older than the names of the fields.
        "calibration": None if published.past_scores is None else published.past_scores.table(),
        "learned": published.covariance_or_axes,
        "known": published.known,
        # The fold of a `StreamingPCA`, as the bytes of a checkpoint file.
        "checkpoint": None if published.checkpoint is None else np.frombuffer(published.checkpoint, np.uint8),
        # Only for people: `decode` reads the names in the header.
        "names": None if published.names is None else np.array(published.names),
    }
    arrays |= _make_arrays_for_people(published)
    arrays |= {name: array for name, array in optional_arrays.items() if array is not None}
    return npz.encode(header, arrays)


def _make_arrays_for_people(published: PublishedModel) -> dict[str, Array]:
    """Return arrays that `decode` does not read, for people who open the file with `numpy.load`."""
    return {
        "explained_variance_ratio": np.asarray(published.model.explained_variance_ratio),
        "noise_variance": np.asarray(published.model.noise_variance),
        "version": np.asarray(published.version),
        "topic": np.asarray(published.topic),
    }


def decode(data: bytes) -> PublishedModel:
    """Return the model that `encode` wrote, in this release or in the one before.

    Raises `DamagedFileError` for other bytes, and the errors of `npz.decode` for older and newer formats.
    """
    fields, arrays = npz.decode(data, KIND, FORMAT_VERSION, earlier_format.upgrade_model)
    header = npz.validate(ModelHeader, fields)
    past_scores = None
    try:
        if "calibration" in arrays:  # the name of the past scores in files; removed, so that the error below omits it
            past_scores = PastScores.from_table(arrays.pop("calibration"))
    except ValueError as error:
        raise DamagedFileError(f"the calibration of the scores is damaged: {error}") from None
    has_required_arrays = arrays.keys() >= _REQUIRED_ARRAYS
    if not has_required_arrays:
        held_arrays = ", ".join(sorted(arrays)) or "none"
        raise DamagedFileError(f"not a model file: its arrays are {held_arrays}")
    model = Model(
        components=arrays["components"],
        explained_variance=arrays["explained_variance"],
        mean=arrays["mean"],
        total_variance=header.total_variance,
        weight=header.weight,
        scale=arrays.get("scale"),
        seen=arrays.get("seen"),  # (d,): the dimensions that some message has shown; None: all
    )
    stats = header.model_dump(include=set(ModelStats.model_fields))
    same_in_header = (*_PUBLISHED_FIELDS, *_OPTIONAL_HEADER_FIELDS)  # fields that the header holds as they are
    published = PublishedModel(
        model=model,
        stats=ModelStats(**stats),
        positions={int(partition): position for partition, position in header.positions.items()},
        partition_losses={int(partition): loss for partition, loss in header.partition_losses.items()},
        past_scores=past_scores,
        covariance_or_axes=arrays.get("learned"),  # its name in files; None if the file lacks it
        known=arrays.get("known"),  # shares of the weight; None: all are 1
        checkpoint=arrays["checkpoint"].tobytes() if "checkpoint" in arrays else None,
        **{name: getattr(header, name) for name in same_in_header},
    )
    problem = _find_problem(published)
    if problem:
        raise DamagedFileError(problem)
    return published


def decode_file(data: bytes, path: str) -> PublishedModel:
    """Return the model in a file that a user has named.

    Raises the errors of `decode`, and `StoreError` for a file that streampca has not written. This error and
    `DamagedFileError` name the path.
    """
    if not npz.is_streampca_file(data):
        kind = "it is an .npy array" if data.startswith(b"\x93NUMPY") else f"it begins with {data[:16]!r}"
        text = f"{path} is not a model of streampca; {kind}"
        raise StoreError(f"{text}. `streampca fit` makes a model of vectors")
    try:
        return decode(data)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path}: {error}") from None


def _find_problem(published: PublishedModel) -> str | None:
    """Return what is wrong with the model, or None if it is valid."""
    model = published.model
    if type(published.version) is not int or not 0 <= published.version < 2**63:
        return f"version {published.version!r} is not a number of messages"
    if model.components.ndim != 2:
        return "the arrays of the model do not fit each other"
    k, d = model.components.shape
    if k < 1 or model.explained_variance.shape != (k,) or model.mean.shape != (d,):
        return "the arrays of the model do not fit each other"
    for name in ("components", "explained_variance", "mean"):
        values = getattr(model, name)
        if values.dtype not in (np.float64, np.float32) or not np.isfinite(values).all():
            return f"{name} holds values that are not finite numbers"
    scale_or_ones = model.D  # `model.scale`, 1/standard deviation of each dimension; ones if it is None
    fits = scale_or_ones.shape == (d,) and scale_or_ones.dtype == np.float64
    if not fits or not (np.isfinite(scale_or_ones) & (scale_or_ones > 0)).all():
        return "the scale is not one positive number for each dimension"
    if model.seen is not None and (model.seen.shape != (d,) or model.seen.dtype != np.bool_):
        return "`seen` does not hold one truth value for each dimension"
    if not npz.are_valid_names(published.names, d):
        return f"the names of the dimensions are not {d} different names of 1 to {npz.MAX_NAME} characters"
    # In files, the array `covariance_or_axes` is called `learned`.
    if not _are_valid_for_learning(published.covariance_or_axes, published.known, d):
        return "the arrays from which learning continues (`learned`, `known`) do not fit the model"
    return _find_wrong_number(published)


def _find_wrong_number(published: PublishedModel) -> str | None:
    """Return what is wrong with the numbers in a model whose arrays fit each other, or None."""
    model = published.model
    if not np.isfinite([model.total_variance, model.weight]).all():
        return "the total variance or the weight is not finite"
    if min(model.explained_variance.min(), model.total_variance, model.weight) < 0:
        return "a variance or the weight is negative"
    errors = published.axis_errors
    k = model.n_components
    has_subspace_error = published.subspace_error is not None
    has_axis_errors = errors is not None
    if has_subspace_error != has_axis_errors:
        return "it holds the error of the subspace or of the axes, but not both"
    if errors is not None and len(errors) != k:
        return f"it holds the errors of {len(errors)} axes instead of {k}"
    with np.errstate(all="ignore"):
        deviation = np.abs(model.components @ model.components.T - np.eye(k)).max()  # not finite if products overflow
    return None if deviation <= 1e-3 else "the components are not orthonormal"


def _are_valid_for_learning(covariance_or_axes: Array | None, known_shares: Array | None, d: int) -> bool:
    """Return whether learning can continue from these two arrays of a model of d dimensions.

    `covariance_or_axes` is a packed Σ (d(d + 1)/2,) or axes (d, r). If entries were missing, a number of Σ or a row of
    the axes was learned from only a share of the weight. `known_shares` holds this share for each number or row.
    """
    if covariance_or_axes is None:
        # A worker's model has neither array: `axes.restore_state` estimates the covariance from its axes.
        return known_shares is None
    if covariance_or_axes.ndim not in (1, 2):
        return False
    is_covariance = covariance_or_axes.ndim == 1
    length = d * (d + 1) // 2 if is_covariance else d
    if len(covariance_or_axes) != length or covariance_or_axes.dtype != np.float32:
        return False
    if not np.isfinite(covariance_or_axes).all():
        return False
    if known_shares is None:  # all shares are 1
        return True
    return known_shares.shape == (length,) and bool(((known_shares >= 0) & (known_shares <= 1 + _ROUNDING)).all())
