"""Checkpoints: the fold of one partition, with its position, and the file that holds it.

The file holds neither times nor anything about the machine: the same records give the same bytes.
"""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streampca.errors import DamagedFileError, SettingsError, refuse_other_topic
from streampca.fold import earlier_format, npz
from streampca.fold.event_time import EventTime
from streampca.fold.fold import Fold, FoldConfig, FoldStats
from streampca.fold.names import Names, agreed, difference
from streampca.fold.partitions import FIRST_BACKFILL, offsets_in, partition_name
from streampca.formats.record import LastRecord
from streampca.pca.arrays import not_finite, packed_diagonal
from streampca.pca.state import State

KIND = "checkpoint"
FORMAT_VERSION = 4
_OPTIONAL = ("missing", "covariance", "scale", "variances", "known")  # arrays that a state may lack


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The fold of one partition and what it belongs to."""

    topic: str
    topic_id: str  # "" if the brokers give topics no id
    partition: int
    fold: Fold
    settings: dict[str, Any]  # as `FoldConfig.as_dict` gives them
    until: str = ""  # end of a backfill, as milliseconds or as partition:offset,…; "" for other folds
    names: Names = None

    @property
    def end(self) -> int | dict[int, int] | None:
        """End of a backfill: a time in milliseconds, or the next offset of each partition.

        None if it has no end: everything that the backfill has read is then older than the topic's first record.
        """
        if not self.until:
            return None
        offsets = offsets_in(self.until)
        return int(self.until) if offsets is None else offsets

    def refuse_other_settings(self, fold_config: FoldConfig) -> None:
        """Raise `SettingsError` that lists all settings in which the checkpoint differs from the worker.

        Names of dimensions differ only if both have some. `field` may differ if one has names, or in a backfill: names
        say which numbers were learned, wherever they lie in a record.
        """
        then = dict(self.settings)
        now = fold_config.as_dict()
        is_backfill = self.partition >= FIRST_BACKFILL
        if self.names or fold_config.names or is_backfill:
            now["field"] = then.get("field")
        names = difference(self.names, fold_config.names)
        if names:
            names_then, names_now = names
            then["names"] = names_then
            now["names"] = names_now
        differing = [name for name in sorted(now.keys() | then.keys()) if now.get(name) != then.get(name)]
        if not differing:
            return
        changes = ", ".join(f"{name}={then.get(name)} (now {now.get(name)})" for name in differing)
        if is_backfill:
            remedy = f"delete it: `streampca backfill --remove {self.partition - FIRST_BACKFILL}`"
        else:
            remedy = "start over with another store folder and another group_id"
        raise SettingsError(
            f"the checkpoint of partition {partition_name(self.partition)} of {self.topic} was made with "
            f"{changes}; restore these settings, or {remedy}"
        )

    def usable_by(self, fold_config: FoldConfig, topic_id: str = "") -> "Checkpoint":
        """Return the checkpoint if a worker with these settings may continue from it, in a topic with this id.

        Without a topic id, the topic is not compared. If the checkpoint has learned nothing yet, return it with the
        worker's settings: only its counts and position are kept. Raises `SettingsError` if it was made with other
        settings, and `TopicReplacedError` if it was made from an earlier topic of the same name.
        """
        self.refuse_other_topic(topic_id)
        fold = self.fold
        settings = fold_config.as_dict()
        if fold.stats.learned or self.settings == settings:
            self.refuse_other_settings(fold_config)
            return self
        empty = Fold.empty(fold_config.learning)
        stats = replace(empty.stats, rejected=fold.stats.rejected, skipped=fold.stats.skipped, gap=fold.stats.gap)
        fold = replace(empty, position=fold.position, stats=stats, last=fold.last)
        return replace(self, fold=fold, settings=settings, names=fold_config.names)

    def agreed_names(self, names: Names) -> Names:
        """Return these names, or the names in the checkpoint if these are None.

        Raises `SettingsError` if both are there and differ.
        """
        return agreed(names, self.names, "others", f"the checkpoint of partition {partition_name(self.partition)}")

    def refuse_other_topic(self, topic_id: str) -> None:
        """Raise `TopicReplacedError` if the checkpoint was made from an earlier topic of the same name."""
        refuse_other_topic(
            self.topic,
            self.topic_id,
            topic_id,
            f"in the checkpoint of partition {self.partition}",
            "to learn the new one, use another store folder",
        )


class EventTimeHeader(npz.Strict):
    now_ms: npz.Milliseconds
    recent: Annotated[tuple[npz.Count, ...], Field(max_length=62, strict=False)]
    ahead: npz.Count


class LastRecordHeader(npz.Strict):
    offset: npz.Count
    leader_epoch: Annotated[int, Field(ge=0, lt=2**31)]


class CheckpointHeader(npz.Header):
    numpy: str
    partition: npz.Count
    next_offset: Annotated[int, Field(ge=-1, lt=2**63)]
    last_record: LastRecordHeader | None
    weight: npz.NonNegative
    total_variance: npz.NonNegative
    count: npz.Count
    concentration: npz.Share
    clipped: npz.Count
    event_time: EventTimeHeader
    stats: FoldStats
    until: Annotated[str, Field(pattern=r"^(-?\d{1,18}|\d{1,10}:\d{1,19}(,\d{1,10}:\d{1,19})*)?$")] = ""


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint file."""
    fold = checkpoint.fold
    state = fold.state
    stats = {**vars(fold.stats), "rejected": dict(fold.stats.rejected)}
    if not fold.stats.skipped:
        del stats["skipped"]
    header = {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "numpy": np.__version__,
        "topic": checkpoint.topic,
        "topic_id": checkpoint.topic_id,
        "partition": checkpoint.partition,
        "settings": checkpoint.settings,
        "next_offset": fold.position,
        "last_record": fold.last._asdict() if fold.last else None,
        "weight": state.weight,
        "total_variance": state.total_variance,
        "count": state.count,
        "concentration": state.concentration,
        "clipped": state.clipped,
        "event_time": asdict(fold.event_time),
        "stats": stats,
    }
    if checkpoint.until:
        header["until"] = checkpoint.until
    if checkpoint.names:
        header["names"] = checkpoint.names
    arrays: dict[str, NDArray[Any]] = {
        "C": state.C,
        "C_pinv": state.C_pinv,
        "mean": state.mean,
        "pending": fold.pending,
        "pending_retention": fold.retention,
    }
    for name in _OPTIONAL:
        array = getattr(state, name)
        if array is not None:
            arrays[name] = array
    return npz.encode(header, arrays)


def decode(data: bytes) -> Checkpoint:
    """Return the checkpoint that `encode` wrote, in this release or in the one before.

    Raises `DamagedFileError` for other bytes, and the errors of `npz.decode` for the formats of other releases.
    """
    fields, arrays = npz.decode(data, KIND, FORMAT_VERSION, earlier_format.upgrade_checkpoint)
    header = npz.validate(CheckpointHeader, fields)
    _verify(header, arrays)
    state = State(
        C=arrays["C"],
        mean=arrays["mean"],
        weight=header.weight,
        total_variance=header.total_variance,
        count=header.count,
        concentration=header.concentration,
        clipped=header.clipped,
        missing=arrays.get("missing"),
        covariance=arrays.get("covariance"),
        scale=arrays.get("scale"),
        variances=arrays.get("variances"),
        known=arrays.get("known"),
    )
    last = LastRecord(**dict(header.last_record)) if header.last_record else None
    fold = Fold(
        position=header.next_offset,
        state=state,
        pending=arrays["pending"],
        retention=arrays["pending_retention"],
        event_time=EventTime(**dict(header.event_time)),
        stats=header.stats,
        last=last,
    )
    return Checkpoint(
        topic=header.topic,
        topic_id=header.topic_id,
        partition=header.partition,
        fold=fold,
        settings=header.settings,
        until=header.until,
        names=header.names,
    )


def _verify(header: CheckpointHeader, arrays: dict[str, NDArray[Any]]) -> None:
    """Raise `DamagedFileError` for content that no release with this format can have written.

    `Checkpoints.save` calls this before it writes, so each rule must hold for every state that can be learned or
    merged. If such a state were refused, the worker would stop, read the same records at its next start, and stop
    again.
    """
    d = header.settings.get("dimensions")
    actual = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    is_plain = all(array.dtype.isnative and array.flags.c_contiguous for array in arrays.values())
    if actual != _expected_arrays(header, arrays) or not is_plain:
        raise DamagedFileError("the arrays of the checkpoint fit neither each other nor the settings")
    if not npz.are_names(header.names, d):
        raise DamagedFileError(f"the names of the dimensions are not {d} different names")
    may_have_gaps = header.settings.get("missing") == "impute"
    for name, array in arrays.items():
        if not_finite(array, impute=may_have_gaps and name == "pending").any():
            raise DamagedFileError(f"{name} holds values that are not finite")
    _verify_ranges(arrays)


def _expected_arrays(header: CheckpointHeader, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return shape and type that each array must have, by the settings and by which optional arrays there are."""
    d = header.settings.get("dimensions")
    dtype = header.settings.get("dtype")
    pairs = d * (d + 1) // 2 if isinstance(d, int) else 0
    columns = arrays["C"].shape[-1] if "C" in arrays and arrays["C"].ndim else 0
    pending_count = len(arrays["pending"]) if "pending" in arrays and arrays["pending"].ndim else 0
    of_dimensions = ((d,), "float64")
    expected: dict[str, Any] = {
        "C": ((d, columns), dtype),
        "C_pinv": ((columns, d), dtype),  # only for people who read the file: it follows from C
        "mean": of_dimensions,
        "pending": ((pending_count, d), dtype),
        "pending_retention": ((pending_count,), "float64"),
    }
    if "missing" in arrays:
        expected["missing"] = of_dimensions
    keeps_covariance = "covariance" in arrays
    if keeps_covariance:
        expected["covariance"] = ((pairs,), "float64")
    if "known" in arrays:
        expected["known"] = ((pairs,), "float64") if keeps_covariance else of_dimensions
    if header.settings.get("standardize") and header.count:
        expected["scale"] = of_dimensions
        if not keeps_covariance:
            expected["variances"] = of_dimensions
    return expected


def _verify_ranges(arrays: dict[str, NDArray[Any]]) -> None:
    """Raise `DamagedFileError` for numbers that cannot have been learned: shares outside 0 … 1, or too large numbers.

    The squares of numbers beyond the limits here would overflow. A vector is rejected if an entry is larger than the
    root of the type's largest number, divided by 128 √d, so numbers that were learned are far below these limits.
    """
    largest_square = float(np.finfo(arrays["C"].dtype).max)
    largest = np.sqrt(largest_square) / 8
    largest_variance = 0.0
    covariance = arrays.get("covariance")
    if covariance is not None:
        # Correlations are at most 1, so a covariance exceeds the largest variance only by rounding.
        variances = covariance[packed_diagonal(len(arrays["mean"]))]
        largest_variance = min(1.01 * float(variances.max()), largest_square / 64)
    ranges = {
        "C": (-largest, largest),
        "C_pinv": (-np.inf, np.inf),
        "mean": (-largest, largest),
        "pending": (-largest, largest),
        "pending_retention": (0.0, 1.0),
        "missing": (0.0, 1.0 + 1e-6),
        "known": (0.0, 1.0 + 1e-6),
        "scale": (np.nextafter(0.0, 1.0), np.inf),
        "variances": (0.0, np.inf),
        "covariance": (-largest_variance, largest_variance),
    }
    for name, array in arrays.items():
        low, high = ranges[name]
        if ((array < low) | (array > high)).any():
            raise DamagedFileError(f"{name} holds values outside {low:g} … {high:g}, which cannot have been learned")
